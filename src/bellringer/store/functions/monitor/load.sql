-- The load of tenants and shards, and claims whose worker is silent; for metrics and for people during an incident.

-- Waiting, held and running runs of tenants. At most p_pairs pairs of tenant and pool with ready runs are found, by
-- skip scans, and at most p_most runs of each are counted. p_tenant: of this one only.
create or replace function tenant_loads(p_tenant integer, p_pairs integer, p_most integer)
returns table (tenant_id integer, tenant text, ready bigint, retrying bigint, running bigint, held bigint,
               oldest timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant) where p_tenant is not null;
  if p_tenant is null and nullif(current_setting('bellringer.tenant', true), '') is not null then
    raise insufficient_privilege using message = 'the load of other tenants is not visible';
  end if;
  return query
  with recursive pairs (pool_id, tenant_id, n) as (
    select pool.pool_id, coalesce(p_tenant, (
             select run.tenant_id from queue run
             where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked = 0
             order by run.tenant_id limit 1)), 1
    from pools pool
    union all
    select pairs.pool_id, (
             select run.tenant_id from queue run
             where run.pool_id = pairs.pool_id and run.worker_id is null and run.blocked = 0
               and run.tenant_id > pairs.tenant_id
             order by run.tenant_id limit 1), pairs.n + 1
    from pairs where pairs.tenant_id is not null and pairs.n < p_pairs and p_tenant is null),
  holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holder.worker_id order by run.worker_id limit 1)
    from holders holder where holder.worker_id is not null),
  seen as (
    select pairs.tenant_id, counted.ready, counted.retrying, 0::bigint as running, 0::bigint as held, counted.oldest
    from pairs cross join lateral (
      select count(*) filter (where run.attempt = 0 and run.available_at <= bellringer.now()) as ready,
             count(*) filter (where run.attempt > 0) as retrying,
             min(run.available_at) filter (where run.available_at <= bellringer.now()) as oldest
      from (
        select run.attempt, run.available_at from queue run
        where run.pool_id = pairs.pool_id and run.tenant_id = pairs.tenant_id and run.worker_id is null
          and run.blocked = 0
        limit p_most) run) counted
    where pairs.tenant_id is not null
    union all
    select run.tenant_id, 0, 0, count(*), 0, null
    from holders holder cross join lateral (
      select running.tenant_id from queue running
      where running.worker_id = holder.worker_id and (p_tenant is null or running.tenant_id = p_tenant)
      limit p_most) run
    group by run.tenant_id
    union all
    select run.tenant_id, 0, 0, 0, count(*), null
    from (
      select waiting.tenant_id from queue waiting
      where waiting.blocked & TASK_PAUSED = TASK_PAUSED and (p_tenant is null or waiting.tenant_id = p_tenant)
      limit p_most) run
    group by run.tenant_id)
  select seen.tenant_id, tenant.name, sum(seen.ready)::bigint, sum(seen.retrying)::bigint, sum(seen.running)::bigint,
         sum(seen.held)::bigint, min(seen.oldest)
  from seen join tenants tenant on tenant.tenant_id = seen.tenant_id
  group by seen.tenant_id, tenant.name
  order by 3 desc, 1;
end $$;

-- The load of each shard: occurrences a minute by the schedules of its jobs (as of the last recount, within about a
-- minute), and runs of the last p_span that are due. Of each tenant at most p_most runs are read.
create or replace function shard_loads(p_span interval, p_most integer)
returns table (shard smallint, due_per_minute double precision, fired bigint)
language sql stable set search_path = bellringer, pg_temp PLAN_BY_INDEX as $$
  with due as materialized (
    select size.shard, sum(size.members * schedule.fires_per_minute) as per_minute
    from cohort_sizes size join schedules schedule on schedule.schedule_id = size.schedule_id
    group by size.shard),
  recent as materialized (
    select run.shard, count(*) as fired from tenants tenant cross join lateral (
      select run.shard from runs run
      where run.tenant_id = tenant.tenant_id and run.scheduled_for > bellringer.now() - p_span
        and run.scheduled_for <= bellringer.now()
      limit p_most) run
    group by run.shard)
  select lease.shard, coalesce(due.per_minute, 0)::double precision, coalesce(recent.fired, 0)
  from leases lease
  left join due on due.shard = lease.shard
  left join recent on recent.shard = lease.shard
  order by lease.shard
$$;

-- The number of claimed runs whose worker has sent no heartbeat for p_after, or does not exist; at most p_most of each
-- worker are counted.
create or replace function count_silent_claims(p_after interval, p_most integer) returns bigint
language sql stable set search_path = bellringer, pg_temp PLAN_BY_INDEX as $$
  with recursive holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holder.worker_id order by run.worker_id limit 1)
    from holders holder where holder.worker_id is not null)
  select coalesce(sum(counted.claims), 0)::bigint
  from holders holder
  left join workers worker on worker.worker_id = holder.worker_id
  cross join lateral (
    select count(*) as claims
    from (select from queue run where run.worker_id = holder.worker_id limit p_most) run) counted
  where holder.worker_id is not null
    and (worker.worker_id is null or worker.state in ('lost', 'stopped')
         or worker.seen_at < clock_timestamp() - p_after)
$$;
