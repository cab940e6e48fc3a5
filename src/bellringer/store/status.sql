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

-- name: resting
-- Jobs of which nothing is under way, still to be caught up, or due within $3, nor their pause over: no tick and no worker moves
-- what is told of them meanwhile.
select j.job_id from unnest($1::uuid[]) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
where j.tenant_id = $2 and j.deleted_at is null and (j.paused_until is null or j.paused_until > bellringer.now() + $3::interval)
  and not exists (select 1 from queue q where q.job_id = j.job_id)
  and not exists (select 1 from timers m where m.job_id = j.job_id and m.due_at <= bellringer.now() + $3::interval)
  and not exists (select 1 from unnest(j.schedule_ids) i (schedule_id)
                  join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id where c.next_at <= bellringer.now() + $3::interval)
  and not exists (select 1 from backfills b where b.job_id = j.job_id and b.state in ('running', 'paused'))
