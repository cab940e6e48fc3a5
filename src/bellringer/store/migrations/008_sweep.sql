-- Sweeps: what no step does by the way. They run every few seconds over tables of any size, so their plans are pinned.
set local search_path to bellringer;

-- Ready runs whose task no live worker of their pool knows are set aside, so that claims need not step over them. Only
-- the head of each pool is looked at: that is where claims begin, and what lies behind comes to the head in its time. A
-- pool without a live worker has no claims to slow, so its runs stay where they are.
create function park(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare n integer;
begin
  with known as materialized (
    select distinct p.pool_id, t.task_id from workers w cross join unnest(w.task_ids) t (task_id)
    join pools p on w.pools ? p.name where w.state = 'live'),
  strange as materialized (
    select h.ctid from (select distinct pool_id from known) p cross join lateral (
      select q.ctid, q.task_id, q.available_at from queue q
      where q.pool_id = p.pool_id and q.worker_id is null and q.blocked = 0
      order by q.tenant_id, q.priority desc, q.available_at limit p_most) h
    where h.available_at <= bellringer.now() - interval '1 second'
      and not exists (select 1 from known k where k.pool_id = p.pool_id and k.task_id = h.task_id))
  update queue set blocked = blocked | 4
  where ctid = any (array(select ctid from strange)) and worker_id is null and blocked + 0 = 0;      -- not by the ready index
  get diagnostics n = row_count;
  return n;
end $$;

create function unpark(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare n integer;
begin
  with known as materialized (
    select distinct p.pool_id, t.task_id from workers w cross join unnest(w.task_ids) t (task_id)
    join pools p on w.pools ? p.name where w.state = 'live'),
  familiar as materialized (
    select q.ctid from queue q
    where q.blocked <> 0 and q.blocked & 4 = 4 and exists (select 1 from known k where k.pool_id = q.pool_id and k.task_id = q.task_id)
    limit p_most for update skip locked)
  update queue set blocked = blocked & ~4 where ctid = any (array(select ctid from familiar));
  get diagnostics n = row_count;
  return n;
end $$;

-- Jobs with a fixed delay that have neither a run under way nor a timer: something ended one without arming the next.
create function rearm_orphans() returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare n integer;
begin
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision, cause, rearms)
  select j.job_id, bellringer.now() + j.delay, 0, bellringer.now() + j.delay, j.shard, j.pool_id, j.priority, j.tenant_id, j.task_id,
         j.revision, 'schedule', true
  from jobs j where j.delay is not null and j.enabled and j.paused_at is null and j.deleted_at is null
    and j.updated_at < bellringer.now() - j.delay - interval '30 seconds'
    and (j.ends_at is null or j.ends_at >= bellringer.now() + j.delay)
    and not exists (select 1 from queue q where q.job_id = j.job_id and q.rearms)
    and not exists (select 1 from timers t where t.job_id = j.job_id and t.rearms)
  on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;

-- Workers that are gone and still hold runs.
create function indebted() returns setof integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return query select w.worker_id from workers w
  where w.state in ('lost', 'stopped') and exists (select 1 from queue q where q.worker_id = w.worker_id);
end $$;
