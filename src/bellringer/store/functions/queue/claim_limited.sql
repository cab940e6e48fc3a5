-- Runs that share a limit: at most `limits.most` runs with the same key are running, and of each job at most its own
-- cap.
--
-- Guarantees  The bounds of keys, jobs and tenants hold: running runs are counted in a new statement while the advisory
--             lock of the key is held, so two claims never see the same free place.
-- Locks       Limit key, then tenant (advisory), then queue rows; each is tried and never waited for.

-- Claims at most p_limit runs that share a limit. In the first round each tenant gets an equal part, in the second
-- whatever is left. With p_background also those of priority < 0.
create or replace function claim_limited(
  p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_background boolean)
returns setof claim_result language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_INDEX as $$
declare
  candidate record;
  room      integer := p_limit;
  several   boolean := true;                             -- more than one tenant has such runs
  part      integer;
  places    integer;                                     -- how many runs of this key may still start
  served    integer[];                                   -- by place of the tenant: what it got in this round
  row_ids   tid[];
begin
  for round in 1..2 loop
    exit when room <= 0 or not several;
    served := '{}';
    for candidate in select * from limit_keys_with_ready_runs(p_pool) loop
      exit when room <= 0;
      several := candidate.tenants > 1;
      part := case round when 1 then greatest(1, p_limit / candidate.tenants) else p_limit end
            - coalesce(served[candidate.place], 0);
      continue when part <= 0 or not pg_try_advisory_xact_lock(LOCK_LIMIT, candidate.key_id);
      places := least(room, part, limit_capacity(candidate.key_id));
      if candidate.cap is not null then
        places := least(places,
                        (tenant_capacities(array[(candidate.tenant_id, 1, candidate.cap)::claim_candidate]))[1]);
      end if;
      -- Again, where the best runs were of jobs that have come to their own cap.
      while places > 0 loop
        row_ids := lock_limited_runs(p_pool, p_tasks, candidate.tenant_id, candidate.key_id, p_background, places);
        exit when row_ids = '{}';
        return query select * from take_runs(p_worker, row_ids);
        places := places - cardinality(row_ids);
        room := room - cardinality(row_ids);
        served[candidate.place] := coalesce(served[candidate.place], 0) + cardinality(row_ids);
      end loop;
    end loop;
  end loop;
end $$;

-- Limit keys with ready runs: the first key of each tenant, then the second of each, and so on; at most 200. Tenants
-- and keys start at a random one, so that none is always last.
create or replace function limit_keys_with_ready_runs(p_pool smallint)
returns table (key_id integer, tenant_id integer, place integer, cap integer, tenants integer)
language plpgsql volatile as $$
#variable_conflict use_column
begin
  return query
  with tenant as materialized (
    select *, count(*) over ()::integer as tenants from tenants_with_limited_runs(p_pool))
  select key.key_id, tenant.tenant_id, tenant.place, tenant_cap(owner.quotas), tenant.tenants
  from tenant
  cross join lateral limit_keys_of_tenant(p_pool, tenant.tenant_id, 200 / tenant.tenants) key
  join tenants owner on owner.tenant_id = tenant.tenant_id
  order by key.place, tenant.place;
end $$;

-- Tenants that have ready runs with a limit in a pool, and their place in the rotation.
create or replace function tenants_with_limited_runs(p_pool smallint) returns table (tenant_id integer, place integer)
language plpgsql volatile as $$
#variable_conflict use_column
begin
  return query
  with recursive bounds as materialized (
    select (select tenant_id from queue
            where pool_id = p_pool and worker_id is null and blocked = LIMITED
            order by tenant_id limit 1) as lowest,
           (select tenant_id from queue
            where pool_id = p_pool and worker_id is null and blocked = LIMITED
            order by tenant_id desc limit 1) as highest),
  chosen as materialized (
    select lowest + floor(random() * (highest - lowest + 1))::integer as tenant_id from bounds
    where lowest is not null),
  start as materialized (
    select (select limited.tenant_id from queue limited
            where limited.pool_id = p_pool and limited.worker_id is null and limited.blocked = LIMITED
              and limited.tenant_id >= chosen.tenant_id
            order by limited.tenant_id limit 1) as tenant_id
    from chosen),
  walk (tenant_id, place) as (                           -- upwards, then from the lowest up to the start
    select start.tenant_id, 1 from start
    union all
    select next.tenant_id, walk.place + 1
    from walk cross join lateral (
      select coalesce((select limited.tenant_id from queue limited
                       where limited.pool_id = p_pool and limited.worker_id is null and limited.blocked = LIMITED
                         and limited.tenant_id > walk.tenant_id
                       order by limited.tenant_id limit 1), (select lowest from bounds)) as tenant_id) next
    where walk.place < 200 and next.tenant_id <> (select start.tenant_id from start))
  select walk.tenant_id, walk.place from walk;
end $$;

-- The first p_most limits of which a tenant has ready runs in a pool, and their place in the rotation.
create or replace function limit_keys_of_tenant(p_pool smallint, p_tenant integer, p_most integer)
returns table (key_id integer, place integer) language plpgsql volatile as $$
#variable_conflict use_column
begin
  return query
  with recursive bounds as materialized (
    select (select key_id from queue
            where pool_id = p_pool and worker_id is null and blocked = LIMITED and tenant_id = p_tenant
            order by key_id limit 1) as lowest,
           (select key_id from queue
            where pool_id = p_pool and worker_id is null and blocked = LIMITED and tenant_id = p_tenant
            order by key_id desc limit 1) as highest),
  chosen as materialized (
    select lowest + floor(random() * (highest - lowest + 1))::integer as key_id from bounds where lowest is not null),
  start as materialized (
    select (select limited.key_id from queue limited
            where limited.pool_id = p_pool and limited.worker_id is null and limited.blocked = LIMITED
              and limited.tenant_id = p_tenant
              and limited.key_id >= chosen.key_id
            order by limited.key_id limit 1) as key_id
    from chosen),
  walk (key_id, place) as (
    select start.key_id, 1 from start
    union all
    select next.key_id, walk.place + 1
    from walk cross join lateral (
      select coalesce((select limited.key_id from queue limited
                       where limited.pool_id = p_pool and limited.worker_id is null and limited.blocked = LIMITED
                         and limited.tenant_id = p_tenant and limited.key_id > walk.key_id
                       order by limited.key_id limit 1), (select lowest from bounds)) as key_id) next
    where walk.place < p_most and next.key_id <> (select start.key_id from start))
  select walk.key_id, walk.place from walk;
end $$;

-- How many more runs with this key may start. The caller holds the lock of the key.
create or replace function limit_capacity(p_key integer) returns integer language plpgsql volatile as $$
begin
  return (select most from limits where key_id = p_key)
       - (select count(*) from queue where key_id = p_key and (worker_id is not null or blocked & UNDER_WAY <> 0));
end $$;

-- Locks ready runs of one tenant that share a limit: at most p_limit, and of each job no more than its own cap allows.
create or replace function lock_limited_runs(
  p_pool smallint, p_tasks integer[], p_tenant integer, p_key integer, p_background boolean, p_limit integer)
returns tid[] language plpgsql volatile as $$
declare
  has_pauses boolean := exists (select from task_pauses);
  full_jobs  uuid[] := array(
    select running.job_id from queue running
    where running.key_id = p_key and (running.worker_id is not null or running.blocked & UNDER_WAY <> 0)
      and running.cap is not null
    group by running.job_id having count(*) >= min(running.cap));
begin
  return array(
    with best as materialized (
      select ready.ctid as row_id, ready.job_id, ready.cap, ready.priority, ready.available_at from queue ready
      where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = LIMITED
        and ready.tenant_id = p_tenant and ready.key_id = p_key
        and ready.available_at <= bellringer.now() and ready.task_id = any (p_tasks)
        and (ready.priority >= 0 or p_background) and ready.job_id <> all (full_jobs)
        and not exists (select from tenants where tenant_id = p_tenant and suspended_at is not null)
        and not (has_pauses and exists (
          select from task_pauses pause
          where pause.tenant_id = ready.tenant_id and pause.task_id = ready.task_id and pause.resumed_at is null
            and (pause.until_at is null or pause.until_at > bellringer.now())))
      order by ready.priority desc, ready.available_at limit p_limit for update skip locked),
    ranked as (
      select *, row_number() over (partition by job_id order by priority desc, available_at) as nth_of_job from best)
    select ranked.row_id from ranked
    where ranked.cap is null or ranked.nth_of_job <= ranked.cap - (
      select count(*) from queue running
      where running.key_id = p_key and running.job_id = ranked.job_id
        and (running.worker_id is not null or running.blocked & UNDER_WAY <> 0)));
end $$;
