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
    where q.blocked = any (bits(4)) and q.blocked & ~224 <> 0 and exists (select 1 from known k where k.pool_id = q.pool_id and k.task_id = q.task_id)
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

-- Whether a run of a job is unfinished and before another: it waits for nothing, or is earlier. What a freeze holds is only
-- before what comes later.
create function is_before(o queue, q queue) returns boolean language sql immutable parallel safe as $$
  select (o.scheduled_for, o.slot) <> (q.scheduled_for, q.slot)
     and (o.blocked & 10 = 0 or (o.scheduled_for, o.slot) < (q.scheduled_for, q.slot))
$$;

-- Decide what becomes of runs whose time has come while an earlier run of their job is unfinished: skip ends them, collapse
-- lets one wait and ends the others, replace ends the earlier run, or asks it to stop, and waits. For a catch-up or a
-- backfill they only wait. What somebody is settling right now is passed over: he frees what waits.
create function decide_overlaps(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  u     record;
  n     integer := 0;
  skips tid[] := '{}';
begin
  for u in
    select q.ctid as tid, q.job_id, q.scheduled_for, q.slot, coalesce(j.overlap, 'allow') as overlap, b.preceded, b.live
    from queue q left join jobs j on j.job_id = q.job_id
    cross join lateral (
      select exists (select 1 from queue o where o.job_id = q.job_id and is_before(o, q)) as preceded,
             exists (select 1 from queue o where o.job_id = q.job_id and is_before(o, q)
                       and o.cause not in ('catchup', 'backfill')) as live) b
    where q.blocked = any (bits(16)) and q.blocked & ~224 <> 0 and q.available_at <= bellringer.now() and q.worker_id is null
    order by q.available_at, q.job_id limit p_most for update of q skip locked
  loop
    n := n + 1;
    if u.overlap = 'skip' and u.live then
      skips := skips || u.tid;
    elsif u.overlap = 'collapse' and u.live then
      perform collapse_overlapped(u.job_id, u.scheduled_for, u.slot);
    elsif u.overlap = 'replace' and u.live then
      perform replace_overlapped(u.job_id, u.scheduled_for, u.slot);
    else                                                 -- it waits for its turn; or nothing is before it any more
      update queue set blocked = blocked & case when u.overlap <> 'allow' and u.preceded then ~16 else ~18 end
      where job_id = u.job_id and scheduled_for = u.scheduled_for and slot = u.slot;
    end if;
  end loop;
  perform skip_overlapped(skips);
  return n;
end $$;

-- One that waits already stands for this one too.
create function collapse_overlapped(p_job uuid, p_at timestamptz, p_slot bigint) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  waits queue;
  gone  queue;
begin
  select * into waits from queue q where q.job_id = p_job and q.blocked & 2 = 2 and (q.scheduled_for, q.slot) < (p_at, p_slot)
  order by q.scheduled_for, q.slot limit 1;
  if not found then
    update queue set blocked = blocked & ~16 where job_id = p_job and scheduled_for = p_at and slot = p_slot;
    return;
  end if;
  delete from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot returning * into gone;
  if not found then return; end if;                      -- somebody else has decided on it meanwhile
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  values (p_job, p_at, p_slot, 0, bellringer.now(), gone.tenant_id, gone.revision, 'skipped',
          jsonb_build_object('reason', 'coalesced', 'run', jsonb_build_object('scheduled_for', waits.scheduled_for, 'slot', waits.slot)))
  on conflict do nothing;
end $$;

-- What waits before it ends at once, what runs is asked to stop; this one waits for that. A row that is locked is being
-- settled: then this one is decided at the next look, if it is not free by then.
create function replace_overlapped(p_job uuid, p_at timestamptz, p_slot bigint) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  before queue;
  seen   integer := 0;
begin
  for before in
    select * from queue q where q.job_id = p_job and (q.scheduled_for, q.slot) <> (p_at, p_slot)
      and (q.blocked & 10 = 0 or (q.scheduled_for, q.slot) < (p_at, p_slot)) and q.cause not in ('catchup', 'backfill')
    order by q.scheduled_for, q.slot for update skip locked
  loop
    seen := seen + 1;
    if before.worker_id is not null or before.blocked & 128 = 128 then
      update queue set cancel_requested = true
      where job_id = p_job and scheduled_for = before.scheduled_for and slot = before.slot and not cancel_requested;
    else
      delete from queue where job_id = p_job and scheduled_for = before.scheduled_for and slot = before.slot;
      insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as, error)
      values (p_job, before.scheduled_for, before.slot, 0, bellringer.now(), before.tenant_id, before.revision, 'cancelled', 'cancelled',
              jsonb_build_object('reason', 'replaced', 'run', jsonb_build_object('scheduled_for', p_at, 'slot', p_slot)))
      on conflict do nothing;
    end if;
  end loop;
  update queue q set blocked = case when exists (select 1 from queue o where o.job_id = p_job and o.blocked & 10 = 0)
                                    then q.blocked & ~16 else q.blocked & ~18 end
  where q.job_id = p_job and q.scheduled_for = p_at and q.slot = p_slot and seen > 0;
end $$;

-- Jobs whose runs wait though none is before them: two that ended together may each have seen the other. Answers how far
-- it came; nulls: it came to the end.
create function free_orphans(p_at timestamptz, p_job uuid, p_most integer, out o_at timestamptz, out o_job uuid)
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  jobs uuid[];
  ats  timestamptz[];
begin
  select array_agg(job_id), array_agg(available_at) into jobs, ats from (
    select job_id, available_at from queue
    where blocked & 2 = 2 and (available_at, job_id) > (p_at, p_job) and available_at <= bellringer.now()
    order by available_at, job_id limit p_most) w;
  perform free(jobs, '{}') where jobs is not null;
  if cardinality(jobs) = p_most then o_at := ats[p_most]; o_job := jobs[p_most]; end if;
end $$;

-- Let runs go that a freeze has held, once none covers the present; those of a job that does not overlap, one by one. What
-- is held on is looked at again when its freeze ends; who ends a freeze early rouses them.
create function thaw(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  n      integer;
  thawed uuid[];
begin
  with cold as materialized (
    select q.ctid as tid, q.job_id, q.cause, frozen_until(q.job_id, q.tenant_id, bellringer.now()) as til from queue q
    where q.blocked = any (bits(8)) and q.blocked & ~224 <> 0 and q.available_at <= bellringer.now()
    limit p_most for update skip locked),
  held as (
    update queue q set available_at = c.til + coalesce((
             select j.jitter_by from jobs j where j.job_id = c.job_id and c.cause = 'schedule'), interval '0')
    from cold c where q.ctid = c.tid and c.til is not null),
  warm as (
    update queue q set blocked = q.blocked & ~8 | coalesce((
             select case when j.overlap <> 'allow' then 2 else 0 end from jobs j where j.job_id = q.job_id), 0)
    where q.ctid = any (array(select tid from cold where til is null)) returning q.job_id)
  select count(*), array_agg(distinct job_id) from warm into n, thawed;
  perform free(thawed, '{}') where n > 0;
  return n;
end $$;

create function rouse(p_tenant integer) returns void
language plpgsql security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  perform own(p_tenant);
  update queue q set available_at = greatest(bellringer.now(), q.scheduled_for
           + coalesce((select j.jitter_by from jobs j where j.job_id = q.job_id and q.cause = 'schedule'), interval '0'))
  where q.blocked = any (bits(8)) and q.blocked & ~224 <> 0 and q.tenant_id + 0 = p_tenant and q.available_at > bellringer.now();
end $$;
