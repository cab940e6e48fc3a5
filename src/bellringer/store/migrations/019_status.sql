set local search_path to bellringer;

-- Since when the oldest run of a pool waits that only waits for a worker, found among the heads of 500 lines, each of one tenant and
-- priority; and among what a broker has, which is bounded.
create function oldest_waiting(p_pool smallint) returns timestamptz
language sql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with recursive lines (tenant_id, priority, at, n) as (
    (select q.tenant_id, q.priority, q.available_at, 1 from queue q
     where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0
     order by q.tenant_id, q.priority desc, q.available_at limit 1)
    union all
    select f.tenant_id, f.priority, f.available_at, l.n + 1 from lines l cross join lateral (
      (select q.tenant_id, q.priority, q.available_at from queue q
       where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id = l.tenant_id and q.priority < l.priority
       order by q.priority desc, q.available_at limit 1)
      union all
      (select q.tenant_id, q.priority, q.available_at from queue q
       where q.pool_id = p_pool and q.worker_id is null and q.blocked = 0 and q.tenant_id > l.tenant_id
       order by q.tenant_id, q.priority desc, q.available_at limit 1)
      limit 1) f
    where l.n < 500)
  select case when o.at <= bellringer.now() then o.at end from (
    select least((select min(l.at) from lines l), (
      select min(q.available_at) from queue q where q.pool_id = p_pool and q.worker_id is null and q.blocked & 64 = 64)) as at) o
$$;

-- How much each pool has to do, and who is there to do it. Ready is what only waits for a slot: what shares a limit may wait for that,
-- and more workers would not help it. Nor would they help what none of the workers knows. Ready and sent are counted up to 10,000.
create function signals()
returns table (pool text, ready bigint, sent bigint, busy bigint, oldest double precision, workers bigint, slots bigint, concurrency integer)
language sql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with live as materialized (select w.pools from workers w where w.state in ('live', 'draining')),
  held as materialized (select q.pool_id, count(*) as busy from queue q where q.worker_id is not null group by q.pool_id)
  select p.name,
         (select count(*) from (select 1 from queue q where q.pool_id = p.pool_id and q.worker_id is null and q.blocked = 0
            and q.available_at <= bellringer.now() limit 10000) r),
         (select count(*) from (select 1 from queue q where q.pool_id = p.pool_id and q.worker_id is null and q.blocked & 64 = 64
            limit 10000) r),
         coalesce(h.busy, 0), coalesce(extract(epoch from bellringer.now() - oldest_waiting(p.pool_id)), 0),
         (select count(*) from live l where l.pools ? p.name),
         (select coalesce(sum((l.pools ->> p.name)::int), 0) from live l where l.pools ? p.name), p.concurrency
  from pools p left join held h on h.pool_id = p.pool_id
  where p.declared or h.busy > 0 or (select true from live l where l.pools ? p.name limit 1)
     or (select true from queue q where q.pool_id = p.pool_id and q.worker_id is null and q.blocked = 0 limit 1)
  order by p.name limit 1000
$$;
