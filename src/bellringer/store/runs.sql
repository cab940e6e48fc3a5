-- name: send
-- One value, a row: a function in `from` would add 15 µs.
select bellringer.send(
  p_tenant => $1, p_id => $2, p_shard => $3, p_task => $4, p_pool => $5, p_priority => $6, p_at => $7, p_delay => $8,
  p_spec => $9::jsonb, p_key => $10, p_cause => $11::text::cause, p_repeated => $12, p_notify => $13)

-- name: send_workflow
select bellringer.send_workflow(
  p_tenant => $1, p_id => $2, p_shard => $3, p_task => $4, p_pool => $5, p_priority => $6, p_at => $7, p_delay => $8,
  p_spec => $9::jsonb, p_key => $10, p_cause => $11::text::cause, p_repeated => $12, p_notify => $13)

-- name: send_many
select o_now as now, o_places as places, o_job_ids as job_ids, o_scheduled_for as scheduled_for, o_slots as slots,
       o_created as created
from bellringer.send_many(
  p_tenant => $1, p_ids => $2, p_shards => $3, p_tasks => $4, p_pools => $5, p_priorities => $6, p_at => $7,
  p_delays => $8, p_specs => $9::jsonb[], p_keys => $10, p_repeated => $11, p_notify => $12)

-- name: trigger
select o_scheduled_for as scheduled_for, o_slot as slot from bellringer.trigger_job($1, $2, $3::jsonb)

-- name: cancel
select bellringer.cancel($1, $2, $3, $4, $5)

-- name: redrive
select bellringer.redrive($1, $2, $3, $4)

-- name: retry_now
select bellringer.retry_now($1, $2, $3, $4)

-- name: discard
select bellringer.discard($1, $2, $3, $4, $5)

-- name: restore_discarded
select bellringer.restore_discarded($1, $2, $3, $4, $5)

-- name: get
-- Runs of one day ($5 to $6) by their keys, each with its attempts; a run may be in history, in the queue, or in a
-- timer. A queue or timer row means that the run has not ended. Every join is a lateral lookup by the whole key behind
-- `offset 0`, and the tenant is compared as `tenant_id + 0`, so that only the primary keys fit: the plan is made once
-- and kept, even if the tables were empty then (store/keyed_read_connections.py). The bounds prune the partitions of
-- other days.
select key.job_id, key.scheduled_for, key.slot, job.name as job,
       (select task.name from tasks task where task.task_id = coalesce(run.task_id, timer.task_id)) as task,
       (select pool.name from pools pool where pool.pool_id = coalesce(run.pool_id, timer.pool_id)) as pool,
       coalesce(run.priority, timer.priority) as priority, coalesce(run.cause, timer.cause)::text as cause,
       coalesce(run.reason, '') as reason, run.fired_at, run.token, coalesce(run.revision, timer.revision) as revision,
       coalesce(run.spec, timer.spec, job.spec) as spec, queued.available_at, queued.attempt as queue_attempt,
       queued.worker_id, queued.claimed_at, queued.blocked, queued.cancel_requested, queued.progress, timer.due_at,
       timer.attempt as timer_attempt, case when run.cause = 'schedule' then job.jitter_by end as jitter_by,
       run.of_slot,
       (select array_agg(run.slot order by run.slot) from runs run
        where run.job_id = key.job_id and run.scheduled_for = key.scheduled_for and run.of_slot = key.slot
          and run.scheduled_for >= $5 and run.scheduled_for <= $6) as replays,
       (select json_agg(json_build_object('attempt', attempt.attempt, 'outcome', attempt.outcome, 'ends_as',
                                          attempt.ends_as, 'started_at', attempt.started_at, 'finished_at',
                                          attempt.finished_at, 'worker_id', attempt.worker_id, 'worker',
                                          'worker-' || attempt.worker_id, 'revision', attempt.revision, 'error',
                                          attempt.error, 'result', attempt.result) order by attempt.finished_at,
                        attempt.attempt)
        from attempts attempt
        where attempt.job_id = key.job_id and attempt.scheduled_for = key.scheduled_for and attempt.slot = key.slot
          and attempt.scheduled_for >= $5 and attempt.scheduled_for <= $6) as attempts
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) key (job_id, scheduled_for, slot)
left join lateral (
  select * from runs run
  where run.job_id = key.job_id and run.scheduled_for = key.scheduled_for and run.slot = key.slot
    and run.tenant_id + 0 = $4 and run.scheduled_for >= $5 and run.scheduled_for <= $6 offset 0) run on true
left join lateral (
  select * from queue queued
  where queued.job_id = key.job_id and queued.scheduled_for = key.scheduled_for and queued.slot = key.slot
    and queued.tenant_id + 0 = $4 offset 0) queued on true
left join lateral (
  select * from timers timer
  where timer.job_id = key.job_id and timer.scheduled_for = key.scheduled_for and timer.slot = key.slot
    and timer.tenant_id + 0 = $4 offset 0) timer on true
left join lateral (select * from jobs job where job.job_id = key.job_id offset 0) job on true
where run.job_id is not null or timer.job_id is not null

-- name: of_job
-- The newest runs of a job; with $3 and $4, those before.
select run.job_id, run.scheduled_for, run.slot, job.name as job, task.name as task, pool.name as pool, run.priority,
       run.cause::text as cause, coalesce(run.reason, '') as reason, run.fired_at, run.token, run.revision,
       null::jsonb as spec, queued.available_at, queued.attempt as queue_attempt, queued.worker_id, queued.claimed_at,
       queued.blocked, queued.cancel_requested, queued.progress, timer.due_at, timer.attempt as timer_attempt,
       last.ends_as::text as ends_as, last.finished_at, null::jsonb as result, last.error, last.attempt as last_attempt,
       last.started_at as last_started_at, tried.first_started_at, tried.last_worker_id,
       case when run.cause = 'schedule' then job.jitter_by end as jitter_by
from (
  select * from runs
  where job_id = $1 and tenant_id + 0 = $2               -- by its key, not by the tenant's index
    and ($3::timestamptz is null or (scheduled_for <= $3 and (scheduled_for, slot) < ($3, $4::bigint)))
  order by scheduled_for desc, slot desc limit $5) run
join tasks task on task.task_id = run.task_id
join pools pool on pool.pool_id = run.pool_id
left join jobs job on job.job_id = run.job_id
left join queue queued on queued.job_id = run.job_id and queued.scheduled_for = run.scheduled_for
  and queued.slot = run.slot
left join timers timer on timer.job_id = run.job_id and timer.scheduled_for = run.scheduled_for
  and timer.slot = run.slot
left join lateral (
  select attempt.ends_as, attempt.finished_at, attempt.error, attempt.attempt, attempt.started_at from attempts attempt
  where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
    and attempt.ends_as is not null
  order by attempt.finished_at desc, attempt.attempt desc limit 1) last on true
left join lateral (
  select min(attempt.started_at) as first_started_at,
         (array_agg(attempt.worker_id order by attempt.finished_at desc, attempt.attempt desc)
            filter (where attempt.worker_id is not null))[1] as last_worker_id
  from attempts attempt
  where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for
    and attempt.slot = run.slot) tried on true
order by run.scheduled_for desc, run.slot desc

-- name: replay
select o_slot as slot, o_state as state from bellringer.replay($1, $2, $3, $4, $5::jsonb, $6)

-- name: dead_letters
select dead_letter.job_id, dead_letter.scheduled_for, dead_letter.slot, job.name as job, task.name as task,
       dead_letter.attempt, dead_letter.died_at, dead_letter.reason, dead_letter.error, dead_letter.fingerprint
from dead_letters dead_letter
join tasks task on task.task_id = dead_letter.task_id
left join jobs job on job.job_id = dead_letter.job_id
where dead_letter.tenant_id = $1 and ($6::text is null or dead_letter.fingerprint = $6)
  and ($2::timestamptz is null
       or (dead_letter.died_at <= $2
           and (dead_letter.died_at, dead_letter.job_id, dead_letter.scheduled_for,
                dead_letter.slot) < ($2, $3::uuid, $4::timestamptz, $5::bigint)))
order by dead_letter.died_at desc, dead_letter.job_id desc, dead_letter.scheduled_for desc, dead_letter.slot desc
limit $7

-- name: dead_count
select t.name as task, count(*) as count from (select task_id from dead_letters limit 100000) d
join tasks t on t.task_id = d.task_id
group by t.name
