-- The status of many runs of one day.

-- name: runs
select * from bellringer.status_of($1, $2, $3, $4, $5, $6)

-- name: attempts
select k.job_id, k.scheduled_for, k.slot, a.attempt, a.outcome::text as outcome, a.ends_as::text as ends_as, a.started_at, a.finished_at,
       a.worker_id, w.name as worker, a.revision, a.error, a.result
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) k (job_id, scheduled_for, slot)
cross join lateral (
  select * from attempts a where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot
    and a.scheduled_for >= $4 and a.scheduled_for < $5 offset 0) a
left join workers w on w.worker_id = a.worker_id
order by a.finished_at, a.attempt
