-- Claim: a worker takes ready runs of one pool. Lanes with ready work are found by skip-scans over indexes that hold only
-- what is ready, so tenants without work, and work that is held, cost nothing.
set local search_path to bellringer;

-- Runs that share a limit. A key is tried for, never waited for: who has it is claiming for it right now. Under its lock,
-- and in a new statement, what is under way is counted from the queue, so two claims never see the same free place.
create function claim_limited(p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_behind integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb, behind boolean, available_at timestamptz)
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  k      record;
  got    integer;
  room   integer := p_limit;
  places integer;
  spent  uuid[];                                         -- jobs that have come to their own limit
begin
  for k in
    with recursive bounds as materialized (
      select (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 order by q.key_id limit 1) as low,
             (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 order by q.key_id desc limit 1) as high),
    chance as materialized (                             -- from a place of chance on, so that no key is always last
      select low + floor(random() * (high - low + 1))::int as key_id from bounds where low is not null),
    start as materialized (
      select (select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                and q.key_id >= c.key_id order by q.key_id limit 1) as key_id
      from chance c),
    keys (key_id, n) as (
      select key_id, 1 from start
      union all
      select f.key_id, keys.n + 1 from keys cross join lateral (
        select coalesce((select q.key_id from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32
                           and q.key_id > keys.key_id order by q.key_id limit 1), (select low from bounds)) as key_id) f
      where keys.n < 200 and f.key_id <> (select key_id from start))
    select keys.key_id, l.most from keys join limits l on l.key_id = keys.key_id order by keys.n
  loop
    exit when room = 0;
    continue when not pg_try_advisory_xact_lock(78, k.key_id);
    select k.most - count(*) from queue r where r.key_id = k.key_id and r.worker_id is not null into places;
    while places > 0 and room > 0 loop                   -- again, where the best were of jobs that have come to their own limit
      spent := array(select r.job_id from queue r where r.key_id = k.key_id and r.worker_id is not null and r.cap is not null
                     group by r.job_id having count(*) >= min(r.cap));
      return query
      with best as materialized (
        select q.ctid as tid, q.job_id, q.cap, q.priority, q.available_at from queue q
        where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32 and q.key_id = k.key_id
          and q.available_at <= bellringer.now() and q.task_id = any (p_tasks) and (q.priority >= 0 or p_behind > 0)
          and q.job_id <> all (spent)
          and not exists (select 1 from tenants t where t.tenant_id = q.tenant_id and t.suspended_at is not null)
        order by q.priority desc, q.available_at limit least(places, room) for update skip locked),
      picks as materialized (
        select b.tid from (select *, row_number() over (partition by job_id order by priority desc, available_at) as nth from best) b
        where b.cap is null or b.nth <= b.cap - (
          select count(*) from queue r where r.key_id = k.key_id and r.job_id = b.job_id and r.worker_id is not null)),
      taken as (
        update queue u set worker_id = p_worker, attempt = u.attempt + 1, claimed_at = bellringer.now()
        where u.ctid = any (array(select tid from picks)) returning u.*)
      select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
             j.name, coalesce(t.spec, j.spec), t.priority < 0, t.available_at
      from taken t left join jobs j on j.job_id = t.job_id;
      get diagnostics got = row_count;
      exit when got = 0;
      places := places - got; room := room - got;
    end loop;
  end loop;
end $$;

-- A share per (tenant, priority), starting after the tenant that was served last; of runs that share a limit, half of the
-- room. When no live work is left, what runs behind it, p_behind at most: catch-ups and backfills have priorities below 0.
create function claim(p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_share integer, p_after integer,
                      p_behind integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb, behind boolean, available_at timestamptz)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  lap     integer;
  low     integer := p_after;                            -- an index condition; with an OR over laps it would be a filter
  high    integer := 2147483647;
  share   integer := p_share;
  room    integer := p_limit;
  got     integer;
  limited boolean := exists (select 1 from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 32);
  waits   boolean := p_behind > 0 and exists (
    select 1 from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.priority < 0
      and q.available_at <= bellringer.now());
begin
  if limited then                                        -- with room for one, chance says whose turn it is
    return query select * from claim_limited(p_worker, p_pool, p_tasks,
      case when room > 1 then room / 2 else floor(random() * 2)::int end, 0);
    get diagnostics got = row_count;
    room := room - got;
  end if;
  for lap in 0..2 loop                                   -- the tenants behind p_after, then those up to it; then all, once more
    exit when room = 0 or (lap = 2 and not (limited or waits));
    continue when lap = 1 and p_after < 0;
    if lap = 1 then low := -1; high := p_after; end if;
    if lap = 2 then low := -1; high := 2147483647; share := room; end if;
    return query
    with recursive lanes (tenant_id, priority) as (
      (select q.tenant_id, q.priority from queue q
       where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id > low
       order by q.tenant_id, q.priority desc limit 1)
      union all
      select n.tenant_id, n.priority from lanes l cross join lateral (
        (select q.tenant_id, q.priority from queue q
         where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id = l.tenant_id and q.priority < l.priority
         order by q.priority desc limit 1)
        union all
        (select q.tenant_id, q.priority from queue q
         where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id > l.tenant_id
         order by q.tenant_id, q.priority desc limit 1)
        limit 1) n
      where n.tenant_id <= high),
    picks as materialized (
      select p.ctid from lanes l cross join lateral (
        select q.ctid from queue q
        where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id = l.tenant_id and q.priority = l.priority
          and q.available_at <= bellringer.now() and q.task_id = any (p_tasks)
        order by q.available_at limit share for update skip locked) p
      where l.tenant_id <= high and l.priority >= 0
        and not exists (select 1 from tenants t where t.tenant_id = l.tenant_id and t.suspended_at is not null)
      limit room),
    taken as (
      update queue q set worker_id = p_worker, attempt = q.attempt + 1, claimed_at = bellringer.now()
      where q.ctid = any (array(select ctid from picks))
      returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.attempt_floor, q.task_id, q.tenant_id, q.claimed_at, q.spec,
                q.available_at)
    select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
           j.name, coalesce(t.spec, j.spec), false, t.available_at
    from taken t left join jobs j on j.job_id = t.job_id;
    get diagnostics got = row_count;
    room := room - got;
  end loop;
  if limited and room > 0 then
    return query select * from claim_limited(p_worker, p_pool, p_tasks, room, 0);
    get diagnostics got = row_count;
    room := room - got;
  end if;
  room := least(room, p_behind);
  if waits and room > 0 then
    return query
    with picks as materialized (
      select q.ctid from queue q
      where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.priority < 0
        and q.available_at <= bellringer.now() and q.task_id = any (p_tasks)
        and not exists (select 1 from tenants t where t.tenant_id = q.tenant_id and t.suspended_at is not null)
      order by q.available_at limit room for update skip locked),
    taken as (
      update queue q set worker_id = p_worker, attempt = q.attempt + 1, claimed_at = bellringer.now()
      where q.ctid = any (array(select ctid from picks))
      returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.attempt_floor, q.task_id, q.tenant_id, q.claimed_at, q.spec,
                q.available_at)
    select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
           j.name, coalesce(t.spec, j.spec), true, t.available_at
    from taken t left join jobs j on j.job_id = t.job_id;
    get diagnostics got = row_count;
    room := room - got;
  end if;
  if limited and room > 0 then
    return query select * from claim_limited(p_worker, p_pool, p_tasks, room, room);
  end if;
end $$;
