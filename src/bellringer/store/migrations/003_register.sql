-- Register: create, edit, pause, resume and delete. Each is one call in autocommit, so a client that stops in the
-- middle holds no lock.
--
-- Why the shard's lock: a job that commits while its cohort fires would otherwise be seen by neither side. The tick
-- takes it exclusively, these take it shared, and each reads in a new statement after the lock, because under READ
-- COMMITTED the snapshot of a statement that waited is older than what it waited for.
set local search_path to bellringer;

create function lock_shards_shared(p_jobs uuid[], p_new smallint[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare s smallint;
begin
  perform 1 from jobs where job_id = any (p_jobs) order by job_id for update;
  for s in select shard from jobs where job_id = any (p_jobs) union select unnest(p_new) order by 1 loop
    perform pg_advisory_xact_lock_shared(77, s);
  end loop;
end $$;

-- Take jobs out of their cohorts. Where the hand is behind, what a job was owed up to now is not forgotten: its
-- oldest occurrence is born now, unless the job is deleted, and a gap records the rest. What the lead has born
-- ahead of its time goes, with its run: nobody was allowed to claim it yet.
create function leave(p_jobs uuid[], p_at timestamptz, p_reason text, p_owed boolean) returns void
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  perform ensure_days(array(
    select distinct day_of(c.next_at) from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
    join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id
    where j.job_id = any (p_jobs) and c.next_at <= p_at));

  with behind as materialized (
    -- Where the hand stands for this member: a jump under way has brought it to its goal already, or a fire under way
    -- has given it next_at.
    select m.*, h.at, h.got, greatest(h.at, m.active_since + interval '1 microsecond') as from_at
    from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
    join members m on m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id
    join cohorts c on c.shard = m.shard and c.schedule_id = m.schedule_id
    cross join lateral (select coalesce(m.job_id <= c.jump_cursor, false) as jumped) g
    cross join lateral (select case when g.jumped then c.jump_to else c.next_at end as at,
                               not g.jumped and coalesce(m.job_id <= c.cursor, false) as got) h
    where j.job_id = any (p_jobs) and h.at <= p_at and (m.active_until is null or m.active_until >= h.at)),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select distinct on (job_id, at) job_id, at, 0, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority,
           'schedule'::cause, 'queued'::run_state
    from behind where p_owed and not got and at > active_since on conflict do nothing returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause)
    select job_id, scheduled_for, 0, scheduled_for, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule' from born)
  insert into gaps (job_id, from_at, to_at, reason, into_at, recorded_at)
  select job_id, f.from_at, p_at + interval '1 microsecond', p_reason, f.into_at, p_at
  from behind b cross join lateral (
    select case when b.got or (p_owed and b.at > b.active_since) then b.at + interval '1 microsecond' else b.from_at end as from_at,
           case when p_owed and not b.got and b.at > b.active_since then b.at end as into_at) f
  where f.from_at <= p_at on conflict do nothing;

  delete from members m using jobs j cross join unnest(j.schedule_ids) i (schedule_id)
  where j.job_id = any (p_jobs) and m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id;

  with early as (
    delete from queue where job_id = any (p_jobs) and cause = 'schedule' and worker_id is null and attempt = 0
      and available_at > p_at
    returning job_id, scheduled_for, slot)
  delete from runs r using early e
  where r.job_id = e.job_id and r.scheduled_for = e.scheduled_for and r.slot = e.slot;

  perform ensure_days(array(                    -- a one-shot that nobody rang in time is owed as well
    select distinct day_of(scheduled_for) from timers
    where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0 and not rearms and due_at <= p_at));
  with due as (
    delete from timers where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0 and not rearms and due_at <= p_at
    returning *),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select job_id, scheduled_for, slot, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority, cause, 'queued'
    from due where p_owed on conflict do nothing returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause)
    select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, revision, shard, pool_id, priority, cause from born)
  insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
  select job_id, scheduled_for, scheduled_for + interval '1 microsecond', 1, p_reason, p_at from due where not p_owed
  on conflict do nothing;

  delete from timers where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0;
end $$;

-- Let active jobs join the cohorts of their schedules. h_*: each schedule's first instant after p_asof; k_*: all of
-- its instants in the seconds after that, from which a job gets those that a hand running ahead has passed already. A
-- one-shot may lie p_past behind: clocks differ, and requests travel.
create function enter(p_jobs uuid[], p_at timestamptz, p_past interval, h_schedule integer[], h_next timestamptz[],
                      k_schedule integer[], k_at timestamptz[]) returns void
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  insert into cohorts (shard, schedule_id, next_at)
  select distinct j.shard, h.schedule_id, h.next_at
  from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
  cross join lateral (select * from unnest(h_schedule, h_next) u (schedule_id, next_at) where u.schedule_id = i.schedule_id) h
  where j.job_id = any (p_jobs) and j.enabled and j.paused_at is null and j.deleted_at is null
  order by 1, 2
  on conflict do nothing;

  insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                       active_since, active_until)
  select j.shard, i.schedule_id, j.job_id, j.tenant_id, j.task_id, j.revision, j.pool_id, j.priority,
         0, case j.overlap when 'allow' then 0 else 1 end,
         greatest(p_at, j.starts_at - interval '1 microsecond'), j.ends_at
  from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
  where j.job_id = any (p_jobs) and j.enabled and j.paused_at is null and j.deleted_at is null;

  with born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select m.job_id, k.at, 0, p_at, 0, m.tenant_id, m.task_id, m.revision, m.shard, m.pool_id, m.priority, 'schedule', 'queued'
    from unnest(k_schedule, k_at) k (schedule_id, at)
    join cohorts c on c.schedule_id = k.schedule_id and c.shard in (select shard from jobs where job_id = any (p_jobs))
    join members m on m.shard = c.shard and m.schedule_id = c.schedule_id and m.job_id = any (p_jobs)
    where k.at > m.active_since and (m.active_until is null or m.active_until >= k.at)
      and (k.at < c.next_at or (k.at = c.next_at and m.job_id <= c.cursor))
    on conflict do nothing returning *)
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause)
  select job_id, scheduled_for, 0, scheduled_for, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule' from born;

  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision, cause, rearms)
  select j.job_id, w.at, 0, w.at, j.shard, j.pool_id, j.priority, j.tenant_id, j.task_id, j.revision, 'schedule', j.delay is not null
  from jobs j cross join lateral (
    select coalesce(j.once_at, case when j.delay is not null then greatest(p_at + j.delay, j.starts_at) end) as at) w
  where j.job_id = any (p_jobs) and j.enabled and j.paused_at is null and j.deleted_at is null
    and w.at > p_at - p_past and (j.ends_at is null or j.ends_at >= w.at)
    and not exists (select 1 from runs r where r.job_id = j.job_id and r.scheduled_for = w.at and r.slot = 0)
    and (j.delay is null or not exists (select 1 from queue q where q.job_id = j.job_id and q.rearms)
                        and not exists (select 1 from timers m where m.job_id = j.job_id and m.rearms))
  on conflict do nothing;
end $$;

create function definition_of(j jobs) returns jsonb language sql stable as
$$ select to_jsonb(j) - 'job_id' - 'created_at' - 'updated_at' - 'revision' $$;

-- p_asof is what the caller's instants were computed from. Should the locks have taken so long that a hand may have
-- passed beyond them, nothing is done and the caller computes anew.
create function check_fresh(p_asof timestamptz) returns void language plpgsql as $$
begin
  if clock_timestamp() - pg_catalog.now() + (bellringer.now() - p_asof) > interval '5 s' then
    raise exception 'instants are stale' using errcode = 'BR001';
  end if;
end $$;

create function register(p_jobs jsonb, p_asof timestamptz, p_who text, h_schedule integer[], h_next timestamptz[],
                         k_schedule integer[], k_at timestamptz[])
returns table (o_job_id uuid, o_revision integer, o_active_since timestamptz)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  ids   uuid[];
  old   uuid[];
  t     timestamptz;
  taken integer;
begin
  select array_agg((j ->> 'job_id')::uuid order by (j ->> 'job_id')::uuid),
         array_agg((j ->> 'job_id')::uuid) filter (where (j ->> 'expected')::int > 0)
    into ids, old from jsonb_array_elements(p_jobs) j;
  perform lock_shards_shared(coalesce(old, '{}'),
    array(select distinct (j ->> 'shard')::smallint from jsonb_array_elements(p_jobs) j));
  perform check_fresh(p_asof);
  t := bellringer.clock();
  if old is not null then
    perform leave(old, t, 'edited', true);
  end if;

  insert into jobs as o (job_id, tenant_id, shard, name, task_id, spec, schedules, schedule_ids, once_at, delay, pool_id,
                         priority, misfire, overlap, starts_at, ends_at, enabled, owner, tags, revision, created_at, updated_at)
  select n.job_id, n.tenant_id, n.shard, n.name, n.task_id, n.spec, n.schedules, n.schedule_ids, n.once_at,
         n.delay * interval '1 second', n.pool_id, n.priority, n.misfire, n.overlap, n.starts_at, n.ends_at, n.enabled,
         n.owner, n.tags, n.expected + 1, t, t
  from jsonb_to_recordset(p_jobs) n (job_id uuid, tenant_id integer, shard smallint, name text, task_id integer, spec jsonb,
       schedules jsonb, schedule_ids integer[], once_at timestamptz, delay double precision, pool_id smallint, priority smallint,
       misfire text, overlap text, starts_at timestamptz, ends_at timestamptz, enabled boolean, owner text, tags text[], expected integer)
  order by n.job_id
  on conflict (job_id) do update set
    name = excluded.name, task_id = excluded.task_id, spec = excluded.spec, schedules = excluded.schedules,
    schedule_ids = excluded.schedule_ids, once_at = excluded.once_at, delay = excluded.delay, pool_id = excluded.pool_id,
    priority = excluded.priority, misfire = excluded.misfire, overlap = excluded.overlap, starts_at = excluded.starts_at,
    ends_at = excluded.ends_at, enabled = excluded.enabled, owner = excluded.owner, tags = excluded.tags,
    revision = excluded.revision, updated_at = excluded.updated_at
  where o.revision = excluded.revision - 1 and o.tenant_id = excluded.tenant_id and o.deleted_at is null;
  get diagnostics taken = row_count;
  if taken < cardinality(ids) then
    raise exception 'a job was changed by someone else' using errcode = 'BR002';
  end if;

  if old is not null then                                -- what waits follows the change, its task and arguments together
    update queue q set task_id = j.task_id, revision = j.revision, pool_id = j.pool_id, priority = j.priority
    from jobs j where q.job_id = any (old) and j.job_id = q.job_id and q.spec is null and q.worker_id is null;
  end if;

  insert into job_revisions (job_id, revision, effective_at, what, who, definition)
  select j.job_id, j.revision, t, case j.revision when 1 then 'created' else 'changed' end, p_who, definition_of(j)
  from jobs j where j.job_id = any (ids);
  perform enter(ids, t, interval '1 minute', h_schedule, h_next, k_schedule, k_at);
  return query select j.job_id, j.revision, t from jobs j where j.job_id = any (ids) order by j.job_id;
end $$;

-- Pause holds what is due and unclaimed, retries too; nothing new fires until resume.
create function pause(p_job uuid, p_tenant integer, p_who text, p_reason text, p_until timestamptz) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform lock_shards_shared(array[p_job], '{}');
  t := bellringer.clock();
  perform leave(array[p_job], t, 'paused', true)
  from jobs where job_id = p_job and tenant_id = p_tenant and paused_at is null;
  update jobs set paused_at = coalesce(paused_at, t), paused_by = p_who, paused_reason = p_reason, paused_until = p_until,
                  revision = revision + 1, updated_at = t
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked | 1 where job_id = p_job and worker_id is null;
  insert into job_revisions (job_id, revision, effective_at, what, who, why, definition)
  select job_id, revision, t, 'paused', p_who, p_reason, definition_of(j) from jobs j where job_id = p_job;
  return r;
end $$;

create function resume(p_job uuid, p_tenant integer, p_who text, p_asof timestamptz, h_schedule integer[], h_next timestamptz[],
                       k_schedule integer[], k_at timestamptz[]) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform lock_shards_shared(array[p_job], '{}');
  perform check_fresh(p_asof);
  t := bellringer.clock();
  insert into gaps (job_id, from_at, to_at, reason, recorded_at)      -- resume never fires the past
  select job_id, paused_at + interval '1 microsecond', t + interval '1 microsecond', 'paused', t from jobs
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at < t on conflict do nothing;
  update jobs set paused_at = null, paused_by = null, paused_reason = null, paused_until = null,
                  revision = revision + 1, updated_at = t
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at is not null returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked & ~1 where job_id = p_job and blocked & 1 = 1;
  insert into job_revisions (job_id, revision, effective_at, what, who, definition)
  select job_id, revision, t, 'resumed', p_who, definition_of(j) from jobs j where job_id = p_job;
  perform enter(array[p_job], t, interval '0', h_schedule, h_next, k_schedule, k_at);
  return r;
end $$;

-- Delete stops the future; what runs now finishes; what waits ends as cancelled. The row stays for the history that
-- points at it, its name is free at once.
create function retire(p_job uuid, p_tenant integer, p_who text) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform lock_shards_shared(array[p_job], '{}');
  t := bellringer.clock();
  perform leave(array[p_job], t, 'deleted', false) from jobs where job_id = p_job and tenant_id = p_tenant;
  update jobs set deleted_at = t, revision = revision + 1, updated_at = t, paused_until = null
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null returning revision into r;
  if r is null then return null; end if;
  with gone as (
    delete from queue where job_id = p_job and worker_id is null returning *),
  later as (
    delete from timers where job_id = p_job returning *)
  insert into attempts (job_id, scheduled_for, slot, attempt, tenant_id, revision, outcome, ends_as, finished_at, error)
  select job_id, scheduled_for, slot, 0, tenant_id, revision, 'cancelled', 'cancelled', t, '{"reason": "the job was deleted"}'::jsonb
  from (select job_id, scheduled_for, slot, tenant_id, revision from gone
        union all select job_id, scheduled_for, slot, tenant_id, revision from later where attempt > 0) e
  on conflict do nothing;
  insert into job_revisions (job_id, revision, effective_at, what, who, definition)
  select job_id, revision, t, 'deleted', p_who, definition_of(j) from jobs j where job_id = p_job;
  return r;
end $$;
