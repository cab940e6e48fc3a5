-- Pools of the installation. Every read uses a key or stops at a limit.

-- name: pools
-- Pools that are declared or have workers; with $3, also the names that tenants have made up. Ready runs are counted up
-- to 10,000.
with live as materialized (
  select worker.worker_id, worker.pools from workers worker where worker.state in ('live', 'draining')),
here as materialized (
  select pool.*, (select count(*) from live where live.pools ? pool.name) as workers,
         (select coalesce(sum((live.pools ->> pool.name)::int), 0) from live where live.pools ? pool.name) as slots
  from pools pool
  where ($1::text is null or pool.name = $1) and pool.name > $2)
select here.name, here.description, here.paused_at, here.paused_by, here.paused_reason, here.concurrency, here.rate,
       here.timeout, here.created_at, here.workers, here.slots,
       (select count(*) from queue run
        where run.pool_id = here.pool_id and run.worker_id = any (array(select live.worker_id from live))) as busy,
       (select count(*)
        from (
          select 1 from queue run
          where run.pool_id = here.pool_id and run.worker_id is null and run.blocked = 0
            and run.available_at <= bellringer.now() limit 10000) run)
         + (
           select count(*)
           from (
             select 1 from queue run
             where run.pool_id = here.pool_id and run.worker_id is null and run.blocked = LIMITED
               and run.available_at <= bellringer.now() limit 10000) run) as ready,
       extract(epoch from bellringer.now() - oldest.at)::float8 as oldest
from here
cross join lateral (select bellringer.oldest_waiting(here.pool_id) as at) oldest
where $3 or here.declared or here.workers > 0
order by here.name limit $4

-- name: store_pool
-- If the pool is already paused, paused_at and paused_by stay.
insert into pools as pool (name, declared, description, paused_at, paused_by, paused_reason, concurrency, rate, timeout)
values ($1, true, $2, case when $3 then bellringer.now() end, case when $3 then $4 end, case when $3 then $5 end, $6,
        $7, $8) on conflict (name) do update
set declared = true, description = $2, paused_at = case when $3 then coalesce(pool.paused_at, bellringer.now()) end,
    paused_by = case when $3 then coalesce(pool.paused_by, $4) end, paused_reason = case when $3 then $5 end,
    concurrency = $6, rate = $7, timeout = $8

-- name: signals
select pool, ready, sent, busy, oldest, workers, slots, concurrency, unknown, unknown_tasks, oldest_ready
from bellringer.pool_signals()

-- name: timeouts
select name, timeout from pools where name = any ($1::text[]) and timeout is not null

-- name: running_since
select job_id from bellringer.jobs_running_since($1, $2, $3) j (job_id)

-- name: learned
-- Jobs that were moved to the pool for long runs because of their durations, by id.
select j.job_id from jobs j
where j.learned_at is not null and j.deleted_at is null and j.job_id > $1
order by j.job_id limit $2

-- name: routed
select job_id, tenant_id, revision, is_long, served from bellringer.routed_of($1, $2, $3)

-- name: change_pool
select bellringer.change_pool($1, $2, $3, $4, $5, $6)
