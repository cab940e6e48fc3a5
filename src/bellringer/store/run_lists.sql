-- Lists of runs: their keys by a filter, and the runs of these keys.

-- name: runs
select job_id, scheduled_for, slot, shard, scanned, stop_at, stop_shard, stop_job, stop_slot
from bellringer.list_runs($1, $2::jsonb, $3, $4, $5, $6, $7, $8, $9)

-- name: queue
select job_id, scheduled_for, slot, shard, scanned from bellringer.list_queue($1, $2::jsonb, $3, $4, $5, $6, $7, $8)

-- name: ended
select job_id, scheduled_for, slot, ended_at, scanned, stop_ended, stop_at, stop_job, stop_slot
from bellringer.list_ended($1, $2::jsonb, $3, $4, $5, $6, $7, $8)

-- name: items
-- Runs by key, in the given order, without large values: an error above 2 KiB is shortened. $5 and $6 are the first and
-- last instant of the keys and exclude the partitions of other days.
select key.job_id, key.scheduled_for, key.slot, job.name as job, task.name as task, pool.name as pool,
       coalesce(run.priority, timer.priority) as priority, coalesce(run.cause, timer.cause)::text as cause,
       left(coalesce(run.reason, ''), 1000) as reason, run.fired_at, run.token,
       coalesce(run.revision, timer.revision) as revision, null::jsonb as spec, queued.available_at,
       queued.attempt as queue_attempt, queued.worker_id, queued.claimed_at, queued.blocked, queued.cancel_requested,
       case when octet_length(queued.progress::text) <= 2048 then queued.progress end as progress, timer.due_at,
       timer.attempt as timer_attempt, last.ends_as::text as ends_as, last.finished_at, null::jsonb as result,
       case when last.error is null or octet_length(last.error::text) <= 2048 then last.error
            else jsonb_strip_nulls(jsonb_build_object('type', left(last.error ->> 'type', 200), 'message',
                                                      left(last.error ->> 'message', 300), 'reason',
                                                      left(last.error ->> 'reason', 300), 'cut', true)) end as error,
       last.attempt as last_attempt, last.started_at as last_started_at, tried.first_started_at,
       tried.last_worker_id,
       case when run.cause = 'schedule' then job.jitter_by end as jitter_by
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[])
with ordinality key (job_id, scheduled_for, slot, nth)
left join lateral (
  select * from runs run
  where run.job_id = key.job_id and run.scheduled_for = key.scheduled_for and run.slot = key.slot
    and run.tenant_id + 0 = $1 and run.scheduled_for between $5 and $6 offset 0) run on true
left join lateral (
  select * from queue queued
  where queued.job_id = key.job_id and queued.scheduled_for = key.scheduled_for and queued.slot = key.slot
    and queued.tenant_id + 0 = $1 offset 0) queued on true
left join lateral (
  select * from timers timer
  where timer.job_id = key.job_id and timer.scheduled_for = key.scheduled_for and timer.slot = key.slot
    and timer.tenant_id + 0 = $1 offset 0) timer on true
left join lateral (select * from jobs job where job.job_id = key.job_id and job.tenant_id + 0 = $1 offset 0) job on true
left join tasks task on task.task_id = coalesce(run.task_id, timer.task_id)
left join pools pool on pool.pool_id = coalesce(run.pool_id, timer.pool_id)
left join lateral (
  select attempt.ends_as, attempt.finished_at, attempt.error, attempt.attempt, attempt.started_at from attempts attempt
  where attempt.job_id = key.job_id and attempt.scheduled_for = key.scheduled_for and attempt.slot = key.slot
    and attempt.ends_as is not null and attempt.scheduled_for between $5 and $6
  order by attempt.finished_at desc, attempt.attempt desc limit 1) last on true
left join lateral (
  select min(attempt.started_at) as first_started_at,
         (array_agg(attempt.worker_id order by attempt.finished_at desc, attempt.attempt desc)
            filter (where attempt.worker_id is not null))[1] as last_worker_id
  from attempts attempt
  where attempt.job_id = key.job_id and attempt.scheduled_for = key.scheduled_for and attempt.slot = key.slot
    and attempt.scheduled_for between $5 and $6) tried on true
where run.job_id is not null or timer.job_id is not null
order by key.nth

-- name: created_after
-- The keys of runs that were created after $4.
select given.job_id, given.scheduled_for, given.slot
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) given (job_id, scheduled_for, slot)
where exists (
    select 1 from runs run
    where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
      and run.fired_at > $4 offset 0)

-- name: unfinished
-- The keys of runs that have not ended.
select given.job_id, given.scheduled_for, given.slot
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) given (job_id, scheduled_for, slot)
where exists (
    select 1 from queue run
    where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot offset 0)
  or exists (
    select 1 from timers timer
    where timer.job_id = given.job_id and timer.scheduled_for = given.scheduled_for
      and timer.slot = given.slot offset 0)
