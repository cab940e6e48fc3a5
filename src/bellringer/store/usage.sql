-- Usage: what was started in which minute, what workers' time went to, and what tenants have set out to reach.

-- name: add
-- In key order, for workers add to the same rows. Answers within what time the runs of these tenants are to start.
with added as (
  insert into usage as u (minute, pool_id, tenant_id, started, late, busy_ms, slots_ms)
  select * from unnest($1::timestamptz[], $2::smallint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) a
  order by 1, 2, 3
  on conflict (minute, pool_id, tenant_id) do update
  set started = u.started + excluded.started, late = u.late + excluded.late, busy_ms = u.busy_ms + excluded.busy_ms,
      slots_ms = u.slots_ms + excluded.slots_ms
  returning tenant_id)
select t.tenant_id, (t.objective ->> 'within')::float8 as within
from (select distinct tenant_id from added) a join tenants t on t.tenant_id = a.tenant_id

-- name: within
select tenant_id, (objective ->> 'within')::float8 as within from tenants where objective ? 'within' limit 100000

-- name: forget
delete from usage where minute < $1

-- name: objective
select name, (objective ->> 'target')::float8 as target, (objective ->> 'within')::float8 as within, bellringer.now() as now
from tenants where tenant_id = $1

-- name: sums
-- Of each of these spans up to a moment.
select s.start, coalesce(sum(u.started), 0)::bigint as started,
       coalesce(sum(u.late), 0)::bigint as late
from unnest($2::timestamptz[]) s (start)
left join usage u on u.tenant_id = $1 and u.minute >= s.start and u.minute <= $3
group by s.start order by s.start

-- name: worst
select minute, sum(started)::bigint as started, sum(late)::bigint as late
from usage where tenant_id = $1 and minute >= $2 and minute <= $3 and late > 0
group by minute order by sum(late) desc, minute desc limit $4

-- name: around
select minute, pool, own_ms, others_ms, slots_ms, names, shares from bellringer.usage_around($1, $2, $3)
