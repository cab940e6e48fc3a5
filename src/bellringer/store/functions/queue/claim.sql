-- Claiming: a worker takes ready runs of one pool. With p_worker null the runs are sent to a broker instead: the same
-- runs in the same order are marked as sent, and count as running from then on (see broker.sql).
--
-- Guarantees  A run is given to one worker at a time. No pool, tenant, limit key or job exceeds its bound.
-- Order       Live runs before background runs (catch-ups and backfills: priority < 0); tenants by weight; inside a
--             tenant by priority, then by available_at.
-- Locks       In this order: pool, limit key, tenant (advisory), queue rows. Each is tried and never waited for, so
--             claims cannot deadlock; a lock that is taken means that another claim is using that capacity now.
-- Caller      Passes the position that it gets to its next claim. The response may be lost after the commit: a worker
--             compares the rows that it holds with those that it knows after each heartbeat, and returns the others.
-- Cost        Tenants and priorities are found by skip scans over indexes of ready rows, so tenants without work and
--             blocked runs cost nothing.

-- Claims at most p_limit runs. It visits at most p_tenants tenants, starting after p_after; the first of them is owed
-- p_share_left runs by the previous claim. Background runs are claimed last, and at most p_background of them.
create or replace function claim(
  p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer,
  p_after integer, p_share_left integer, p_background integer, p_tenants integer)
returns setof claim_result
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  room        integer;                                   -- how many runs may still be claimed
  claimed     integer;
  started     integer := 0;
  has_limited boolean;
  candidates  claim_candidate[];
  visited     integer := 0;
  last_tenant integer;
begin
  -- Step 1: what the worker and the pool allow.
  if p_worker is not null then
    perform require_live(p_worker);
  end if;
  room := least(p_limit, pool_capacity(p_pool));
  if room <= 0 then
    return next claim_position(p_after, p_share_left, 0);
    return;
  end if;

  -- Step 2: half of the room goes to runs that share a limit; where there is room for one run, chance decides.
  has_limited := exists (
    select from queue where pool_id = p_pool and worker_id is null and blocked = LIMITED);
  if has_limited then
    return query select * from claim_limited(
      p_worker, p_pool, p_tasks, case when room > 1 then room / 2 else floor(random() * 2)::integer end, false);
    get diagnostics claimed = row_count;
    room := room - claimed;
    started := started + claimed;
  end if;

  -- Step 3: live runs, shared among the tenants by weight. This step returns the position.
  if room > 0 then
    select array_agg((tenant.tenant_id, tenant.weight, tenant.cap)::claim_candidate)
             filter (where not tenant.suspended),
           count(*), (array_agg(tenant.tenant_id))[count(*)]
    from (select * from tenants_with_ready_runs(p_pool, p_after, p_tenants) order by place) tenant
    into candidates, visited, last_tenant;
    if candidates is null then
      return next claim_position(coalesce(last_tenant, -1), 0, visited);
    else
      return query select * from claim_shares(
        p_worker, p_pool, p_tasks, room, candidates, false,
        case when candidates[1].tenant_id = p_after + 1 then p_share_left else 0 end, last_tenant, visited);
      get diagnostics claimed = row_count;
      claimed := claimed - 1;
      room := room - claimed;
      started := started + claimed;
    end if;
  else
    return next claim_position(p_after, p_share_left, 0);
  end if;

  -- Step 4: more runs that share a limit.
  if has_limited and room > 0 then
    return query select * from claim_limited(p_worker, p_pool, p_tasks, room, false);
    get diagnostics claimed = row_count;
    room := room - claimed;
    started := started + claimed;
  end if;

  -- Step 5: background runs. A claim that visited fewer tenants than there may be takes none: the next claim visits
  -- 200, and may find live runs.
  room := case when visited = p_tenants and p_tenants < 200 then 0 else least(room, p_background) end;
  if room > 0 and exists (
    select from queue where pool_id = p_pool and worker_id is null and blocked = 0 and priority < 0
      and available_at <= bellringer.now())
  then
    return query select * from claim_shares(p_worker, p_pool, p_tasks, room, candidates, true, 0, 0, 0)
                 where job_id is not null;
    get diagnostics claimed = row_count;
    room := room - claimed;
    started := started + claimed;
  end if;
  if has_limited and room > 0 then
    return query select * from claim_limited(p_worker, p_pool, p_tasks, room, true);
    get diagnostics claimed = row_count;
    started := started + claimed;
  end if;

  -- Step 6: what was started counts against the pool's rate.
  if started > 0 then
    perform charge_rate(p_pool, started);
  end if;
end $$;

-- The row of a claim that is not a run. In PL/pgSQL, because a function in SQL would be planned by every claim: 50 µs.
create or replace function claim_position(p_after integer, p_share_left integer, p_visited integer) returns claim_result
language plpgsql immutable as $$
declare
  place claim_result;
begin
  place.after_tenant := p_after;
  place.share_left := p_share_left;
  place.tenants_visited := p_visited;
  return place;
end $$;

-- Tenants that have ready runs in a pool, at most p_most, in the order of their ids: from the first one after p_after
-- to the last one, then from the lowest up to p_after. Suspended tenants are returned too, so that the position passes
-- them.
create or replace function tenants_with_ready_runs(p_pool smallint, p_after integer, p_most integer)
returns table (place integer, tenant_id integer, weight double precision, cap integer, suspended boolean)
language plpgsql stable as $$
#variable_conflict use_column
begin
  return query
  -- One row per step; a step that finds no tenant begins the second lap.
  with recursive walk (step, lap, tenant_id, above, up_to) as (
    select 0, 0, null::integer, p_after, 2147483647
    union all
    select walk.step + 1, walk.lap + (next.tenant_id is null)::integer, next.tenant_id, coalesce(next.tenant_id, -1),
           case when next.tenant_id is null then p_after else walk.up_to end
    from walk cross join lateral (
      select (select ready.tenant_id from queue ready
              where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = 0
                and ready.tenant_id > walk.above and ready.tenant_id <= walk.up_to
              order by ready.tenant_id limit 1) as tenant_id
      offset 0) next
    where walk.lap < 2 and walk.step - walk.lap < p_most)
  select walk.step, tenant.tenant_id, tenant.weight::double precision, tenant_cap(tenant.quotas),
         tenant.suspended_at is not null
  from walk join tenants tenant on tenant.tenant_id = walk.tenant_id;
end $$;

-- Shares p_limit runs among the candidates by weight and claims them, in up to four rounds: a tenant that has less
-- ready work than its share takes no part in the next round, and in the last round everyone may take everything that is
-- left. Returns the runs and one row with the position. p_share_left is what the first candidate gets in the first
-- round (0: its share by weight).
create or replace function claim_shares(
  p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_candidates claim_candidate[],
  p_background boolean, p_share_left integer, p_last_tenant integer, p_visited integer)
returns setof claim_result language plpgsql as $$
declare
  room         integer := p_limit;
  after_tenant integer := p_last_tenant;
  share_left   integer := 0;
  tenant_ids   integer[] := array(select tenant_id from unnest(p_candidates));
  -- A weight of 0: the tenant gets no further share.
  weights      double precision[] := array(select weight from unnest(p_candidates));
  capacities   integer[];                                -- null: no tenant has a cap
  shares       integer[];
  row_ids      tid[];
  -- For each row id, the place of its tenant among the candidates.
  places       bigint[];
  taken        integer;
  last_place   integer;
begin
  if exists (select from unnest(p_candidates) where cap is not null) then
    capacities := tenant_capacities(p_candidates);
  end if;
  for round in 1..4 loop
    for i in 1..coalesce(cardinality(capacities), 0) loop
      if capacities[i] = 0 then weights[i] := 0; end if;
    end loop;
    exit when 0 = all (weights);

    -- Every tenant gets at least one run of the first round, even if the round is then cut off and goes on with the
    -- next claim.
    shares := case
      when round = 4 then array(select case when weight > 0 then room else 0 end from unnest(weights) weight)
      when round = 1 and not p_background
      then weighted_shares(weights, greatest(room, cardinality(array_remove(weights, 0))))
      else weighted_shares(weights, room) end;
    if round = 1 and p_share_left > 0 then
      shares[1] := p_share_left;
    end if;

    select array_agg(ready.row_id), array_agg(ready.place)
    from lock_ready_runs(p_pool, p_tasks, tenant_ids, shares, capacities, p_background, room) ready
    into row_ids, places;
    if row_ids is not null then
      return query select * from take_runs(p_worker, row_ids);
    end if;
    room := room - coalesce(cardinality(row_ids), 0);
    if room = 0 then
      -- The round is cut off: the next claim goes on with this tenant, or after it.
      if round = 1 and not p_background then
        last_place := places[cardinality(places)];
        share_left := shares[last_place] - cardinality(array_positions(places, last_place::bigint));
        after_tenant := tenant_ids[last_place] - (share_left > 0)::integer;
      end if;
      exit;
    end if;

    for i in 1..cardinality(tenant_ids) loop
      taken := coalesce(cardinality(array_positions(places, i::bigint)), 0);
      if taken < shares[i] then weights[i] := 0; end if;
      capacities[i] := capacities[i] - taken;
    end loop;
  end loop;
  return next claim_position(after_tenant, share_left, p_visited);
end $$;

-- Locks ready runs: of each tenant up to its share and its capacity, the highest priority first; at most p_limit.
-- `place` is the tenant's place in p_tenants.
create or replace function lock_ready_runs(
  p_pool smallint, p_tasks integer[], p_tenants integer[], p_shares integer[], p_capacities integer[],
  p_background boolean, p_limit integer)
returns table (row_id tid, place bigint) language plpgsql as $$
declare
  lowest     integer := case when p_background then -32768 else 0 end;
  highest    integer := case when p_background then -1 else 32767 end;
  has_pauses boolean := exists (select from task_pauses);
begin
  return query
  select picked.row_id, tenant.place
  from unnest(p_tenants, p_shares, p_capacities) with ordinality tenant (tenant_id, share, capacity, place)
  cross join lateral (
    with recursive priorities (priority) as (            -- a skip scan downwards; the first row is above all priorities
      select highest + 1
      union all
      select (select ready.priority from queue ready
              where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = 0
                and ready.tenant_id = tenant.tenant_id and ready.priority < above.priority
              order by ready.priority desc limit 1)::integer
      from priorities above where above.priority >= lowest)
    select run.row_id
    from priorities cross join lateral (
      select ready.ctid as row_id from queue ready
      where ready.pool_id = p_pool and ready.worker_id is null and ready.blocked = 0
        and ready.tenant_id = tenant.tenant_id and ready.priority = priorities.priority
        and ready.available_at <= bellringer.now() and ready.task_id = any (p_tasks)
        and not (has_pauses and exists (
          select from task_pauses pause
          where pause.tenant_id = ready.tenant_id and pause.task_id = ready.task_id and pause.resumed_at is null
            and (pause.until_at is null or pause.until_at > bellringer.now())))
      order by ready.available_at limit least(tenant.share, tenant.capacity) for update skip locked) run
    where priorities.priority between lowest and highest
    limit least(tenant.share, tenant.capacity)) picked
  where tenant.share > 0
  limit p_limit;
end $$;

-- Gives rows that this transaction has locked to a worker, as their next attempt; without a worker, marks them as sent.
create or replace function take_runs(p_worker integer, p_rows tid[]) returns setof claim_result language plpgsql as $$
begin
  if p_worker is not null then
    return query
    with taken as (
      update queue run
      set worker_id = p_worker, attempt = run.attempt + 1, claimed_at = bellringer.now(),
          sent_at = null, started_at = null
      where run.ctid = any (p_rows)
      returning run.*)
    select run.job_id, run.scheduled_for, run.slot, run.attempt, run.attempt_floor, run.task_id, run.tenant_id,
           run.claimed_at, job.name, claimed_spec(coalesce(run.spec, job.spec), run.expires_at), run.priority < 0,
           run.available_at, job.revision,
           null::integer, null::integer, null::integer
    from taken run left join jobs job on job.job_id = run.job_id;
  else
    return query
    with sent as (
      update queue run
      set blocked = run.blocked | SENT, sent_at = clock_timestamp(), claimed_at = null, started_at = null
      where run.ctid = any (p_rows)
      returning run.*)
    select run.job_id, run.scheduled_for, run.slot, run.attempt, run.attempt_floor, run.task_id, run.tenant_id,
           run.claimed_at, job.name, claimed_spec(coalesce(run.spec, job.spec), run.expires_at), run.priority < 0,
           run.available_at, job.revision,
           null::integer, null::integer, null::integer
    from sent run left join jobs job on job.job_id = run.job_id;
  end if;
end $$;

-- Raises BR006 unless the worker is live. No lock is taken: a worker that is declared lost right after this check does
-- not start what it claims, because it starts nothing after its own lease has run out, and the reaper returns the rows.
create or replace function require_live(p_worker integer) returns void
language plpgsql stable set search_path = bellringer, pg_temp as $$
begin
  if not exists (select 1 from workers w where w.worker_id = p_worker and w.state in ('live', 'draining')) then
    raise exception 'worker % is not live', p_worker using errcode = 'BR006';
  end if;
end $$;
