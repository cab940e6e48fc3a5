-- Operations: one request that concerns many.

-- name: create
-- Nothing: $10 of the tenant are running already.
insert into operations (tenant_id, action, filter, ids, total, total_is_least, rate, paced_at, who, reason, created_at)
select $1, $2, $3::jsonb, $4, $5, $6, $7, bellringer.now(), $8, $9, bellringer.now()
where bellringer.room_for($1, 'operation', $10) returning operation_id

-- name: get
select operation_id, action, filter, cardinality(ids) as named, total, total_is_least, done, skipped, failed, failures, rate, state, who, reason,
       created_at, ended_at
from operations where operation_id = $1 and tenant_id = $2

-- name: list
-- The newest of a tenant, those before $2 where it is given.
select operation_id, action, filter, cardinality(ids) as named, total, total_is_least, done, skipped, failed, failures, rate, state, who, reason,
       created_at, ended_at
from operations where tenant_id = $1 and ($2::bigint is null or operation_id < $2) order by operation_id desc limit $3

-- name: abort
-- What was done stays done. Answers the state that it was in.
with was as (select operation_id, state from operations where operation_id = $1 and tenant_id = $2 for update),
ended as (
  update operations o set state = 'aborted', ended_at = bellringer.now() from was w
  where o.operation_id = w.operation_id and w.state = 'running')
select state from was

-- name: take
-- Of the next tenant behind $1, the one that waits longest of those that may go on, with $2 of its ids. Whoever has its row works
-- on it; others pass it by. What makes runs ($3) keeps to the tenant's quota of them, all of its operations together.
select o.operation_id, o.tenant_id, o.action, o.filter, o.ids[o.position + 1 : o.position + $2::integer] as ids, o.cursor, o.rate, o.paced_at,
       q.quota, coalesce(s.spent_until, o.created_at) as spent_until, o.who, o.reason, o.created_at, bellringer.now() as now
from operations o join tenants t on t.tenant_id = o.tenant_id
cross join lateral (
  select case when o.action = any ($3::text[]) then (t.quotas ->> 'fires_per_minute')::double precision end as quota) q
left join lateral (
  select max(e.spent_until) as spent_until from operations e where e.tenant_id = o.tenant_id) s on q.quota is not null
where o.state = 'running' and o.tenant_id > $1 and o.paced_at <= bellringer.now() and t.suspended_at is null
  and (q.quota is null or (q.quota > 0 and coalesce(s.spent_until, o.created_at) <= bellringer.now()))
order by o.tenant_id, o.paced_at, o.operation_id limit 1 for update of o skip locked

-- name: save
update operations set position = position + $2::integer, cursor = $3::jsonb, done = done + $4::integer, skipped = skipped + $5::integer,
       failed = failed + $6::integer, failures = case when jsonb_array_length(failures) < 20 then failures || $7::jsonb else failures end,
       paced_at = $8, spent_until = $9, state = case when $10 then 'done' else state end, ended_at = case when $10 then bellringer.now() end
where operation_id = $1 and state = 'running'

-- name: forget
delete from operations where ended_at < $1

-- name: jobs
-- Those of the next $3 jobs that fit, and the last one that was looked at.
with seen as materialized (
  select j.job_id, j.name, j.tags, j.owner, j.enabled, j.paused_at, j.task_id, j.pool_id, j.created_at from jobs j
  where j.tenant_id = $1 and j.deleted_at is null and ($2::uuid is null or j.job_id > $2) order by j.job_id limit $3),
kept as (
  select s.job_id from seen s join tasks t on t.task_id = s.task_id join pools p on p.pool_id = s.pool_id
  where ($5::text is null or position(lower($5) in lower(s.name)) > 0) and ($6::text is null or $6 = any (s.tags))
    and ($7::text is null or $7 = case when s.paused_at is not null then 'paused' when s.enabled then 'enabled' else 'disabled' end)
    and ($8::text is null or p.name = $8) and ($9::text is null or t.name = $9) and ($10::text is null or s.owner = $10)
    and ($11::timestamptz is null or s.created_at <= $11)
  order by s.job_id limit $4)
select k.job_id, s.stop, s.scanned
from (select max(job_id::text)::uuid as stop, count(*) as scanned from seen) s left join kept k on true order by k.job_id

-- name: run_for
select bellringer.run_for($1, $2, $3)
