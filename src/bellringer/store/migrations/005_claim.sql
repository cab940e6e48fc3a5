-- Claim: a worker takes ready runs of one pool, a share per (tenant, priority), starting after the tenant that was
-- served last. Lanes with ready work are found by a skip-scan over the ready index, so tenants without work cost nothing.
set local search_path to bellringer;

create function claim(p_worker integer, p_pool smallint, p_tasks integer[], p_limit integer, p_share integer, p_after integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  lap   integer;
  low   integer := p_after;                              -- an index condition; with an OR over laps it would be a filter
  high  integer := 2147483647;
  room  integer := p_limit;
  got   integer;
begin
  for lap in 0..1 loop                                   -- the tenants behind p_after, then those up to it
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
        order by q.available_at limit p_share for update skip locked) p
      where l.tenant_id <= high
      limit room),
    taken as (
      update queue q set worker_id = p_worker, attempt = q.attempt + 1, claimed_at = bellringer.now()
      where q.ctid = any (array(select ctid from picks))
      returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.attempt_floor, q.task_id, q.tenant_id, q.claimed_at, q.spec)
    select t.job_id, t.scheduled_for, t.slot, t.attempt, t.attempt_floor, t.task_id, t.tenant_id, t.claimed_at,
           j.name, coalesce(t.spec, j.spec)
    from taken t left join jobs j on j.job_id = t.job_id;
    get diagnostics got = row_count;
    room := room - got;
    exit when room = 0 or p_after < 0;
    low := -1; high := p_after;
  end loop;
end $$;
