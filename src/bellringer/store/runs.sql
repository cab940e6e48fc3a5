-- name: send
select o_job_id as job_id, o_scheduled_for as scheduled_for, o_slot as slot, o_created as created
from bellringer.send($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10::text::cause)

-- name: trigger
select o_scheduled_for as scheduled_for, o_slot as slot from bellringer.trigger_job($1, $2, $3::jsonb)

-- name: cancel
select bellringer.cancel($1, $2, $3, $4, $5)

-- name: redrive
select bellringer.redrive($1, $2, $3, $4)

-- name: hasten
select bellringer.hasten($1, $2, $3, $4)

-- name: discard
select bellringer.discard($1, $2, $3, $4)

-- name: get
-- A run wherever it is: in history, in the queue, or still waiting for its time. A queue or timer row means that it
-- has not ended, whatever earlier attempts say.
with k as (select $1::uuid as job_id, $2::timestamptz as scheduled_for, $3::bigint as slot)
select k.job_id, k.scheduled_for, k.slot, j.name as job, t.name as task, p.name as pool,
       coalesce(r.priority, m.priority) as priority, coalesce(r.cause, m.cause)::text as cause, coalesce(r.reason, '') as reason,
       r.fired_at, r.token, coalesce(r.revision, m.revision) as revision, coalesce(r.spec, m.spec, j.spec) as spec,
       q.available_at, q.attempt as queue_attempt, q.worker_id, q.claimed_at, q.blocked, q.cancel_requested, q.progress,
       m.due_at, m.attempt as timer_attempt, e.ends_as::text as ends_as, e.finished_at, e.result, e.error,
       e.attempt as last_attempt, e.started_at as last_started_at, f.first_started_at,
       case when r.cause = 'schedule' then j.jitter_by end as jitter_by, r.of_slot,
       (select array_agg(o.slot order by o.slot) from runs o
        where o.job_id = k.job_id and o.scheduled_for = k.scheduled_for and o.of_slot = k.slot) as replays
from k
left join runs r on r.job_id = k.job_id and r.scheduled_for = k.scheduled_for and r.slot = k.slot and r.tenant_id + 0 = $4
left join queue q on q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot and q.tenant_id = $4
left join timers m on m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot and m.tenant_id = $4
left join jobs j on j.job_id = k.job_id
left join tasks t on t.task_id = coalesce(r.task_id, m.task_id)
left join pools p on p.pool_id = coalesce(r.pool_id, m.pool_id)
left join lateral (
  select a.ends_as, a.finished_at, a.result, a.error, a.attempt, a.started_at from attempts a
  where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot and a.ends_as is not null
  order by a.finished_at desc, a.attempt desc limit 1) e on true
left join lateral (
  select min(a.started_at) as first_started_at from attempts a
  where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot) f on true
where r.job_id is not null or m.job_id is not null

-- name: of_job
-- The newest runs of one job, those before ($3, $4) where it is given.
select r.job_id, r.scheduled_for, r.slot, j.name as job, t.name as task, p.name as pool, r.priority, r.cause::text as cause,
       coalesce(r.reason, '') as reason, r.fired_at, r.token, r.revision, null::jsonb as spec,
       q.available_at, q.attempt as queue_attempt, q.worker_id, q.claimed_at, q.blocked, q.cancel_requested, q.progress,
       m.due_at, m.attempt as timer_attempt, e.ends_as::text as ends_as, e.finished_at, null::jsonb as result, e.error,
       e.attempt as last_attempt, e.started_at as last_started_at, f.first_started_at,
       case when r.cause = 'schedule' then j.jitter_by end as jitter_by
from (select * from runs where job_id = $1 and tenant_id + 0 = $2     -- by its key, not by the tenant's index
        and ($3::timestamptz is null or (scheduled_for <= $3 and (scheduled_for, slot) < ($3, $4::bigint)))
      order by scheduled_for desc, slot desc limit $5) r
join tasks t on t.task_id = r.task_id join pools p on p.pool_id = r.pool_id left join jobs j on j.job_id = r.job_id
left join queue q on q.job_id = r.job_id and q.scheduled_for = r.scheduled_for and q.slot = r.slot
left join timers m on m.job_id = r.job_id and m.scheduled_for = r.scheduled_for and m.slot = r.slot
left join lateral (
  select a.ends_as, a.finished_at, a.error, a.attempt, a.started_at from attempts a
  where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot and a.ends_as is not null
  order by a.finished_at desc, a.attempt desc limit 1) e on true
left join lateral (
  select min(a.started_at) as first_started_at from attempts a
  where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot) f on true
order by r.scheduled_for desc, r.slot desc

-- name: replay
select o_slot as slot, o_state as state from bellringer.replay($1, $2, $3, $4, $5::jsonb, $6)

-- name: attempts
select a.attempt, a.outcome::text as outcome, a.ends_as::text as ends_as, a.started_at, a.finished_at, a.worker_id, w.name as worker,
       a.revision, a.error, a.result
from attempts a left join workers w on w.worker_id = a.worker_id
where a.job_id = $1 and a.scheduled_for = $2 and a.slot = $3 order by a.finished_at, a.attempt

-- name: dead
select d.job_id, d.scheduled_for, d.slot, j.name as job, t.name as task, d.attempt, d.died_at, d.reason, d.error, d.fingerprint
from dead_letters d join tasks t on t.task_id = d.task_id left join jobs j on j.job_id = d.job_id
where d.tenant_id = $1 and ($6::text is null or d.fingerprint = $6)
  and ($2::timestamptz is null or (d.died_at <= $2 and (d.died_at, d.job_id, d.scheduled_for, d.slot) < ($2, $3::uuid, $4::timestamptz, $5::bigint)))
order by d.died_at desc, d.job_id desc, d.scheduled_for desc, d.slot desc limit $7

-- name: dead_count
select t.name as task, count(*) as count from (select task_id from dead_letters limit 100000) d
join tasks t on t.task_id = d.task_id group by t.name
