-- name: fill
-- Runs that are ready at once.
with born as (
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, initial_state, spec)
  select gen_random_uuid(), $1::timestamptz, 0, bellringer.now(), 0, 1, $3, 0, $4, 5, 'send', 'queued', $5::jsonb from generate_series(1, $2)
  returning *)
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, shard, pool_id, priority, cause, spec from born

-- name: joined
select exists (select 1 from workers where state = 'live')

-- name: unended
select exists (select 1 from queue where pool_id = $1)

-- name: under_way
select count(*) from queue where pool_id = $1 and worker_id is not null

-- name: waits
-- From when a run might have started to its start, in milliseconds: the half, all but the slowest hundredth, all.
select percentile_disc(array[0.5, 0.99, 1.0]) within group (order by extract(epoch from started_at - scheduled_for) * 1000)::float8[] as waits
from attempts where scheduled_for = $1 and ends_as = 'succeeded'
