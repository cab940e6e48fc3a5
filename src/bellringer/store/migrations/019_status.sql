-- Reads of the status of runs, many at once by their keys, all of one day (p_from to p_to). The plan is made once for all arguments:
-- to make it costs ten times as much as to run it. Each look-up is a lateral one by the whole key behind a fence, and no tenant is a
-- bare condition, so that no other index fits, however small the tables were when it was made; days that are not asked for are
-- left out when it starts.
set local search_path to bellringer;

create function status_of(e_job uuid[], e_at timestamptz[], e_slot bigint[], p_tenant integer, p_from timestamptz, p_to timestamptz)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, job text, task text, pool text, priority smallint, cause text, reason text,
               fired_at timestamptz, token bigint, revision integer, spec jsonb, available_at timestamptz, queue_attempt integer,
               worker_id integer, claimed_at timestamptz, blocked smallint, cancel_requested boolean, progress jsonb, due_at timestamptz,
               timer_attempt integer, ends_as text, finished_at timestamptz, result jsonb, error jsonb, last_attempt integer,
               last_started_at timestamptz, first_started_at timestamptz, jitter_by interval, of_slot bigint, replays bigint[])
language plpgsql stable security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  perform own(p_tenant);
  return query
  select k.job_id, k.scheduled_for, k.slot, j.name as job, t.name as task, p.name as pool,
         coalesce(r.priority, m.priority) as priority, coalesce(r.cause, m.cause)::text as cause, coalesce(r.reason, '') as reason,
         r.fired_at, r.token, coalesce(r.revision, m.revision) as revision, coalesce(r.spec, m.spec, j.spec) as spec,
         q.available_at, q.attempt as queue_attempt, q.worker_id, q.claimed_at, q.blocked, q.cancel_requested, q.progress,
         m.due_at, m.attempt as timer_attempt, e.ends_as::text as ends_as, e.finished_at, e.result, e.error,
         e.attempt as last_attempt, e.started_at as last_started_at, f.first_started_at,
         case when r.cause = 'schedule' then j.jitter_by end as jitter_by, r.of_slot,
         (select array_agg(o.slot order by o.slot) from runs o
          where o.job_id = k.job_id and o.scheduled_for = k.scheduled_for and o.of_slot = k.slot
            and o.scheduled_for >= p_from and o.scheduled_for < p_to) as replays
  from unnest(e_job, e_at, e_slot) k (job_id, scheduled_for, slot)
  left join lateral (
    select * from runs r where r.job_id = k.job_id and r.scheduled_for = k.scheduled_for and r.slot = k.slot and r.tenant_id + 0 = p_tenant
      and r.scheduled_for >= p_from and r.scheduled_for < p_to offset 0) r on true
  left join lateral (
    select * from queue q where q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot and q.tenant_id + 0 = p_tenant offset 0) q on true
  left join lateral (
    select * from timers m where m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot and m.tenant_id + 0 = p_tenant offset 0) m on true
  left join lateral (select * from jobs j where j.job_id = k.job_id offset 0) j on true
  left join tasks t on t.task_id = coalesce(r.task_id, m.task_id)
  left join pools p on p.pool_id = coalesce(r.pool_id, m.pool_id)
  left join lateral (
    select a.ends_as, a.finished_at, a.result, a.error, a.attempt, a.started_at from attempts a
    where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot and a.ends_as is not null
      and a.scheduled_for >= p_from and a.scheduled_for < p_to
    order by a.finished_at desc, a.attempt desc limit 1) e on true
  left join lateral (
    select min(a.started_at) as first_started_at from attempts a
    where a.job_id = k.job_id and a.scheduled_for = k.scheduled_for and a.slot = k.slot
      and a.scheduled_for >= p_from and a.scheduled_for < p_to) f on true
  where r.job_id is not null or m.job_id is not null;
end $$;

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
