-- Capacity: how many more runs of a pool or a tenant may start. Each bound is counted under an advisory lock that is
-- held to the end of the claim, because two claims at once would count the same free place. The lock is tried: a claim
-- that does not get it takes nothing there, and its worker claims again soon.

-- How many more runs of a pool may start now; 0 while it is paused.
create or replace function pool_capacity(p_pool smallint) returns integer language plpgsql as $$
declare
  pool     pools;
  capacity double precision := 2147483647;
begin
  select * from pools where pool_id = p_pool into pool;
  if pool.paused_at is not null then
    return 0;
  end if;
  if pool.concurrency is null and pool.rate is null then
    return capacity;
  end if;
  if not pg_try_advisory_xact_lock(LOCK_POOL, p_pool) then
    return 0;
  end if;
  select * from pools where pool_id = p_pool into pool;
  if pool.concurrency is not null then
    capacity := pool.concurrency - count_running(pool);
  end if;
  if pool.rate is not null then
    capacity := least(capacity, floor(rate_credit(pool)));
  end if;
  return greatest(0, capacity);
end $$;

-- How many runs of a pool are running: held by workers, or sent to a broker. Holders are found by a skip scan; of
-- workers that do not serve the pool, no further row is read.
create or replace function count_running(p_pool pools) returns bigint
language sql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
  with recursive holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holder.worker_id order by run.worker_id limit 1)
    from holders holder where holder.worker_id is not null)
  select (select count(*) from holders holder
          cross join lateral (
            select from workers worker
            where worker.worker_id = holder.worker_id and worker.pools ? p_pool.name offset 0) serves_pool
          cross join lateral (
            select from queue run
            where run.worker_id = holder.worker_id and run.pool_id = p_pool.pool_id offset 0) running)
       + (select count(*) from queue sent
          where sent.worker_id is null and sent.blocked & SENT = SENT and sent.pool_id = p_pool.pool_id)
$$;

-- How many starts a pool with a rate has saved up: at most one second's worth, and room for at least one.
create or replace function rate_credit(p_pool pools) returns double precision
language sql set search_path = bellringer, pg_temp as $$
  select coalesce(
    min(least(greatest(p_pool.rate, 1),
              spent.credit + p_pool.rate * greatest(0, extract(epoch from clock_timestamp() - spent.at)))),
    greatest(p_pool.rate, 1))
  from pool_rates spent where spent.pool_id = p_pool.pool_id
$$;

-- Takes started runs off the credit of a pool that has a rate.
create or replace function charge_rate(p_pool smallint, p_started integer) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
begin
  if exists (select from pools where pool_id = p_pool and rate is not null) then
    insert into pool_rates (pool_id, credit, at)
    select pool.pool_id, rate_credit(pool) - p_started, clock_timestamp() from pools pool
    where pool.pool_id = p_pool and pool.rate is not null
    on conflict (pool_id) do update set credit = excluded.credit, at = excluded.at;
  end if;
end $$;

-- The quota for running runs of a tenant; null: it has none. A quota may be larger than an integer.
create or replace function tenant_cap(p_quotas jsonb) returns integer language sql immutable parallel safe as $$
  select case when p_quotas ->> 'in_flight' is not null
              then least((p_quotas ->> 'in_flight')::numeric, 2147483647)::integer end
$$;

-- How many more runs each candidate may have running; null: it has no cap; 0: another claim holds the tenant's lock.
-- Running runs are counted under that lock and in a new statement. Nothing is counted for tenants without a cap.
create or replace function tenant_capacities(p_candidates claim_candidate[]) returns integer[] language plpgsql as $$
declare
  locked boolean[] := array(
    select candidate.cap is not null and pg_try_advisory_xact_lock(LOCK_TENANT_CAP, candidate.tenant_id)
    from unnest(p_candidates) with ordinality candidate (tenant_id, weight, cap, place) order by candidate.place);
begin
  return array(
    with recursive holders (worker_id) as (
      (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
      union all
      select (select run.worker_id from queue run where run.worker_id > holder.worker_id order by run.worker_id limit 1)
      from holders holder
      where holder.worker_id is not null)
    select case when candidate.cap is null then null when not locked[candidate.place] then 0
                else greatest(0,
                              candidate.cap
                                - (
                                  select count(*)
                                  from (
                                    select from holders holder
                                    cross join lateral (
                                      select from queue run
                                      where run.worker_id = holder.worker_id and run.tenant_id = candidate.tenant_id
                                      limit greatest(candidate.cap, 0)) held
                                    union all
                                    select from pools pool
                                    cross join lateral (
                                      select from queue run
                                      where run.pool_id = pool.pool_id and run.tenant_id = candidate.tenant_id
                                        and run.worker_id is null and run.blocked & SENT = SENT
                                      limit greatest(candidate.cap, 0)) sent
                                    limit greatest(candidate.cap, 0)) running))::integer end
    from unnest(p_candidates)
    with ordinality candidate (tenant_id, weight, cap, place)
    order by candidate.place);
end $$;

-- Splits p_room by weight into whole numbers that add up to p_room. Fractions are rounded by chance, so that each share
-- is right on average: shares are the whole steps of one running sum that starts at a random fraction.
create or replace function weighted_shares(p_weights double precision[], p_room integer) returns integer[]
language plpgsql as $$
declare
  shares  integer[] := array_fill(0, array[cardinality(p_weights)]);
  total   double precision := (select sum(weight) from unnest(p_weights) weight);
  reached double precision := random();
  below   double precision;
begin
  for place in 1..cardinality(p_weights) loop
    below := floor(reached);
    reached := reached + p_weights[place] * p_room / total;
    shares[place] := floor(reached) - below;
  end loop;
  return shares;
end $$;
