-- Runs that are sent through a broker.

-- name: send
-- A claim without a worker: the same runs in the same order. The row without job_id is the position of the next claim.
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, revision, name, spec, background,
       available_at, after_tenant, share_left, tenants_visited
from bellringer.claim(null, $1, $2, $3, $4, $5, $6, $7)

-- name: resend
select job_id, scheduled_for, slot, attempt, attempt_floor, task_id, tenant_id, revision, name, spec, background,
       available_at
from bellringer.resend($1, $2, $3)

-- name: unsend
select bellringer.unsend($1, $2, $3, $4, $5)

-- name: take
select job_id, scheduled_for, slot, attempt, claimed_at, revision from bellringer.take($1, $2, $3, $4, $5, $6)

-- name: specs
select run.job_id, run.scheduled_for, run.slot, run.task_id, job.name,
       bellringer.claimed_spec(coalesce(run.spec, job.spec), run.expires_at) as spec
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) given (job_id, at, slot)
join queue run on run.job_id = given.job_id and run.scheduled_for = given.at and run.slot = given.slot
  and run.worker_id + 0 = $1
left join jobs job on job.job_id = run.job_id

-- name: broker_pools
-- The pools that workers serve through a broker, with their slots and the tasks that these workers know.
select pool.pool_id, pool.name as pool, sum((worker.pools ->> pool.name)::int)::int as slots,
       array_agg(worker.worker_id) as workers,
       array(
         select distinct task_id from workers peer, unnest(peer.task_ids) task_id
         where peer.state = 'live' and peer.asked is null and peer.dispatch = $1 and peer.pools ? pool.name
         order by 1) as task_ids
from workers worker
join pools pool on worker.pools ? pool.name
where worker.state = 'live' and worker.asked is null and worker.dispatch = $1 and pool.paused_at is null
group by pool.pool_id, pool.name
order by pool.pool_id

-- name: load
-- The number of runs of a pool that the broker has, of those sent within $4, and of those that workers hold.
select counts.sent, counts.fresh,
       (select count(*) from queue run where run.worker_id = any ($2::int[]) and run.pool_id + 0 = $1)::int as held
from (
  select count(*)::int as sent, count(*) filter (where sent_at > clock_timestamp() - $4::interval)::int as fresh
  from (
    select sent_at from queue run
    where run.pool_id = $1 and run.worker_id is null and run.blocked & SENT = SENT limit $3) run) counts

-- name: pools_with_sent_runs
-- Pools with sent runs.
select p.pool_id from pools p
where exists (select 1 from queue q where q.pool_id = p.pool_id and q.worker_id is null and q.blocked & SENT = SENT)

-- name: quarantine
insert into quarantine (topic, partition, message_offset, problem, message)
select * from unnest($1::text[], $2::int[], $3::bigint[], $4::text[], $5::bytea[])
on conflict do nothing

-- name: prune_quarantine
delete from quarantine
where ctid = any (array(select ctid from quarantine where at < clock_timestamp() - interval '7 days' limit 1000))
