-- Claim: a worker takes ready runs of one pool. Lanes with ready work are found by skip-scans over indexes that hold only
-- what is ready, so tenants without work, and work that is held, cost nothing. Without a worker, the runs are sent: the same
-- ones in the same order are marked as sent to a broker, and count as under way from then on (see 020_dispatch.sql).
set local search_path to bellringer;

-- How many of a tenant's runs may be under way; null: it has no cap. A quota may be larger than what an integer holds.
create function cap_of(p_quotas jsonb) returns integer language sql immutable parallel safe as
$$ select case when p_quotas ->> 'in_flight' is not null then least((p_quotas ->> 'in_flight')::numeric, 2147483647)::integer end $$;

-- How many more runs each of these tenants may have under way; null: it has no cap. A tenant is tried for, never waited for:
-- who has it is claiming for it right now. What is under way is counted under its lock, in a new statement, from the holders'
-- index: a tenant without a cap costs nothing, and no index is kept for the others.
create function places_of(p_tenants integer[], p_caps integer[]) returns integer[]
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  locked boolean[] := array(
    select c.cap is not null and pg_try_advisory_xact_lock(80, c.tenant_id)
    from unnest(p_tenants, p_caps) with ordinality c (tenant_id, cap, n) order by c.n);
begin
  return array(
    with recursive holders (worker_id) as (
      (select q.worker_id from queue q where q.worker_id is not null order by q.worker_id limit 1)
      union all
      select (select q.worker_id from queue q where q.worker_id > h.worker_id order by q.worker_id limit 1)
      from holders h where h.worker_id is not null)
    select case when c.cap is null then null when not c.locked then 0 else greatest(0, c.cap - (
             select count(*) from (
               select 1 from holders h cross join lateral (
                 select 1 from queue q where q.worker_id = h.worker_id and q.tenant_id = c.tenant_id limit greatest(c.cap, 0)) r
               union all
               select 1 from pools p cross join lateral (
                 select 1 from queue q where q.pool_id = p.pool_id and q.tenant_id = c.tenant_id and q.worker_id is null
                   and q.blocked & 64 = 64 limit greatest(c.cap, 0)) s
               limit greatest(c.cap, 0)) under_way))::int end
    from unnest(p_tenants, p_caps, locked) with ordinality c (tenant_id, cap, locked, n) order by c.n);
end $$;

-- Runs that share a limit: an equal part for each tenant that has some, from a place of chance on, then whatever is left. A key is
-- tried for, never waited for: who has it is claiming for it right now. Under its lock, and in a new statement, what is under way
-- is counted from the queue, so two claims never see the same free place.
create function claim_limited(p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_behind integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb, behind boolean, available_at timestamptz, revision integer)
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  k      record;
  got    integer;
  room   integer := p_limit;
  places integer;
  others boolean := false;                               -- more than one tenant has such runs
  served integer[] := '{}';                              -- what each tenant got in this round
  spent  uuid[];                                         -- jobs that have come to their own limit
begin
  for round in 1..2 loop
    exit when room <= 0 or (round = 2 and not others);
    served := '{}';
    for k in
      with recursive bounds as materialized (
        select (select q.tenant_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 order by q.tenant_id limit 1) as low,
               (select q.tenant_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 order by q.tenant_id desc limit 1) as high),
      chance as materialized (                           -- from a place of chance on, so that no tenant is always last
        select low + floor(random() * (high - low + 1))::int as tenant_id from bounds where low is not null),
      start as materialized (
        select (select q.tenant_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                  and q.tenant_id >= c.tenant_id order by q.tenant_id limit 1) as tenant_id
        from chance c),
      walk (tenant_id, n) as (
        select tenant_id, 1 from start
        union all
        select f.tenant_id, walk.n + 1 from walk cross join lateral (
          select coalesce((select q.tenant_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                             and q.tenant_id > walk.tenant_id order by q.tenant_id limit 1), (select low from bounds)) as tenant_id) f
        where walk.n < 200 and f.tenant_id <> (select tenant_id from start)),
      sized as materialized (select w.*, count(*) over ()::int as tenants from walk w where w.tenant_id is not null)
      select keys.key_id, l.most, w.tenant_id, w.n as place, cap_of(t.quotas) as cap,
             case round when 1 then greatest(1, p_limit / w.tenants) else p_limit end as part, w.tenants
      from sized w cross join lateral (                  -- and in each tenant from a key of chance on
        with recursive bounds as materialized (
          select (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                    and q.tenant_id = w.tenant_id order by q.key_id limit 1) as low,
                 (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                    and q.tenant_id = w.tenant_id order by q.key_id desc limit 1) as high),
        chance as materialized (
          select low + floor(random() * (high - low + 1))::int as key_id from bounds where low is not null),
        start as materialized (
          select (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                    and q.tenant_id = w.tenant_id and q.key_id >= c.key_id order by q.key_id limit 1) as key_id
          from chance c),
        keys (key_id, n) as (
          select key_id, 1 from start
          union all
          select f.key_id, keys.n + 1 from keys cross join lateral (
            select coalesce((select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                               and q.tenant_id = w.tenant_id and q.key_id > keys.key_id order by q.key_id limit 1),
                            (select low from bounds)) as key_id) f
          where keys.n < 200 / w.tenants and f.key_id <> (select key_id from start))
        select key_id, n from keys) keys
      join limits l on l.key_id = keys.key_id join tenants t on t.tenant_id = w.tenant_id
      order by keys.n, w.n
    loop
      exit when room <= 0;
      others := k.tenants > 1;
      continue when coalesce(served[k.place], 0) >= k.part or not pg_try_advisory_xact_lock(78, k.key_id);
      select k.most - count(*) from queue r where r.key_id = k.key_id and (r.worker_id is not null or r.blocked & 192 <> 0) into places;
      if k.cap is not null then places := least(places, (places_of(array[k.tenant_id], array[k.cap]))[1]); end if;
      places := least(places, room, k.part - coalesce(served[k.place], 0));
      while places > 0 loop                              -- again, where the best were of jobs that have come to their own limit
        spent := array(select r.job_id from queue r where r.key_id = k.key_id and (r.worker_id is not null or r.blocked & 192 <> 0) and r.cap is not null
                       group by r.job_id having count(*) >= min(r.cap));
        return query
        with best as materialized (
          select q.ctid as tid, q.job_id, q.cap, q.priority, q.available_at from queue q
          where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 and q.tenant_id = k.tenant_id and q.key_id = k.key_id
            and q.available_at <= bellringer.now() and q.task_id = any (p_tasks) and (q.priority >= 0 or p_behind > 0)
            and q.job_id <> all (spent)
            and not exists (select 1 from tenants t where t.tenant_id = q.tenant_id and t.suspended_at is not null)
          order by q.priority desc, q.available_at limit places for update skip locked),
        picks as materialized (
          select b.tid from (select *, row_number() over (partition by job_id order by priority desc, available_at) as nth from best) b
          where b.cap is null or b.nth <= b.cap - (
            select count(*) from queue r where r.key_id = k.key_id and r.job_id = b.job_id and (r.worker_id is not null or r.blocked & 192 <> 0))),
        taken as (
          update queue u set worker_id = p_worker, attempt = u.attempt + (p_worker is not null)::int,
                 claimed_at = case when p_worker is not null then bellringer.now() end,
                 blocked = case when p_worker is null then u.blocked | 64 else u.blocked end,
                 sent_at = case when p_worker is null then clock_timestamp() end
          where u.ctid = any (array(select tid from picks)) returning u.*)
        select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
               j.name, coalesce(t.spec, j.spec), t.priority < 0, t.available_at, j.revision
        from taken t left join jobs j on j.job_id = t.job_id;
        get diagnostics got = row_count;
        exit when got = 0;
        places := places - got; room := room - got;
        served[k.place] := coalesce(served[k.place], 0) + got;
      end loop;
    end loop;
  end loop;
end $$;

-- How many runs of a pool are under way, on all workers and at a broker. Whoever holds something is found by one step in the index;
-- of those that do not serve the pool nothing more is read.
create function under_way(p pools) returns bigint
language sql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with recursive holders (worker_id) as (
    (select q.worker_id from queue q where q.worker_id is not null order by q.worker_id limit 1)
    union all
    select (select q.worker_id from queue q where q.worker_id > h.worker_id order by q.worker_id limit 1)
    from holders h where h.worker_id is not null)
  select (select count(*) from holders h
          cross join lateral (select 1 from workers w where w.worker_id = h.worker_id and w.pools ? p.name offset 0) s
          cross join lateral (select 1 from queue q where q.worker_id = h.worker_id and q.pool_id = p.pool_id offset 0) r)
       + (select count(*) from queue q where q.worker_id is null and q.blocked & 64 = 64 and q.pool_id = p.pool_id)
$$;

-- How many more runs of a pool may start now, by its own bounds. Two claims at once would see the same free place, so a pool with
-- bounds is claimed for by one at a time: who finds it taken gets nothing, and asks again soon. The lock lasts to the claim's end.
create function room_of(p_pool smallint) returns integer
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  p    pools;
  room double precision := 2147483647;
begin
  if not pg_try_advisory_xact_lock(88, p_pool) then return 0; end if;
  select * from pools where pool_id = p_pool into p;
  if p.concurrency is not null then
    room := p.concurrency - under_way(p);
  end if;
  if p.rate is not null then room := least(room, floor(credit_of(p))); end if;
  return greatest(0, room);
end $$;

-- How many starts a pool has saved up: at most a second's worth, and at least one.
create function credit_of(p pools) returns double precision language sql set search_path = bellringer, pg_temp as $$
  select coalesce(min(least(greatest(p.rate, 1), r.credit + p.rate * greatest(0, extract(epoch from clock_timestamp() - r.at)))),
                  greatest(p.rate, 1))
  from pool_rates r where r.pool_id = p.pool_id
$$;

-- What was started is taken off; who started nothing writes nothing.
create function spend_rate(p_pool smallint, p_started integer) returns void
language sql set search_path = bellringer, pg_temp as $$
  insert into pool_rates (pool_id, credit, at)
  select p.pool_id, credit_of(p) - p_started, clock_timestamp() from pools p
  where p.pool_id = p_pool and p.rate is not null and p_started > 0
  on conflict (pool_id) do update set credit = excluded.credit, at = excluded.at
$$;

-- A batch in parts by weight, which add up to what is shared out. A part that is no whole number is rounded by chance, so that
-- it is right in the mean: the parts are the steps of one running sum, which begins at a place of chance.
create function parts_of(p_weights double precision[], p_room integer) returns integer[] language plpgsql as $$
declare
  parts integer[] := array_fill(0, array[cardinality(p_weights)]);
  total double precision := 0;
  sum   double precision := random();
  below double precision;
  w     double precision;
begin
  foreach w in array p_weights loop total := total + w; end loop;
  for i in 1..cardinality(p_weights) loop
    below := floor(sum);
    sum := sum + p_weights[i] * p_room / total;
    parts[i] := floor(sum) - below;
  end loop;
  return parts;
end $$;

-- The tenants that have ready work, p_tenants at most, from the one behind p_after round to it, each found by one step in the
-- index; each gets its part by weight, inside it the highest priority goes first. Where there are more tenants than places, the
-- batch is the next piece of a round in which each has one in the mean: the last row says behind whom to go on, and how much the
-- tenant right there is still to get. What a tenant leaves is shared out among those that may have more.
-- Of runs that share a limit, half of the room. When no live work is left, what runs behind it, p_behind at most: catch-ups
-- and backfills have priorities below 0.
create function claim(p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_after integer, p_rest integer,
                      p_behind integer, p_tenants integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb, behind boolean, available_at timestamptz, revision integer,
               after integer, rest integer, walked integer)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  room    integer := p_limit;
  got     integer;
  steps   integer := 0;                                  -- tenants walked
  next_to integer := p_after;                            -- behind whom the next claim begins …
  owed    integer := p_rest;                             -- … and what the first one there has still to get
  ids     integer[];
  weights double precision[];
  hungry  double precision[];                            -- the weights of those that may have more
  caps    integer[];
  places  integer[];                                     -- what each may still take; null: as much as it likes
  parts   integer[];
  tids    tid[];
  served  bigint[];                                      -- to whom each of them went, as a place in ids
  low     integer := 0;                                  -- the priorities of this stage
  high    integer := 32767;
  paused  boolean;
  limited boolean := exists (select 1 from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32);
  bounded boolean;
  allowed integer;
begin
  select p.paused_at is not null, p.concurrency is not null or p.rate is not null from pools p where p.pool_id = p_pool
  into paused, bounded;
  if bounded and not paused then room := least(room, room_of(p_pool)); end if;
  if paused or room <= 0 then
    after := p_after; rest := p_rest; walked := 0;
    return next;
    return;
  end if;
  allowed := room;
  if limited then                                        -- with room for one, chance says whose turn it is
    return query select *, null::int, null::int, null::int from claim_limited(p_worker, p_pool, p_tasks,
      case when room > 1 then room / 2 else floor(random() * 2)::int end, 0);
    get diagnostics got = row_count;
    room := room - got;
  end if;
  if room > 0 then
    with recursive walk (n, lap, tenant_id, low, upto) as (      -- up to the last tenant, then from the first one up to p_after
      select 0, 0, null::int, p_after, 2147483647
      union all
      select w.n + 1, w.lap + (f.tenant_id is null)::int, f.tenant_id, coalesce(f.tenant_id, -1),
             case when f.tenant_id is null then p_after else w.upto end
      from walk w cross join lateral (select (
        select q.tenant_id from queue q
        where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id > w.low and q.tenant_id <= w.upto
        order by q.tenant_id limit 1) as tenant_id offset 0) f
      where w.lap < 2 and w.n - w.lap < p_tenants)
    select array_agg(c.tenant_id) filter (where c.serves), array_agg(c.weight) filter (where c.serves),
           array_agg(c.cap) filter (where c.serves), count(*), (array_agg(c.tenant_id))[count(*)]
    from (select w.tenant_id, t.weight, cap_of(t.quotas) as cap, t.suspended_at is null as serves
          from walk w join tenants t on t.tenant_id = w.tenant_id order by w.n) c
    into ids, weights, caps, steps, next_to;
    next_to := coalesce(next_to, -1); owed := 0;
  end if;
  for stage in 1..2 loop                                 -- live work, then what runs behind it
    if stage = 2 then
      if limited and room > 0 then
        return query select *, null::int, null::int, null::int from claim_limited(p_worker, p_pool, p_tasks, room, 0);
        get diagnostics got = row_count;
        room := room - got;
      end if;
      -- A short walk has not seen all tenants: before what runs behind is taken, the next claim looks farther for live work.
      allowed := allowed - room;                         -- what has started is always what was allowed without the room that is left
      room := case when steps = p_tenants and p_tenants < 200 then 0 else least(room, p_behind) end; low := -32768; high := -1;
      allowed := allowed + room;
      exit when room <= 0 or not exists (
        select 1 from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.priority < 0
          and q.available_at <= bellringer.now());
    end if;
    hungry := weights;
    if room > 0 and array_remove(caps, null) <> '{}' then places := places_of(ids, caps); end if;
    for pass in 1..4 loop
      exit when ids is null or room <= 0;
      for i in 1..coalesce(cardinality(places), 0) loop
        if places[i] = 0 then hungry[i] := 0; end if;
      end loop;
      exit when 0 = all (hungry);
      if pass < 4 then
        got := case when stage = 1 and pass = 1 then cardinality(array_remove(hungry, 0)) else 0 end;
        parts := parts_of(hungry, greatest(room, got));
      else                                               -- nothing shall be left while somebody has work
        for i in 1..cardinality(ids) loop parts[i] := case when hungry[i] > 0 then room else 0 end; end loop;
      end if;
      if stage = 1 and pass = 1 and p_rest > 0 and ids[1] = p_after + 1 then parts[1] := p_rest; end if;
      select array_agg(p.tid), array_agg(p.n) from (
        select r.tid, u.n
        from unnest(ids, parts, places) with ordinality u (tenant_id, part, place, n)
        cross join lateral (
          with recursive lanes (priority) as (
            select high + 1
            union all
            select (select q.priority from queue q
                    where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id = u.tenant_id
                      and q.priority < l.priority
                    order by q.priority desc limit 1)::int
            from lanes l where l.priority >= low)
          select r.tid from lanes l cross join lateral (
            select q.ctid as tid from queue q
            where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id = u.tenant_id
              and q.priority = l.priority and q.available_at <= bellringer.now() and q.task_id = any (p_tasks)
            order by q.available_at limit least(u.part, u.place) for update skip locked) r
          where l.priority between low and high limit least(u.part, u.place)) r
        where u.part > 0
        limit room) p into tids, served;
      if tids is not null then
        return query
        with taken as (
          update queue q set worker_id = p_worker, attempt = q.attempt + (p_worker is not null)::int,
                 claimed_at = case when p_worker is not null then bellringer.now() end,
                 blocked = case when p_worker is null then q.blocked | 64 else q.blocked end,
                 sent_at = case when p_worker is null then clock_timestamp() end
          where q.ctid = any (tids)
          returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.attempt_floor, q.task_id, q.tenant_id, q.claimed_at, q.spec,
                    q.available_at)
        select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
               j.name, coalesce(t.spec, j.spec), stage = 2, t.available_at, j.revision, null::int, null::int, null::int
        from taken t left join jobs j on j.job_id = t.job_id;
        room := room - cardinality(tids);
      end if;
      if room = 0 then
        if stage = 1 and pass = 1 then                   -- the round goes on with the next claim
          got := served[cardinality(served)];
          next_to := ids[got];
          owed := parts[got] - cardinality(array_positions(served, got::bigint));
          if owed > 0 then next_to := next_to - 1; end if;
        end if;
        exit;
      end if;
      for i in 1..cardinality(ids) loop
        got := coalesce(cardinality(array_positions(served, i::bigint)), 0);
        if got < parts[i] then hungry[i] := 0; end if;
        if places is not null then places[i] := places[i] - got; end if;
      end loop;
    end loop;
  end loop;
  if limited and room > 0 then
    return query select *, null::int, null::int, null::int from claim_limited(p_worker, p_pool, p_tasks, room, room);
    get diagnostics got = row_count;
    room := room - got;
  end if;
  if bounded then perform spend_rate(p_pool, allowed - room); end if;
  after := next_to; rest := owed; walked := steps;
  return next;
end $$;
