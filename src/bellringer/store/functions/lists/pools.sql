-- The available_at of the oldest run of a pool that a worker could claim, among the first run of each tenant and
-- priority (at most 500 of these) and the runs that a broker has.
create or replace function oldest_ready(p_pool smallint) returns timestamptz
language sql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
  with recursive lines (tenant_id, priority, at, n) as (
    (select run.tenant_id, run.priority, run.available_at, 1 from queue run
     where run.pool_id = p_pool and run.worker_id is null and run.blocked = 0
     order by run.tenant_id, run.priority desc, run.available_at limit 1)
    union all
    select following.tenant_id, following.priority, following.available_at, lines.n + 1 from lines cross join lateral (
      (select run.tenant_id, run.priority, run.available_at from queue run
       where run.pool_id = p_pool and run.worker_id is null and run.blocked = 0 and run.tenant_id = lines.tenant_id
         and run.priority < lines.priority
       order by run.priority desc, run.available_at limit 1)
      union all
      (select run.tenant_id, run.priority, run.available_at from queue run
       where run.pool_id = p_pool and run.worker_id is null and run.blocked = 0 and run.tenant_id > lines.tenant_id
       order by run.tenant_id, run.priority desc, run.available_at limit 1)
      limit 1) following
    where lines.n < 500)
  select case when oldest.at <= bellringer.now() then oldest.at end from (
    select least((select min(lines.at) from lines), (
      select min(run.available_at) from queue run where run.pool_id = p_pool and run.worker_id is null
        and run.blocked & SENT = SENT)) as at) oldest
$$;

-- As oldest_ready, with parked runs included: an additional worker helps them only if it knows their task. The first
-- run of each tenant and task is read, of 500 at most.
create or replace function oldest_waiting(p_pool smallint) returns timestamptz
language sql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
  select least(oldest_ready(p_pool),
               (select min(run.available_at)
                from (select * from unknown_tasks unknown where unknown.pool_id = p_pool limit 500) unknown
                cross join lateral (
                  select run.available_at from queue run
                  where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN and run.tenant_id = unknown.tenant_id
                    and run.pool_id = unknown.pool_id and run.task_id = unknown.task_id
                  order by run.available_at limit 1) run))
$$;

-- The load and the workers of each pool, for metrics and autoscaling. `ready` counts runs that wait only for a slot. It
-- excludes runs that share a limit and runs whose task no worker knows (`unknown`), because more workers would not help
-- them. Counts stop at 10,000.
create or replace function pool_signals()
returns table (pool text, ready bigint, sent bigint, busy bigint, oldest double precision, workers bigint, slots bigint,
               concurrency integer, unknown bigint, unknown_tasks bigint, oldest_ready double precision)
language sql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
  with live as materialized (select worker.pools from workers worker where worker.state in ('live', 'draining')),
  held as materialized (
    select run.pool_id, count(*) as busy from queue run where run.worker_id is not null group by run.pool_id)
  select pool.name,
         (select count(*)
          from (
            select 1 from queue run
            where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked = 0
              and run.available_at <= bellringer.now() limit 10000) run),
         (select count(*)
          from (
            select 1 from queue run
            where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked & SENT = SENT limit 10000) run),
         coalesce(held.busy, 0), coalesce(extract(epoch from bellringer.now() - oldest_waiting(pool.pool_id)), 0),
         (select count(*) from live where live.pools ? pool.name),
         (select coalesce(sum((live.pools ->> pool.name)::int), 0) from live where live.pools ? pool.name),
         pool.concurrency,
         (select coalesce(sum(counted.many), 0)::bigint
          from (select * from unknown_tasks unknown where unknown.pool_id = pool.pool_id limit 500) unknown
          cross join lateral (
            select count(*) as many
            from (
              select 1 from queue run
              where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN and run.tenant_id = unknown.tenant_id
                and run.pool_id = unknown.pool_id and run.task_id = unknown.task_id limit 10000) run) counted),
         (select count(*) from unknown_tasks unknown where unknown.pool_id = pool.pool_id),
         coalesce(extract(epoch from bellringer.now() - oldest_ready(pool.pool_id)), 0)
  from pools pool
  left join held on held.pool_id = pool.pool_id
  where pool.declared or held.busy > 0
    or (select true from unknown_tasks unknown where unknown.pool_id = pool.pool_id limit 1)
    or (select true from live where live.pools ? pool.name limit 1)
    or (
      select true from queue run where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked = 0 limit 1)
  order by pool.name limit 1000
$$;

-- The number of runs in a pool that these workers hold, for `explain`: of other tenants' rows it returns only the
-- count.
create or replace function slots_taken(p_pool smallint, p_workers integer[]) returns bigint
language sql stable security definer set search_path = bellringer, pg_temp as
$$ select count(*) from queue q where q.pool_id = p_pool and q.worker_id = any (p_workers) $$;

-- The concurrency and rate of a pool, and their current use; no row if the pool has neither.
create or replace function pool_limits(p_pool smallint)
returns table (concurrency integer, under_way bigint, rate double precision, credit double precision)
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select pool.concurrency,
         case when pool.concurrency is not null then count_running(pool) end,
         pool.rate, case when pool.rate is not null then rate_credit(pool) end
  from pools pool where pool.pool_id = p_pool and (pool.concurrency is not null or pool.rate is not null)
$$;

-- The last 8 characters of the id of the node that holds a shard, for `explain`.
create or replace function scheduler_of(p_shard smallint) returns text
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select right(l.holder::text, 8) from leases l
  where l.shard = p_shard and l.holder is not null and l.expires_at > clock_timestamp()
$$;
