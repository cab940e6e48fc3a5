-- What became of jobs' occurrences. Every read goes by a job's key and stops at a limit.

-- name: last_runs
select job_id, scheduled_for, slot, cause, state, reason, first_started_at, started_at, finished_at
from bellringer.last_runs($1, $2, $3, $4, $5, $6)

-- name: last_successes
-- Each among the newest $3 attempts.
select u.id as job_id, max(a.scheduled_for) as at from unnest($2::uuid[]) u (id)
cross join lateral bellringer.last_tries($1, u.id, $3) a where a.ends_as = 'succeeded' group by u.id

-- name: known
select j.job_id from unnest($2::uuid[]) u (id) cross join lateral (
  select job_id from jobs j where j.job_id = u.id and j.tenant_id + 0 = $1 and j.deleted_at is null offset 0) j

-- name: last_tries
select scheduled_for, attempt, outcome, ends_as, started_at, finished_at from bellringer.last_tries($1, $2, $3)

-- name: gaps
-- The newest that begin before ($3, $4, $5), from $2 on.
select from_at, to_at, schedule_id, count, reason, into_at from gaps
where job_id = $1 and from_at >= $2 and from_at <= $3 and (from_at, to_at, schedule_id) < ($3, $4, $5)
order by from_at desc, to_at desc, schedule_id desc limit $6

-- name: skips
-- Those to come, the farthest first.
select at, who, reason from skips
where job_id = $1 and tenant_id + 0 = $2 and at >= greatest($3, bellringer.now()) and at < $4 order by at desc limit $5

-- name: days
select day, runs, failed from bellringer.days_of($1, $2, $3, $4)

-- name: gap_days
select (from_at at time zone 'UTC')::date as day, sum(coalesce(count, 1))::bigint as count from (
  select from_at, count from gaps where job_id = $1 and from_at >= $2 and from_at < $3 order by from_at desc limit $4) g
group by 1
