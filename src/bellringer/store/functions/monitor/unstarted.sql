-- Ready runs that wait long because their pool has no live worker, or only workers without a free slot.

-- The run of a tenant that waits longest in a pool for a worker, of those that a claim would take; no row if none
-- waits. Catch-ups and backfills, which may wait, and runs of paused tasks are left out. The first run of each priority
-- is read.
create or replace function longest_waiting(p_pool smallint, p_tenant integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, task_id integer, available_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  with recursive priorities (priority) as (              -- a skip scan downwards; the first row is above all priorities
    select 32768
    union all
    select (select ready.priority from queue ready
            where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = 0
              and ready.tenant_id = p_tenant and ready.priority < above.priority
            order by ready.priority desc limit 1)::integer
    from priorities above where above.priority >= 0)
  select run.job_id, run.scheduled_for, run.slot, run.task_id, run.available_at
  from priorities cross join lateral (
    select ready.job_id, ready.scheduled_for, ready.slot, ready.task_id, ready.available_at from queue ready
    where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = 0 and ready.tenant_id = p_tenant
      and ready.priority = priorities.priority
      and not exists (
        select from task_pauses pause where pause.tenant_id = p_tenant and pause.task_id = ready.task_id offset 0)
    order by ready.available_at limit 1) run
  where priorities.priority between 0 and 32767
  order by run.available_at limit 1;
end $$;

-- Writes an `unstarted` event for each tenant with a run that has been ready since before p_before in a pool that has
-- no live worker (reason no_worker), or only workers without a free slot (busy); and a `recovered` event once none of
-- its runs there has waited since before p_recovered. Between the two nothing is written for that tenant and pool.
-- Tenants are found by a skip scan, at most p_most of a pool, so the cost does not depend on the number of waiting
-- runs. Paused pools and suspended tenants are left out.
create or replace function report_unstarted(
  p_now timestamptz, p_before timestamptz, p_recovered timestamptz, p_most integer,
  out reported integer, out recovered integer)
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
begin
  with recursive served as materialized (
    select pool.pool_id, pool.name, count(worker.worker_id) as workers,
           coalesce(sum((worker.pools ->> pool.name)::integer), 0) as slots,
           slots_taken(pool.pool_id, array_agg(worker.worker_id)) as taken
    from pools pool
    left join workers worker on worker.state = 'live' and worker.pools ? pool.name
    where pool.paused_at is null
    group by pool.pool_id, pool.name),
  starved as materialized (
    select pool_id, name, case when workers = 0 then 'no_worker' else 'busy' end as reason
    from served where workers = 0 or taken >= slots),
  pairs (pool_id, tenant_id, n) as (
    select starved.pool_id, (
             select run.tenant_id from queue run
             where run.pool_id = starved.pool_id and run.worker_id is null and run.blocked = 0
             order by run.tenant_id limit 1), 1
    from starved
    union all
    select pairs.pool_id, (
             select run.tenant_id from queue run
             where run.pool_id = pairs.pool_id and run.worker_id is null and run.blocked = 0
               and run.tenant_id > pairs.tenant_id
             order by run.tenant_id limit 1), pairs.n + 1
    from pairs where pairs.tenant_id is not null and pairs.n < p_most),
  fresh as (
    insert into unserved_pools (tenant_id, pool_id, reason, since, job_id, scheduled_for, slot, task_id)
    select pairs.tenant_id, pairs.pool_id, starved.reason, waiting.available_at, waiting.job_id, waiting.scheduled_for,
           waiting.slot, waiting.task_id
    from pairs
    join starved on starved.pool_id = pairs.pool_id
    join tenants tenant on tenant.tenant_id = pairs.tenant_id and tenant.suspended_at is null
    cross join lateral longest_waiting(pairs.pool_id, pairs.tenant_id) waiting
    where waiting.available_at < p_before
    order by 1, 2 on conflict do nothing
    returning *),
  written as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, fresh.tenant_id, 'unstarted', fresh.job_id, fresh.scheduled_for, fresh.slot,
           jsonb_build_object('reason', fresh.reason, 'pool', pool.name, 'task', task.name, 'since', fresh.since)
    from fresh
    join pools pool on pool.pool_id = fresh.pool_id
    join tasks task on task.task_id = fresh.task_id
    order by fresh.job_id, fresh.scheduled_for, fresh.slot on conflict do nothing
    returning 1)
  select count(*) from written into reported;

  with resolved as (
    delete from unserved_pools unserved
    where not exists (
      select from longest_waiting(unserved.pool_id, unserved.tenant_id) waiting
      where waiting.available_at < p_recovered)
    returning unserved.*),
  written as (                                           -- runs that were cancelled have not recovered
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, resolved.tenant_id, 'recovered', resolved.job_id, resolved.scheduled_for, resolved.slot,
           jsonb_build_object('after', 'unstarted', 'since', resolved.since, 'pool', pool.name, 'task', task.name)
    from resolved
    join pools pool on pool.pool_id = resolved.pool_id
    join tasks task on task.task_id = resolved.task_id
    where exists (select from workers worker where worker.state = 'live' and worker.pools ? pool.name)
    order by resolved.job_id, resolved.scheduled_for, resolved.slot on conflict do nothing
    returning 1)
  select count(*) from written into recovered;
end $$;
