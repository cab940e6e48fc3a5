-- The queue: what is to be done now or soon, and who holds it.

-- name: claim
-- The last row is no run: it says where the next claim is to begin.
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, claimed_at, name, spec, behind, available_at,
       after, rest, walked
from bellringer.claim($1, $2, $3, $4, $5, $6, $7, $8)

-- name: settle
select bellringer.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: give_back
select bellringer.give_back($1, $2, $3, $4, $5)

-- name: held
-- What a vanished worker held, with how often each run was lost since its birth or its last death. Picked first: an
-- ORDER BY with a LIMIT tempts the planner to walk the whole primary key.
with held as materialized (select * from queue where worker_id = $1)
select q.job_id, q.scheduled_for, q.slot, q.attempt, q.attempt_floor, q.task_id, q.tenant_id, q.claimed_at, q.available_at,
       j.name, coalesce(q.spec, j.spec) as spec,
       extract(epoch from bellringer.now() - q.claimed_at)::float8 as ran,
       (select count(*) from attempts a where a.job_id = q.job_id and a.scheduled_for = q.scheduled_for and a.slot = q.slot
          and a.outcome = 'lost' and a.attempt > coalesce((
            select max(d.attempt) from attempts d where d.job_id = q.job_id and d.scheduled_for = q.scheduled_for
              and d.slot = q.slot and d.ends_as = 'dead'), 0)) as lost
from (select * from held order by job_id, scheduled_for, slot limit $2) q left join jobs j on j.job_id = q.job_id
order by q.job_id, q.scheduled_for, q.slot

-- name: cancels
select job_id, scheduled_for, slot, attempt from queue where worker_id = $1 and cancel_requested

-- name: report
update queue q set progress = u.progress::jsonb
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[], $5::integer[], $6::text[]) u (job_id, at, slot, attempt, progress)
where q.job_id = u.job_id and q.scheduled_for = u.at and q.slot = u.slot and q.worker_id + 0 = $1 and q.attempt = u.attempt

-- name: log
insert into logs (job_id, scheduled_for, slot, attempt, at, level, message, fields)
select job_id, scheduled_for, slot, attempt, at, level, message, fields::jsonb
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::text[], $7::text[], $8::text[])
  with ordinality u (job_id, scheduled_for, slot, attempt, at, level, message, fields, ord) order by ord

-- name: sweep
select bellringer.unpark($1) + bellringer.park($1)

-- name: decide
select bellringer.decide_overlaps($1)

-- name: thaw
select bellringer.thaw($1)

-- name: free_orphans
select o_at, o_job from bellringer.free_orphans($1, $2, $3)

-- name: rearm_orphans
select bellringer.rearm_orphans()

-- name: depths
select p.name as pool,
       count(*) filter (where q.worker_id is null and q.blocked & ~96 = 0 and q.available_at <= bellringer.now()) as ready,
       count(*) filter (where q.worker_id is not null or q.blocked & 128 = 128) as running,
       count(*) filter (where q.blocked & ~224 <> 0 and q.blocked & 128 = 0) as blocked
from pools p left join (select * from queue limit 200000) q on q.pool_id = p.pool_id group by p.name order by p.name
