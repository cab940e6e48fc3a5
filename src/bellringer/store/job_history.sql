-- The occurrences of jobs: runs, gaps and skips. Every read uses a job's key and stops at a limit.

-- name: last_runs
select job_id, scheduled_for, slot, cause, state, reason, first_started_at, started_at, finished_at
from bellringer.last_runs($1, $2, $3, $4, $5, $6)

-- name: last_successes
-- Among the newest $3 attempts of each job.
select given.id as job_id, max(attempt.scheduled_for) as at from unnest($2::uuid[]) given (id)
cross join lateral bellringer.last_attempts($1, given.id, $3) attempt
where attempt.ends_as = 'succeeded'
group by given.id

-- name: known
select j.job_id from unnest($2::uuid[]) u (id)
cross join lateral (
  select job_id from jobs j where j.job_id = u.id and j.tenant_id + 0 = $1 and j.deleted_at is null offset 0) j

-- name: last_attempts
select scheduled_for, attempt, outcome, ends_as, started_at, finished_at from bellringer.last_attempts($1, $2, $3)

-- name: attempt_statistics
select at, attempts, retries, failed, durations, lateness from bellringer.attempt_statistics($1, $2, $3, $4, $5)

-- name: gaps
-- The newest gaps that begin before ($3, $4, $5) and not before $2.
select from_at, to_at, schedule_id, count, reason, into_at from gaps
where job_id = $1 and from_at >= $2 and from_at <= $3 and (from_at, to_at, schedule_id) < ($3, $4, $5)
order by from_at desc, to_at desc, schedule_id desc limit $6

-- name: skips
-- Upcoming skips, latest first.
select at, who, reason from skips
where job_id = $1 and tenant_id + 0 = $2 and at >= greatest($3, bellringer.now()) and at < $4
order by at desc limit $5

-- name: daily_counts
select day, runs, failed from bellringer.daily_run_counts($1, $2, $3, $4)

-- name: gap_days
select (from_at at time zone 'UTC')::date as day, sum(coalesce(count, 1))::bigint as count
from (
  select from_at, count from gaps
  where job_id = $1 and from_at >= $2 and from_at < $3
  order by from_at desc limit $4) gap
group by 1

-- name: missed
-- Occurrences of a job in [$3, $4) that got a run, and those that were missed: they got no run, or their run had not
-- started by its deadline. Both are counted up to $5 rows. A run that a freeze or a user skipped is not an expected
-- one, and gaps of a pause are not missed.
with created as (
  select exists (
           select from attempts attempt
           where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
             and attempt.ends_as = 'skipped' and attempt.error ->> 'reason' = 'expired' offset 0) as has_expired
  from (
    select run.job_id, run.scheduled_for, run.slot from runs run
    where run.job_id = $1 and run.tenant_id + 0 = $2 and run.scheduled_for >= $3 and run.scheduled_for < $4
      and run.slot = 0 and run.initial_state <> 'skipped' limit $5) run)
select (select count(*) from created where not has_expired) as fired,
       coalesce(sum(gap.count), 0)::bigint + (select count(*) from created where has_expired) as missed,
       count(*) filter (where gap.count is null) as uncounted, count(*) as gaps
from (
  select count from gaps
  where job_id = $1 and from_at >= $3 and from_at < $4 and reason = 'misfire' limit $5) gap

-- name: skip
select bellringer.skip($1, $2, $3, $4, $5, $6)

-- name: unskip
select bellringer.unskip($1, $2, $3)

-- name: upcoming_skips
-- Upcoming skips, earliest first.
select job_id, at, who, reason, made_at from skips
where job_id = $1 and tenant_id = $2 and at > coalesce($3, bellringer.now())
order by at limit $4
