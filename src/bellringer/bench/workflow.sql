-- name: empty
-- A workflow run stays in the queue until its last node has ended.
select not exists (select 1 from queue)

-- name: joined
select exists (select 1 from workers where state = 'live')

-- name: ready
-- Runs without a workflow, ready at once, of the same task and argument as the elements of the map.
with born as (
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, initial_state, spec)
  select gen_random_uuid(), $1::timestamptz, 0, bellringer.now(), 0, 1, $3, 0, $4, 5, 'send', 'queued', '{"kwargs": {"n": 1}}'
  from generate_series(1, $2)
  returning *)
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, shard, pool_id, priority, cause, spec from born

-- name: succeeded
select count(*) from attempts where scheduled_for = $1 and slot = 0 and ends_as = 'succeeded'

-- name: result
select result::text from attempts where job_id = $1 and scheduled_for = $2 and slot = $3 and ends_as = 'succeeded'

-- name: starts
-- What the links of a chain have returned, in their order: when each of them began.
select a.result::float8 from attempts a
where a.job_id = bellringer.flow_of($1, $2, $3) and a.scheduled_for = $2 and a.ends_as = 'succeeded' order by a.slot
