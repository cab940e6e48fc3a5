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
-- Runs by their keys, in the order given, without what may be large: an error beyond 2 KiB is cut to its words. $5 and $6, the
-- first and the last instant among them, tell the planner which days are meant.
select k.job_id, k.scheduled_for, k.slot, j.name as job, t.name as task, p.name as pool,
       coalesce(r.priority, m.priority) as priority, coalesce(r.cause, m.cause)::text as cause, left(coalesce(r.reason, ''), 1000) as reason,
       r.fired_at, r.token, coalesce(r.revision, m.revision) as revision, null::jsonb as spec,
       q.available_at, q.attempt as queue_attempt, q.worker_id, q.claimed_at, q.blocked, q.cancel_requested,
       case when octet_length(q.progress::text) <= 2048 then q.progress end as progress,
       m.due_at, m.attempt as timer_attempt, e.ends_as::text as ends_as, e.finished_at, null::jsonb as result,
       case when e.error is null or octet_length(e.error::text) <= 2048 then e.error
            else jsonb_strip_nulls(jsonb_build_object('type', left(e.error ->> 'type', 200), 'message', left(e.error ->> 'message', 300),
                                                      'reason', left(e.error ->> 'reason', 300), 'cut', true)) end as error,
       e.attempt as last_attempt, e.started_at as last_started_at, f.first_started_at,
       case when r.cause = 'schedule' then j.jitter_by end as jitter_by
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) with ordinality k (job_id, scheduled_for, slot, nth)
left join lateral (select * from runs r where r.job_id = k.job_id and r.scheduled_for = k.scheduled_for and r.slot = k.slot
                     and r.tenant_id + 0 = $1 and r.scheduled_for between $5 and $6 offset 0) r on true
left join lateral (select * from queue q where q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot
                     and q.tenant_id + 0 = $1 offset 0) q on true
left join lateral (select * from timers m where m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot
                     and m.tenant_id + 0 = $1 offset 0) m on true
left join lateral (select * from jobs j where j.job_id = k.job_id and j.tenant_id + 0 = $1 offset 0) j on true
left join tasks t on t.task_id = coalesce(r.task_id, m.task_id)
left join pools p on p.pool_id = coalesce(r.pool_id, m.pool_id)
left join lateral (
  select a.ends_as, a.finished_at, a.error, a.attempt, a.started_at from attempts a
  where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot and a.ends_as is not null
    and a.scheduled_for between $5 and $6
  order by a.finished_at desc, a.attempt desc limit 1) e on true
left join lateral (
  select min(a.started_at) as first_started_at from attempts a
  where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot
    and a.scheduled_for between $5 and $6) f on true
where r.job_id is not null or m.job_id is not null order by k.nth

-- name: born_after
-- Which of these were born after $4.
select k.job_id, k.scheduled_for, k.slot from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) k (job_id, scheduled_for, slot)
where exists (select 1 from runs r where r.job_id = k.job_id and r.scheduled_for = k.scheduled_for and r.slot = k.slot
                and r.fired_at > $4 offset 0)

-- name: unfinished
-- Which of these have not ended.
select k.job_id, k.scheduled_for, k.slot from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) k (job_id, scheduled_for, slot)
where exists (select 1 from queue q where q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot offset 0)
   or exists (select 1 from timers m where m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot offset 0)
