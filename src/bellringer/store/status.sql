-- name: runs
-- Runs of one day ($5 to $6) by their keys, each with its attempts. Each look-up is a lateral one by the whole key behind a fence, and
-- no tenant is a bare condition, so that no other index fits, however small the tables were when the plan was made and kept (see
-- store.lookups); days that are not asked for are left out when it starts.
select k.job_id, k.scheduled_for, k.slot, j.name as job,
       (select t.name from tasks t where t.task_id = coalesce(r.task_id, m.task_id)) as task,
       (select p.name from pools p where p.pool_id = coalesce(r.pool_id, m.pool_id)) as pool,
       coalesce(r.priority, m.priority) as priority, coalesce(r.cause, m.cause)::text as cause, coalesce(r.reason, '') as reason,
       r.fired_at, r.token, coalesce(r.revision, m.revision) as revision, coalesce(r.spec, m.spec, j.spec) as spec,
       q.available_at, q.attempt as queue_attempt, q.worker_id, q.claimed_at, q.blocked, q.cancel_requested, q.progress,
       m.due_at, m.attempt as timer_attempt, case when r.cause = 'schedule' then j.jitter_by end as jitter_by, r.of_slot,
       (select array_agg(o.slot order by o.slot) from runs o
        where o.job_id = k.job_id and o.scheduled_for = k.scheduled_for and o.of_slot = k.slot
          and o.scheduled_for >= $5 and o.scheduled_for <= $6) as replays,
       (select json_agg(json_build_object(
          'attempt', a.attempt, 'outcome', a.outcome, 'ends_as', a.ends_as, 'started_at', a.started_at, 'finished_at', a.finished_at,
          'worker_id', a.worker_id, 'worker', (select w.name from workers w where w.worker_id = a.worker_id),
          'revision', a.revision, 'error', a.error, 'result', a.result) order by a.finished_at, a.attempt)
        from attempts a
        where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot
          and a.scheduled_for >= $5 and a.scheduled_for <= $6) as attempts
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) k (job_id, scheduled_for, slot)
left join lateral (
  select * from runs r where r.job_id = k.job_id and r.scheduled_for = k.scheduled_for and r.slot = k.slot and r.tenant_id + 0 = $4
    and r.scheduled_for >= $5 and r.scheduled_for <= $6 offset 0) r on true
left join lateral (
  select * from queue q where q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot
    and q.tenant_id + 0 = $4 offset 0) q on true
left join lateral (
  select * from timers m where m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot
    and m.tenant_id + 0 = $4 offset 0) m on true
left join lateral (select * from jobs j where j.job_id = k.job_id offset 0) j on true
where r.job_id is not null or m.job_id is not null

-- name: resting
-- Jobs of which nothing is under way, still to be caught up, or due within $3, nor their pause over: no tick and no worker moves
-- what is told of them meanwhile.
select j.job_id from unnest($1::uuid[]) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
where j.tenant_id = $2 and j.deleted_at is null and (j.paused_until is null or j.paused_until > bellringer.now() + $3::interval)
  and not exists (select 1 from queue q where q.job_id = j.job_id offset 0)
  and not exists (select 1 from timers m where m.job_id = j.job_id and m.due_at <= bellringer.now() + $3::interval offset 0)
  and not exists (select 1 from unnest(j.schedule_ids) i (schedule_id)
                  cross join lateral (select c.next_at from cohorts c where c.shard = j.shard and c.schedule_id = i.schedule_id offset 0) c
                  where c.next_at <= bellringer.now() + $3::interval)
  and not exists (select 1 from backfills b where b.job_id = j.job_id and b.state in ('running', 'paused') offset 0)
