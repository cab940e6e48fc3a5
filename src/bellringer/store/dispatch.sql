-- Dispatch by a broker: what is to be sent, what is out, and who may take it.

-- name: send
-- As a claim without a worker: the same runs in the same order. The last row is no run: it says where the next one is to begin.
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, revision, name, spec, behind, available_at,
       after, rest, walked
from bellringer.claim(null, $1, $2, $3, $4, $5, $6, $7)

-- name: resend
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, revision, name, spec, behind, available_at
from bellringer.resend($1, $2, $3)

-- name: unsend
select bellringer.unsend($1, $2, $3, $4, $5)

-- name: take
select job_id, scheduled_for, slot, attempt, claimed_at, revision from bellringer.take($1, $2, $3, $4, $5, $6)

-- name: specs
select q.job_id, q.scheduled_for, q.slot, q.task_id, j.name, coalesce(q.spec, j.spec) as spec
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) m (job_id, at, slot)
join queue q on q.job_id = m.job_id and q.scheduled_for = m.at and q.slot = m.slot and q.worker_id + 0 = $1
left join jobs j on j.job_id = q.job_id

-- name: lanes
-- The pools that workers serve by a broker, with their seats and what they know.
select p.pool_id, p.name as pool, sum((w.pools ->> p.name)::int)::int as slots, array_agg(w.worker_id) as workers,
       array(select distinct t from workers k, unnest(k.task_ids) t
             where k.state = 'live' and k.asked is null and k.dispatch = $1 and k.pools ? p.name order by 1) as task_ids
from workers w join pools p on w.pools ? p.name
where w.state = 'live' and w.asked is null and w.dispatch = $1 and p.paused_at is null
group by p.pool_id, p.name order by p.pool_id

-- name: load
-- How much of a pool is with the broker, how much of that since a moment ago, and how much is with its workers.
select s.sent, s.fresh,
       (select count(*) from queue q where q.worker_id = any ($2::int[]) and q.pool_id + 0 = $1)::int as held
from (select count(*)::int as sent, count(*) filter (where sent_at > clock_timestamp() - $4::interval)::int as fresh
      from (select sent_at from queue q where q.pool_id = $1 and q.worker_id is null and q.blocked & 64 = 64 limit $3) o) s

-- name: out
-- The pools of which something is out.
select p.pool_id from pools p
where exists (select 1 from queue q where q.pool_id = p.pool_id and q.worker_id is null and q.blocked & 64 = 64)

-- name: set_aside
insert into quarantine (topic, part, place, problem, message)
select * from unnest($1::text[], $2::int[], $3::bigint[], $4::text[], $5::bytea[])
on conflict do nothing

-- name: forget_aside
delete from quarantine where ctid = any (array(
  select ctid from quarantine where at < clock_timestamp() - interval '7 days' limit 1000))

-- name: aside
select topic, part, place, at, problem, message from quarantine order by at desc limit $1
