-- Workers and their heartbeats, by the server's real clock.

-- name: join
insert into workers (name, host, pid, version, pools, task_ids, dispatch, process, started_at, seen_at)
values ($1, $2, $3, $4, $5::jsonb, $6, $7, coalesce($8, gen_random_uuid()), clock_timestamp(), clock_timestamp())
returning worker_id

-- name: heartbeat
-- $4 confirms that the worker knew every row that it held at the previous heartbeat.
update workers set seen_at = clock_timestamp(), busy = $2, state = $3, confirmed_at = coalesce($4, confirmed_at)
where worker_id = $1 and state in ('live', 'draining')
returning coalesce(asked, 'work') as asked, bellringer.now() - $5::interval as settled_at

-- name: held_before
-- The rows that a worker claimed before a time; it must know each of them.
select job_id, scheduled_for, slot, attempt from queue where worker_id = $1 and claimed_at <= $2

-- name: ask
-- `stop` is never replaced by a weaker request.
update workers set asked = case when asked = 'stop' then asked else $2 end
where worker_id = $1 and state in ('live', 'draining')
returning worker_id

-- name: leave
update workers set state = 'stopped', busy = 0, seen_at = clock_timestamp() where worker_id = $1 and state <> 'lost'

-- name: declare_lost
-- Declares workers lost whose last heartbeat is too old.
update workers set state = 'lost' where state in ('live', 'draining') and seen_at < clock_timestamp() - $1::interval
returning worker_id

-- name: lost_with_runs
select worker_id from bellringer.lost_workers_with_runs() w (worker_id)

-- name: list
select worker_id, name, host, pid, version, pools, state, busy, asked, started_at, seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age,
       array(select task.name from tasks task where task.task_id = any (worker.task_ids) order by 1) as tasks
from workers worker
where state in ('live', 'draining') or seen_at > clock_timestamp() - interval '1 hour'
order by (state in ('live', 'draining')) desc, worker_id desc limit 500

-- name: get
select worker_id, name, host, pid, version, pools, state, busy, asked, started_at, seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age,
       array(select task.name from tasks task where task.task_id = any (worker.task_ids) order by 1) as tasks
from workers worker
where worker_id = $1

-- name: names
select worker_id, name from workers where worker_id = any ($1::int[])

-- name: forget
delete from workers w
where state in ('lost', 'stopped') and seen_at < clock_timestamp() - interval '7 days'
  and not exists (select 1 from queue q where q.worker_id = w.worker_id)
