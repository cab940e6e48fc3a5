-- Workers say that they live by their row; all of it by the real clock.

-- name: join
insert into workers (name, host, pid, version, pools, task_ids, dispatch, started_at, seen_at)
values ($1, $2, $3, $4, $5::jsonb, $6, $7, clock_timestamp(), clock_timestamp()) returning worker_id

-- name: beat
update workers set seen_at = clock_timestamp(), busy = $2, state = $3
where worker_id = $1 and state in ('live', 'draining') returning coalesce(asked, 'work')

-- name: ask
-- Who is to stop is not asked for less.
update workers set asked = case when asked = 'stop' then asked else $2 end
where worker_id = $1 and state in ('live', 'draining') returning worker_id

-- name: leave
update workers set state = 'stopped', busy = 0, seen_at = clock_timestamp() where worker_id = $1 and state <> 'lost'

-- name: lose
-- Declare lost whoever was silent for too long; those declared before and still holding work are named again.
update workers set state = 'lost' where state in ('live', 'draining') and seen_at < clock_timestamp() - $1::interval returning worker_id

-- name: indebted
select worker_id from bellringer.indebted() w (worker_id)

-- name: list
select worker_id, name, host, pid, version, pools, state, busy, asked, started_at, seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age,
       array(select t.name from tasks t where t.task_id = any (w.task_ids) order by 1) as tasks
from workers w where state in ('live', 'draining') or seen_at > clock_timestamp() - interval '1 hour'
order by (state in ('live', 'draining')) desc, worker_id desc limit 500

-- name: get
select worker_id, name, host, pid, version, pools, state, busy, asked, started_at, seen_at,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age,
       array(select t.name from tasks t where t.task_id = any (w.task_ids) order by 1) as tasks
from workers w where worker_id = $1

-- name: forget
delete from workers w where state in ('lost', 'stopped') and seen_at < clock_timestamp() - interval '7 days'
  and not exists (select 1 from queue q where q.worker_id = w.worker_id)
