-- The queue of runs that are ready, blocked, sent or running.

-- name: claim
-- The row without job_id is the position at which the next claim starts.
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, claimed_at, name, spec, background,
       available_at, after_tenant, share_left, tenants_visited
from bellringer.claim($1, $2, $3, $4, $5, $6, $7, $8)

-- name: settle
select written, refused from bellringer.settle($1, $2, $3, $4, $5)

-- name: begin
-- The attempts that the worker still holds, by position, with the last progress details of earlier attempts.
with begun as materialized (select unnest(bellringer.begin_attempts($1, $2, $3, $4, $5)) as position)
select begun.position, run.resume_from
from begun
cross join lateral (
  select run.resume_from from queue run
  where run.job_id = ($2::uuid[])[begun.position] and run.scheduled_for = ($3::timestamptz[])[begun.position]
    and run.slot = ($4::bigint[])[begun.position] offset 0) run

-- name: record_starts
-- First attempts that a worker has been executing for a while. The rows are locked in key order.
with held as materialized (
  select run.ctid as row_id, given.started_at
  from unnest($2::uuid[], $3::timestamptz[], $4::bigint[], $5::integer[], $6::timestamptz[])
    given (job_id, scheduled_for, slot, attempt, started_at)
  join queue run on run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
  where run.worker_id + 0 = $1 and run.attempt = given.attempt and run.started_at is null
  order by run.job_id, run.scheduled_for, run.slot for update of run)
update queue run set started_at = held.started_at from held where run.ctid = held.row_id

-- name: first_starts
-- When the first attempt since the run was created or last died has started; null: none has.
select given.position, (
  select min(attempt.started_at) from attempts attempt
  where attempt.job_id = given.job_id and attempt.scheduled_for = given.scheduled_for and attempt.slot = given.slot
    and attempt.attempt > coalesce((
      select max(dead.attempt) from attempts dead
      where dead.job_id = given.job_id and dead.scheduled_for = given.scheduled_for and dead.slot = given.slot
        and dead.ends_as = 'dead'), 0)) as started_at
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) with ordinality given (job_id, scheduled_for, slot, position)
order by given.position

-- name: last_results
-- The result of the latest run of the job, by scheduled time, that comes before the given one and has succeeded. The
-- kept result is later than a backfill or a replay; their predecessor is looked up in the history.
select given.position,
       case when kept.scheduled_for is null then null
            when (kept.scheduled_for, kept.slot) < (given.scheduled_for, given.slot) then kept.result
            else (select attempt.result from attempts attempt
                  where attempt.job_id = given.job_id and attempt.scheduled_for <= given.scheduled_for
                    and (attempt.scheduled_for, attempt.slot) < (given.scheduled_for, given.slot)
                    and attempt.ends_as = 'succeeded'
                  order by attempt.scheduled_for desc, attempt.slot desc limit 1) end as result
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) with ordinality given (job_id, scheduled_for, slot, position)
left join job_outcomes kept on kept.job_id = given.job_id
order by given.position

-- name: expire
select o_skipped, o_dead from bellringer.expire_runs($1)

-- name: give_back
select bellringer.give_back($1, $2, $3, $4, $5)

-- name: held
-- The runs that a lost worker held. `lost` counts the other worker processes that were lost while they executed the
-- run, since it was created or last died. A process counts once, however often it was declared lost. Neither attempts
-- that are not known to have begun (started_at is null) count, nor those that a live worker has settled as lost: it
-- stopped, or another handler blocked the event loop. The rows are picked in a CTE: with ORDER BY and LIMIT the planner
-- might scan the whole primary key.
with held as materialized (select * from queue where worker_id = $1)
select run.job_id, run.scheduled_for, run.slot, run.attempt, run.attempt_floor, run.task_id, run.tenant_id,
       run.claimed_at, run.available_at, job.name,
       bellringer.claimed_spec(coalesce(run.spec, job.spec), run.expires_at) as spec,
       extract(epoch from bellringer.now() - coalesce(run.started_at, run.claimed_at))::float8 as ran,
       run.started_at is not null as started,
       (select count(distinct coalesce(worker.process::text, attempt.worker_id::text)) from attempts attempt
        left join workers worker on worker.worker_id = attempt.worker_id
        where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
          and attempt.outcome = 'lost' and attempt.started_at is not null and attempt.error ->> 'type' = 'WorkerLost'
          and worker.process is distinct from (select worker.process from workers worker where worker.worker_id = $1)
          and attempt.attempt > coalesce((select max(attempt.attempt) from attempts attempt
                                          where attempt.job_id = run.job_id
                                            and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
                                            and attempt.ends_as = 'dead'),
                                         0)) as lost
from (select * from held order by job_id, scheduled_for, slot limit $2) run
left join jobs job on job.job_id = run.job_id
order by run.job_id, run.scheduled_for, run.slot

-- name: cancels
select job_id, scheduled_for, slot, attempt from queue where worker_id = $1 and cancel_requested

-- name: report
update queue run set progress = given.progress::jsonb
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[], $5::integer[],
            $6::text[]) given (job_id, at, slot, attempt, progress)
where run.job_id = given.job_id and run.scheduled_for = given.at and run.slot = given.slot and run.worker_id + 0 = $1
  and run.attempt = given.attempt

-- name: log
insert into logs (job_id, scheduled_for, slot, attempt, at, level, message, fields, source)
select job_id, scheduled_for, slot, attempt, at, level, message, fields::jsonb, source
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::text[], $7::text[],
            $8::text[], $9::text[])
with ordinality given (job_id, scheduled_for, slot, attempt, at, level, message, fields, source, ord)
order by ord

-- name: update_unknown_tasks
select bellringer.unblock_known_tasks($1) + bellringer.block_unknown_tasks($1)

-- name: decide_overlaps
select bellringer.decide_overlaps($1)

-- name: release_frozen
select bellringer.release_frozen($1)

-- name: unblock_orphans
select o_at, o_job from bellringer.unblock_orphans($1, $2, $3)

-- name: rearm_orphans
select bellringer.rearm_orphans()

-- name: depths
select pool.name as pool,
       count(*) filter (where run.worker_id is null and run.blocked & ~(LIMITED | SENT) = 0
                        and run.available_at <= bellringer.now()) as ready,
       count(*) filter (where run.worker_id is not null or run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW) as running,
       count(*) filter (where run.blocked & NOT_CLAIMABLE <> 0 and run.blocked & OPEN_WORKFLOW = 0) as blocked
from pools pool
left join (select * from queue limit 200000) run on run.pool_id = pool.pool_id
group by pool.name
order by pool.name
