-- name: jobs
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at)
select job_id, 1, shard, 'job ' || ($6::int + ord), $3, '{}', '[]', array[schedule_id], $4, 5, 'fire_once', 'skip', bellringer.now(), bellringer.now()
from unnest($1::uuid[], $2::smallint[], $5::integer[]) with ordinality u (job_id, shard, schedule_id, ord)

-- name: members
-- Overlap is on, as it is by default, so the fire looks for an unfinished predecessor of every job.
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap, active_since)
select shard, schedule_ids[1], job_id, tenant_id, task_id, revision, pool_id, priority, 0, 1, bellringer.now() - interval '1 hour'
from jobs

-- name: cohorts
insert into cohorts (shard, schedule_id, next_at) select distinct shard, schedule_id, $1::timestamptz from members

-- name: due_members
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap, active_since)
select shard, $1, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap, active_since from members limit $2

-- name: due_cohorts
insert into cohorts (shard, schedule_id, next_at) select distinct shard, schedule_id, $2::timestamptz from members where schedule_id = $1

-- name: copies
create table runs_copy (like runs including all) partition by range (scheduled_for);
create table runs_copy_all partition of runs_copy for values from (minvalue) to (maxvalue);
create table queue_copy (like queue including all) with (fillfactor = 70)

-- name: copy_runs
insert into runs_copy select * from runs

-- name: copy_queue
insert into queue_copy select * from queue

-- name: ready
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, initial_state, spec)
select job_id, $2, 0, bellringer.now(), 0, 1, $3, 0, $4, 5, 'send', 'queued', '{}' from unnest($1::uuid[]) u (job_id)

-- name: ready_queue
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, shard, pool_id, priority, cause, spec from runs

-- name: end_half
-- Every second run of the queue has ended.
with ended as (
  delete from queue q using (select job_id, scheduled_for, slot, row_number() over (order by job_id) as n from queue) o
  where o.n % 2 = 0 and q.job_id = o.job_id and q.scheduled_for = o.scheduled_for and q.slot = o.slot
  returning q.job_id, q.scheduled_for, q.slot, q.tenant_id)
insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, outcome, ends_as, result)
select job_id, scheduled_for, slot, 1, bellringer.now(), bellringer.now(), tenant_id, 'ok', 'succeeded', '{"rows": 12}' from ended
