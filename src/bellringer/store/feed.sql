-- Events in the order in which they can be followed.

-- name: following
-- For each tenant, what comes after (tx, event_id), up to the oldest transaction that is still open: what it will tell has a
-- lower place than others that are there already. The horizon is told also where nothing follows.
select h.horizon::text::bigint as horizon, e.tenant_id, e.tx::text::bigint as tx, e.event_id, e.at, e.kind, e.job_id,
       e.job, e.scheduled_for, e.slot, e.attempt, e.data
from (select pg_snapshot_xmin(pg_current_snapshot()) as horizon) h
left join lateral (
  select f.*, j.name as job from unnest($1::integer[], $2::text[], $3::bigint[]) t (tenant_id, tx, event_id)
  cross join lateral (
    select * from events e
    where e.tenant_id = t.tenant_id and (e.tx, e.event_id) > (t.tx::xid8, t.event_id) and e.tx < h.horizon
    order by e.tx, e.event_id limit $4) f
  left join lateral (select j.name from jobs j where j.job_id = f.job_id and j.tenant_id = f.tenant_id offset 0) j on true) e on true
order by e.tenant_id, e.tx, e.event_id
