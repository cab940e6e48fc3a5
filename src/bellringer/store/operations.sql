-- Bulk operations.

-- name: create
-- Inserts nothing if the tenant has $10 running operations.
insert into operations (tenant_id, action, filter, ids, total, total_is_least, rate, paced_at, who, reason, created_at,
                        change, reverts)
select $1, $2, $3::jsonb, $4, $5, $6, $7, bellringer.now(), $8, $9, bellringer.now(), $11::jsonb, $12
where bellringer.room_for($1, 'operation', $10)
returning operation_id

-- name: get
select operation_id, action, filter, cardinality(ids) as named, ids[:20] as first_ids, total, total_is_least, done,
       skipped, failed, failures, rate, state, who, reason, created_at, ended_at, change, reverts
from operations
where operation_id = $1 and tenant_id = $2

-- name: list
-- The newest operations of a tenant; with $2, those before it.
select operation_id, action, filter, cardinality(ids) as named, ids[:20] as first_ids, total, total_is_least, done,
       skipped, failed, failures, rate, state, who, reason, created_at, ended_at, change, reverts
from operations
where tenant_id = $1 and ($2::bigint is null or operation_id < $2)
order by operation_id desc limit $3

-- name: abort
-- Returns the previous state. Items that were changed stay changed.
with was as (select operation_id, state from operations where operation_id = $1 and tenant_id = $2 for update),
ended as (
  update operations operation set state = 'aborted', ended_at = bellringer.now()
  from was
  where operation.operation_id = was.operation_id and was.state = 'running')
select state from was

-- name: take_next
-- The operation that waits longest, of the next tenant after $1, with $2 of its ids. The row stays locked while it is
-- processed; other nodes skip it. Actions that create runs ($3) share the tenant's quota of fires per minute.
select operation.operation_id, operation.tenant_id, operation.action, operation.filter,
       operation.ids[operation.position + 1 : operation.position + $2::integer] as ids, operation.cursor,
       operation.rate, operation.paced_at, allowance.quota,
       coalesce(spent.spent_until, operation.created_at) as spent_until, operation.who, operation.reason,
       operation.created_at, bellringer.now() as now,
       coalesce(operation.change, (select reverted.change from operations reverted
                                   where reverted.operation_id = operation.reverts)) as change, operation.reverts
from operations operation
join tenants tenant on tenant.tenant_id = operation.tenant_id
cross join lateral (
  select case when operation.action = any ($3::text[]) then (tenant.quotas ->>
             'fires_per_minute')::double precision end as quota) allowance
left join lateral (
  select max(other.spent_until) as spent_until from operations other
  where other.tenant_id = operation.tenant_id) spent on allowance.quota is not null
where operation.state = 'running' and operation.tenant_id > $1 and operation.paced_at <= bellringer.now()
  and tenant.suspended_at is null
  and (allowance.quota is null
       or (allowance.quota > 0 and coalesce(spent.spent_until, operation.created_at) <= bellringer.now()))
order by operation.tenant_id, operation.paced_at, operation.operation_id limit 1 for update of operation skip locked

-- name: save_progress
update operations
set position = position + $2::integer, cursor = $3::jsonb, done = done + $4::integer, skipped = skipped + $5::integer,
    failed = failed + $6::integer,
    failures = case when jsonb_array_length(failures) < 20 then failures || $7::jsonb else failures end, paced_at = $8,
    spent_until = $9, state = case when $10 then 'done' else state end,
    ended_at = case when $10 then bellringer.now() end
where operation_id = $1 and state = 'running'

-- name: forget
delete from operations where ended_at < $1

-- name: jobs
-- The matching jobs among the next $3, and the last job that was read.
with seen as materialized (
  select job.job_id, job.name, job.tags, job.owner, job.enabled, job.paused_at, job.done_at, job.task_id, job.pool_id,
         job.created_at
  from jobs job
  where job.tenant_id = $1 and job.deleted_at is null and ($2::uuid is null or job.job_id > $2)
  order by job.job_id limit $3),
kept as (
  select seen.job_id from seen
  join tasks task on task.task_id = seen.task_id
  join pools pool on pool.pool_id = seen.pool_id
  where ($5::text is null or position(lower($5) in lower(seen.name)) > 0) and ($6::text is null or $6 = any (seen.tags))
    and ($7::text is null or $7 = job_state(seen.paused_at, seen.enabled, seen.done_at))
    and ($8::text is null or pool.name = $8) and ($9::text is null or task.name = $9)
    and ($10::text is null or seen.owner = $10) and ($11::timestamptz is null or seen.created_at <= $11)
  order by seen.job_id limit $4)
select kept.job_id, page.stop, page.scanned
from (select max(job_id::text)::uuid as stop, count(*) as scanned from seen) page
left join kept on true
order by kept.job_id

-- name: changed_jobs
-- The jobs among the next $3 that an operation has changed, and the last job that was read. The revisions that an
-- operation makes begin their reason with its id ($5).
with seen as materialized (
  select job.job_id, job.why from jobs job
  where job.tenant_id = $1 and job.deleted_at is null and ($2::uuid is null or job.job_id > $2)
  order by job.job_id limit $3),
kept as (
  select seen.job_id from seen
  where split_part(seen.why, ':', 1) = $5 or exists (
    select 1 from job_revisions revision
    where revision.job_id = seen.job_id and split_part(revision.why, ':', 1) = $5 offset 0)
  order by seen.job_id limit $4)
select kept.job_id, page.stop, page.scanned
from (select max(job_id::text)::uuid as stop, count(*) as scanned from seen) page
left join kept on true
order by kept.job_id

-- name: trigger
select bellringer.trigger_for_operation($1, $2, $3)
