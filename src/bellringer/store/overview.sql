-- The overview of a tenant. All counts are bounded.

-- name: counts
-- Each count stops at $2.
select now, jobs, paused, failing, late, dead, live, slots, busy from bellringer.overview_counts($1, $2)

-- name: scheduler
-- By the real clock, as leases are. Read on a connection without a tenant; the delay of the shards is returned without
-- naming jobs.
select (select count(*) from nodes where seen_at > clock_timestamp() - $1::interval) as nodes, count(*) as total,
       count(*) filter (where lease.expires_at > clock_timestamp() and lease.holder is not null) as held,
       bellringer.component_waited_for() as waits_for,
       coalesce(greatest(max(extract(epoch from bellringer.now() - least(cohort.next_at, timer.due_at))), 0),
                0)::float8 as firing
from leases lease
left join lateral (select next_at from cohorts where shard = lease.shard order by next_at limit 1) cohort on true
left join lateral (select due_at from timers where shard = lease.shard order by due_at limit 1) timer on true

-- name: troubles
-- The latest $2 of each kind, with the first $3 characters of the error of the latest dead run.
select trouble.job_id, trouble.kind, coalesce(trouble.began_at, trouble.since) as since, trouble.scheduled_for,
       job.name as job, left(failed.error, $3) as error
from unnest(array['dead', 'missed', 'late', 'skipping']) given (kind)
cross join lateral (
  select * from troubles trouble
  where trouble.tenant_id = $1 and trouble.kind = given.kind
  order by trouble.since desc limit $2) trouble
cross join lateral (select name from jobs job where job.job_id = trouble.job_id and job.deleted_at is null offset 0) job
left join lateral (
  select coalesce(nullif(concat_ws(': ', attempt.error ->> 'type', attempt.error ->> 'message'), ''),
                  attempt.error ->> 'reason') as error
  from attempts attempt
  where attempt.job_id = trouble.job_id and attempt.scheduled_for = trouble.scheduled_for and attempt.ends_as = 'dead'
  order by attempt.finished_at desc limit 1) failed on trouble.kind = 'dead'

-- name: failing_pauses
-- Jobs that were paused because their runs died, the latest first.
select job_id, name as job, paused_at as since, paused_reason as reason from jobs
where tenant_id = $1 and paused_by = 'system' and paused_at is not null and deleted_at is null
order by paused_at desc limit $2

-- name: orphans
-- The latest $2 jobs that can fire although the code of their app no longer declares them.
select job.job_id, job.name as job, app.name as app, job.orphaned_version as version, job.orphaned_at as since
from (
  select * from jobs job
  where job.tenant_id = $1 and job.orphaned_at is not null and job.deleted_at is null and job.paused_at is null
    and job.enabled and job.done_at is null
  order by job.job_id desc limit $2) job
join apps app on app.app_id = job.app_id
order by job.orphaned_at desc

-- name: late_jobs
-- A job has one trouble at most. Each count stops at $2.
select count(*) filter (where given.kind = 'late') as late, count(*) filter (where given.kind = 'missed') as missed,
       count(*) filter (where given.kind = 'skipping') as skipping
from unnest(array['late', 'missed', 'skipping']) given (kind)
cross join lateral (
  select 1 from troubles trouble where trouble.tenant_id = $1 and trouble.kind = given.kind limit $2) trouble

-- name: suspension
select name as tenant, suspended_at as since from tenants where tenant_id = $1 and suspended_at is not null

-- name: stranded
-- Read on a connection without a tenant, which sees the workers.
select count(*) from bellringer.stranded($2, $3) found where found.tenant_id = $1

-- name: needs_workers
select exists (
  select 1
  from (
    select pool_id, enabled, paused_at, done_at from jobs
    where tenant_id = $1 and deleted_at is null
    order by job_id desc limit $3) job
  join pools pool on pool.pool_id = job.pool_id
  where job.enabled and job.paused_at is null and job.done_at is null and pool.name <> $2)

-- name: round_trip
select 1

-- name: unknown_tasks
select task, pool, since, runs, job_id, job, scheduled_for, slot from bellringer.unknown_tasks_of($1, $2, $3)

-- name: live_tasks
select distinct task.name from (select worker.task_ids from workers worker where worker.state = 'live' limit 500) worker
cross join unnest(worker.task_ids) given (task_id)
join tasks task on task.task_id = given.task_id
order by 1 limit 2000

-- name: pools
select pool, paused, workers, slots, ready, busy, since from bellringer.waiting_by_pool($1, $2)

-- name: started
-- In steps of $3 seconds.
select to_timestamp(floor(extract(epoch from minute) / $3::integer) * $3::integer) as at,
       sum(started)::bigint as started, sum(late)::bigint as late, sum(missed)::bigint as missed
from usage
where tenant_id = $1 and minute >= $2
group by 1

-- name: died
-- Among the newest $4 dead runs.
select to_timestamp(floor(extract(epoch from d.at) / $3::integer) * $3::integer) as at, count(*) as died
from bellringer.death_times($1, $2, $4) d (at)
group by 1

-- name: attempts
select job_id, scheduled_for, slot, task, jitter_by, attempt, outcome, ends_as, started_at, finished_at, is_node
from bellringer.attempts_of_tenant($1, $2, $3, $4)

-- name: claims
-- Runs that workers hold: as many as there are busy slots, or fewer.
select job_id, scheduled_for, slot, claimed_at from queue
where worker_id is not null and tenant_id = $1 and claimed_at is not null
limit $2

-- name: newest_jobs
select job_id from jobs where tenant_id = $1 and deleted_at is null order by job_id desc limit $2
