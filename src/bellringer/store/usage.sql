-- Usage per minute, pool and tenant, and the objectives of tenants.

-- name: add
-- In key order, because workers update the same rows. Returns the objective of each tenant, in seconds.
with added as (
  insert into usage as used (minute, pool_id, tenant_id, started, late, busy_ms, slots_ms, occurrences, retried)
  select *
  from unnest($1::timestamptz[], $2::smallint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[],
              $7::bigint[], $8::bigint[], $9::bigint[]) given
  order by 1, 2, 3 on conflict (minute, pool_id, tenant_id) do update
  set started = used.started + excluded.started, late = used.late + excluded.late,
      busy_ms = used.busy_ms + excluded.busy_ms, slots_ms = used.slots_ms + excluded.slots_ms,
      occurrences = coalesce(used.occurrences, 0) + excluded.occurrences, retried = used.retried + excluded.retried
  returning tenant_id)
select tenant.tenant_id, (tenant.objective ->> 'within')::float8 as within
from (select distinct tenant_id from added) changed
join tenants tenant on tenant.tenant_id = changed.tenant_id

-- name: within
select tenant_id, (objective ->> 'within')::float8 as within from tenants where objective ? 'within' limit 100000

-- name: forget
delete from usage where minute < $1

-- name: objective
select name, (objective ->> 'target')::float8 as target, (objective ->> 'within')::float8 as within,
       (objective ->> 'max_missed')::float8 as max_missed, bellringer.now() as now
from tenants
where tenant_id = $1

-- name: sums
-- For each span from its start to $3.
select given.start, coalesce(sum(used.started), 0)::bigint as started, coalesce(sum(used.late), 0)::bigint as late,
       coalesce(sum(used.missed), 0)::bigint as missed,
       coalesce(sum(coalesce(used.occurrences, used.started)), 0)::bigint as occurrences,
       coalesce(sum(used.retried), 0)::bigint as retried
from unnest($2::timestamptz[]) given (start)
left join usage used on used.tenant_id = $1 and used.minute >= given.start and used.minute <= $3
group by given.start
order by given.start

-- name: sums_of_all
-- As sums, of all tenants together.
select given.start, coalesce(sum(used.started), 0)::bigint as started, coalesce(sum(used.late), 0)::bigint as late,
       coalesce(sum(used.missed), 0)::bigint as missed,
       coalesce(sum(coalesce(used.occurrences, used.started)), 0)::bigint as occurrences,
       coalesce(sum(used.retried), 0)::bigint as retried
from unnest($1::timestamptz[]) given (start)
left join usage used on used.minute >= given.start and used.minute <= $2
group by given.start
order by given.start

-- name: worst
select minute, sum(started)::bigint as started, sum(late)::bigint as late, sum(missed)::bigint as missed,
       sum(coalesce(occurrences, started))::bigint as occurrences, sum(retried)::bigint as retried
from usage
where tenant_id = $1 and minute >= $2 and minute <= $3 and late + missed > 0
group by minute
order by sum(late + missed) desc, minute desc limit $4

-- name: around
select minute, pool, own_ms, others_ms, slots_ms, names, shares from bellringer.usage_around($1, $2, $3)
