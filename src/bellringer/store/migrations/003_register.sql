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

-- How late an occurrence may be before it has misfired.
create function grace() returns interval language sql immutable parallel safe as $$ select interval '60 seconds' $$;

-- How much of what it missed a job wants.
create function catchup_of(p_job uuid, out most bigint, out horizon interval, out rate double precision)
language sql stable set search_path = bellringer, pg_temp as $$
  select coalesce((catchup ->> 'most')::bigint, 100), coalesce((catchup ->> 'window')::float8, 604800) * interval '1 second',
         (catchup ->> 'rate')::float8
  from jobs where job_id = p_job
$$;

-- Until when the freezes that cover a moment hold a job; null: none does.
create function frozen_until(p_job uuid, p_tenant integer, p_at timestamptz) returns timestamptz
language sql stable set search_path = bellringer, pg_temp as $$
  select max(f.to_at) from freezes f where f.tenant_id = p_tenant and f.from_at <= p_at and f.to_at > p_at
    and (f.tags = '{}' or exists (select 1 from jobs j where j.job_id = p_job and j.tags && f.tags))
$$;

-- What holds a run of a job that is born now, as bits of queue.blocked: a limit, a freeze, an unfinished run before it.
-- What waits only for a catch-up or a backfill is never skipped for it. p_nth: the job's first run that is born now, or one
-- after it. The tick does the same by itself, for many at once; but a freeze defers what is born here, whatever its policy.
create function held_by(p_job uuid, p_tenant integer, p_overlap smallint, p_key integer, p_at timestamptz, p_nth bigint) returns smallint
language sql stable set search_path = bellringer, pg_temp as $$
  select (case when p_key is null then 0 else 32 end
        | case when frozen_until(p_job, p_tenant, p_at) is not null then 8
               when p_overlap = 0 then 0
               when p_nth > 1 or exists (select 1 from queue q where q.job_id = p_job and q.cause not in ('catchup', 'backfill'))
               then case p_overlap when 2 then 2 else 18 end
               when exists (select 1 from queue q where q.job_id = p_job) then 2
               else 0 end)::smallint
$$;

-- Take jobs out of their cohorts. Where the hand is behind, what a job was owed up to now is not forgotten: its
-- oldest occurrence is born now, unless the job is deleted or would rather skip what is late, and a gap records the
-- rest; a job that wants all gets a catch-up. What the lead has born ahead of its time goes, with its run: nobody was
-- allowed to claim it yet.
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
    select m.*, h.at, h.got, greatest(h.at, m.active_since + interval '1 microsecond') as from_at,
           least(p_at, m.active_until) + interval '1 microsecond' as to_at, p_owed and m.misfire = 2 as all_owed,
           p_owed and m.misfire <> 2 and not h.got and h.at > m.active_since and (m.misfire = 0 or h.at >= p_at - grace()) as owed
    from jobs j cross join unnest(j.schedule_ids) i (schedule_id)
    cross join lateral (                                   -- by its whole key, whatever the planner believes
      select * from members m where m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id offset 0) m
    cross join lateral (select * from cohorts c where c.shard = m.shard and c.schedule_id = m.schedule_id offset 0) c
    cross join lateral (select coalesce(m.job_id <= c.jump_cursor, false) as jumped) g
    cross join lateral (select case when g.jumped then c.jump_to else c.next_at end as at,
                               not g.jumped and coalesce(m.job_id <= c.cursor, false) as got) h
    where j.job_id = any (p_jobs) and h.at <= p_at and (m.active_until is null or m.active_until >= h.at)),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select distinct on (job_id, at) job_id, at, 0, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority,
           'schedule'::cause, 'queued'::run_state
    from behind where owed on conflict do nothing returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                       key_id, cap, late_at, blocked)
    select r.job_id, r.scheduled_for, 0, r.scheduled_for + b.jitter_ms * interval '1 ms', r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id,
           r.priority, 'schedule', b.key_id, b.cap, r.scheduled_for + b.jitter_ms * interval '1 ms' + b.late_after,
           held_by(r.job_id, r.tenant_id, b.overlap, b.key_id, r.scheduled_for,
                   row_number() over (partition by r.job_id order by r.scheduled_for))
    from born r cross join lateral (select * from behind b where b.job_id = r.job_id and b.at = r.scheduled_for limit 1) b),
  caught as (
    insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most, horizon, who, why, created_at)
    select b.tenant_id, b.job_id, b.shard, 'catchup', b.schedule_id, f.from_at, b.to_at,
           case b.overlap when 0 then 10 else 1 end, c.rate, c.most, c.horizon, 'misfire', p_reason, p_at
    from behind b cross join lateral catchup_of(b.job_id) c
    cross join lateral (select case when b.got then b.at + interval '1 microsecond' else b.from_at end as from_at) f
    where b.all_owed and f.from_at < b.to_at)
  insert into gaps (job_id, from_at, to_at, schedule_id, reason, into_at, recorded_at)
  select job_id, f.from_at, b.to_at, b.schedule_id, p_reason, f.into_at, p_at
  from behind b cross join lateral (
    select case when b.got or b.owed then b.at + interval '1 microsecond' else b.from_at end as from_at,
           case when b.owed then b.at end as into_at) f
  where f.from_at < b.to_at and not b.all_owed on conflict do nothing;
  perform pass_over(p_jobs);

  delete from members where ctid = any (array(
    select m.ctid from jobs j cross join unnest(j.schedule_ids) i (schedule_id) cross join lateral (
      select m.ctid from members m where m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id offset 0) m
    where j.job_id = any (p_jobs)));

  with early as (
    delete from queue where job_id = any (p_jobs) and cause = 'schedule' and worker_id is null and attempt = 0
      and scheduled_for > p_at
    returning job_id, scheduled_for, slot)
  delete from runs r using early e
  where r.job_id = e.job_id and r.scheduled_for = e.scheduled_for and r.slot = e.slot;

  perform ensure_days(array(                    -- a one-shot that nobody rang in time is owed as well
    select distinct day_of(scheduled_for) from timers
    where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0 and not rearms and due_at <= p_at));
  with due as (
    delete from timers t using jobs j
    where t.job_id = any (p_jobs) and t.cause = 'schedule' and t.attempt = 0 and not t.rearms and t.due_at <= p_at and j.job_id = t.job_id
    returning t.*, p_owed and (j.misfire <> 'skip' or t.due_at >= p_at - grace()) as owed),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select job_id, scheduled_for, slot, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority, cause, 'queued'
    from due where owed on conflict do nothing returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                       key_id, cap, blocked)
    select r.job_id, r.scheduled_for, r.slot, r.scheduled_for, r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id, r.priority, r.cause,
           j.key_id, j.cap, case when j.key_id is null then 0 else 32 end
    from born r join jobs j on j.job_id = r.job_id)
  insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
  select job_id, scheduled_for, scheduled_for + interval '1 microsecond', 1, p_reason, p_at from due where not owed
  on conflict do nothing;

  delete from timers where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0;
end $$;

-- Jobs as registration is sent them: those that are alike come together, so that what they have in common is read once, and
-- beside it (`jobs`) each one's own, without names: to read four keys a job takes as long as their values.
create type kind as (
  jobs jsonb, tenant_id integer, expected integer, task_id integer, schedules jsonb, schedule_ids integer[], once_at timestamptz,
  delay interval, pool_id smallint, priority smallint, misfire text, catchup jsonb, overlap text, key_id integer, key_most integer,
  cap smallint, jitter interval, jitter_by interval, late_after interval, starts_at timestamptz, ends_at timestamptz, enabled boolean,
  owner text, tags text[], expected_duration interval, routed boolean);
create function kinds_of(p_jobs jsonb) returns kind[] language sql stable set search_path = bellringer, pg_temp as $$
  select array_agg(row(
    k.jobs, k.tenant_id, k.expected, k.task_id, k.schedules, k.schedule_ids, k.once_at, k.delay * interval '1 second', k.pool_id,
    k.priority, k.misfire, k.catchup, k.overlap, k.key_id, k.key_most, k.cap, k.jitter * interval '1 second',
    k.jitter_by * interval '1 second', k.late_after * interval '1 second', k.starts_at, k.ends_at, k.enabled, k.owner, k.tags,
    k.expected_duration * interval '1 second', coalesce(k.routed, false))::kind)
  from jsonb_to_recordset(p_jobs) k (
    jobs jsonb, tenant_id integer, expected integer, task_id integer, schedules jsonb, schedule_ids integer[], once_at timestamptz,
    delay float8, pool_id smallint, priority smallint, misfire text, catchup jsonb, overlap text, key_id integer, key_most integer,
    cap smallint, jitter float8, jitter_by float8, late_after float8, starts_at timestamptz, ends_at timestamptz, enabled boolean,
    owner text, tags text[], expected_duration float8, routed boolean)
$$;
create function own_of(p_jobs jsonb) returns table (job_id uuid, shard smallint, name text, spec jsonb) language sql stable as
$$ select (o ->> 0)::uuid, (o ->> 1)::smallint, o ->> 2, o -> 3 from jsonb_array_elements(p_jobs) o $$;

-- As members has them.
create function misfire_number(p_misfire text) returns smallint language sql immutable parallel safe as
$$ select case p_misfire when 'fire_once' then 0 when 'skip' then 1 when 'fire_all' then 2 end::smallint $$;
create function overlap_number(p_overlap text) returns smallint language sql immutable parallel safe as $$
  select case p_overlap when 'allow' then 0 when 'skip' then 1 when 'queue' then 2 when 'collapse' then 3 when 'replace' then 4 end::smallint
$$;
create function milliseconds(p_length interval) returns integer language sql immutable parallel safe as
$$ select (extract(epoch from p_length) * 1000)::integer $$;

-- Let active jobs join the cohorts of their schedules: p_old, which are looked up, and those that p_new creates, as they were sent.
-- Jobs are looked up one by one behind a fence (`offset 0`), so that only the primary key fits: a plan that was made while the
-- table was empty might walk another index, and is kept.
-- h_*: each schedule's first instant after p_asof; k_*: all of
-- its instants in the seconds after that, from which a job gets those that a hand running ahead has passed already. A
-- one-shot may lie p_past behind: clocks differ, and requests travel.
create function enter(p_old uuid[], p_new kind[], p_at timestamptz, p_past interval, h_schedule integer[], h_next timestamptz[],
                      k_schedule integer[], k_at timestamptz[], p_waits boolean default true) returns void
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  hands jsonb := jsonb_object(h_schedule::text[], h_next::text[]);  -- one look-up a cohort: a join would meet every job with every schedule
  ids   uuid[];
begin
  with those as (
    select j.job_id, j.shard, i.schedule_id, cardinality(j.schedule_ids) > 1 as several, j.tenant_id, j.task_id, j.revision, j.pool_id,
           j.priority, misfire_number(j.misfire) as misfire, overlap_number(j.overlap) as overlap, j.key_id, j.cap,
           milliseconds(j.jitter_by) as jitter_ms, j.late_after, greatest(p_at, j.starts_at - interval '1 microsecond') as active_since, j.ends_at
    from unnest(p_old) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
    cross join unnest(j.schedule_ids) i (schedule_id)
    where j.enabled and j.paused_at is null and j.deleted_at is null
    union all
    select n.job_id, n.shard, k.schedule_id, k.several, k.tenant_id, k.task_id, 1, k.pool_id,
           k.priority, k.misfire, k.overlap, k.key_id, k.cap, k.jitter_ms, k.late_after, k.active_since, k.ends_at
    from (select k.jobs, i.schedule_id, cardinality(k.schedule_ids) > 1 as several, k.tenant_id, k.task_id, k.pool_id, k.priority,
                 misfire_number(k.misfire) as misfire, overlap_number(k.overlap) as overlap, k.key_id, k.cap,
                 milliseconds(k.jitter_by) as jitter_ms, k.late_after, greatest(p_at, k.starts_at - interval '1 microsecond') as active_since, k.ends_at
          from unnest(p_new) k cross join unnest(k.schedule_ids) i (schedule_id) where k.expected = 0 and k.enabled offset 0) k
    cross join lateral own_of(k.jobs) n),
  joined as (
    insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                         key_id, cap, jitter_ms, several, late_after, active_since, active_until)
    select shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
           key_id, cap, jitter_ms, several, late_after, active_since, ends_at
    from those returning shard, schedule_id)
  insert into cohorts (shard, schedule_id, next_at)
  select s.shard, s.schedule_id, (hands ->> s.schedule_id::text)::timestamptz
  from (select distinct shard, schedule_id from joined offset 0) s
  where not exists (select 1 from cohorts c where c.shard = s.shard and c.schedule_id = s.schedule_id offset 0)  -- most are there
    and hands ? s.schedule_id::text
  order by 1, 2
  on conflict do nothing;

  if cardinality(k_schedule) > 0 then
  ids := p_old || array(
    select n.job_id from unnest(p_new) k cross join lateral own_of(k.jobs) n where k.expected = 0 and k.schedule_ids && k_schedule);
  with born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select m.job_id, k.at, 0, p_at, 0, m.tenant_id, m.task_id, m.revision, m.shard, m.pool_id, m.priority, 'schedule', 'queued'
    from unnest(ids) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
    cross join unnest(j.schedule_ids) i (schedule_id)
    cross join lateral (select k.at from unnest(k_schedule, k_at) k (schedule_id, at) where k.schedule_id = i.schedule_id) k
    cross join lateral (select * from cohorts c where c.shard = j.shard and c.schedule_id = i.schedule_id offset 0) c
    cross join lateral (
      select * from members m where m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id offset 0) m
    where k.at > m.active_since and (m.active_until is null or m.active_until >= k.at)
      and (k.at < c.next_at or (k.at = c.next_at and m.job_id <= c.cursor))
    on conflict do nothing returning *)
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                     key_id, cap, late_at, blocked)
  select r.job_id, r.scheduled_for, 0, r.scheduled_for + j.jitter_by, r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id, r.priority,
         'schedule', j.key_id, j.cap, r.scheduled_for + j.jitter_by + j.late_after,
         held_by(r.job_id, r.tenant_id, overlap_number(j.overlap),
                 j.key_id, r.scheduled_for, row_number() over (partition by r.job_id order by r.scheduled_for))
  from born r join jobs j on j.job_id = r.job_id;
  perform pass_over(ids);
  end if;

  if not p_waits then return; end if;
  ids := p_old || array(
    select n.job_id from unnest(p_new) k cross join lateral own_of(k.jobs) n
    where k.expected = 0 and (k.once_at is not null or k.delay is not null));
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision, cause, rearms)
  select j.job_id, w.at, 0, w.at, j.shard, j.pool_id, j.priority, j.tenant_id, j.task_id, j.revision, 'schedule', j.delay is not null
  from unnest(ids) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
  cross join lateral (
    select coalesce(j.once_at, case when j.delay is not null then greatest(p_at + j.delay, j.starts_at) end) as at) w
  where j.enabled and j.paused_at is null and j.deleted_at is null
    and w.at > p_at - p_past and (j.ends_at is null or j.ends_at >= w.at)
    and not exists (select 1 from runs r where r.job_id = j.job_id and r.scheduled_for = w.at and r.slot = 0)
    and (j.delay is null or not exists (select 1 from queue q where q.job_id = j.job_id and q.rearms)
                        and not exists (select 1 from timers m where m.job_id = j.job_id and m.rearms))
  on conflict do nothing;
end $$;

-- p_asof is what the caller's instants were computed from. Should the locks have taken so long that a hand may have
-- passed beyond them, nothing is done and the caller computes anew.
create function check_fresh(p_asof timestamptz) returns void language plpgsql as $$
begin
  if clock_timestamp() - pg_catalog.now() + (bellringer.now() - p_asof) > interval '5 s' then
    raise exception 'instants are stale' using errcode = 'BR001';
  end if;
end $$;

-- Its statements keep one plan for all arguments, of 30 or so that would otherwise be made anew at each call and cost
-- three times as much as the work; what they may choose is pinned instead. p_shards: those of all these jobs. Answers since when the
-- jobs count.
create function register(p_jobs jsonb, p_shards smallint[], p_asof timestamptz, p_who text, h_schedule integer[], h_next timestamptz[],
                         k_schedule integer[], k_at timestamptz[], p_why text default null) returns timestamptz
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  kinds   kind[] := kinds_of(p_jobs);
  many    integer;
  old     uuid[];
  limited boolean;
  waits   boolean;                                       -- some are one-shots, or have a delay
  t       timestamptz;
  made    integer;
  changed integer := 0;
begin
  select sum(jsonb_array_length(k.jobs)), bool_or(k.key_id is not null), bool_or(k.once_at is not null or k.delay is not null)
  into many, limited, waits from unnest(kinds) k where own(k.tenant_id);
  select array_agg(n.job_id) into old from unnest(kinds) k cross join lateral own_of(k.jobs) n where k.expected > 0;
  if limited and exists (select 1 from unnest(kinds) k join limits l on l.key_id = k.key_id where l.tenant_id <> k.tenant_id) then
    raise exception 'that is another tenant''s' using errcode = 'BR004';
  end if;
  perform lock_shards_shared(coalesce(old, '{}'), p_shards);
  perform check_fresh(p_asof);
  t := bellringer.clock();

  insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, schedule_ids, once_at, delay, pool_id, priority, misfire,
                    catchup, overlap, key_id, cap, jitter, jitter_by, late_after, starts_at, ends_at, enabled, owner, tags, revision,
                    created_at, updated_at, who, why, expected_duration, routed)
  select n.job_id, k.tenant_id, n.shard, n.name, k.task_id, n.spec, k.schedules, k.schedule_ids, k.once_at, k.delay, k.pool_id, k.priority,
         k.misfire, k.catchup, k.overlap, k.key_id, k.cap, k.jitter, k.jitter_by, k.late_after, k.starts_at, k.ends_at, k.enabled, k.owner,
         k.tags, 1, t, t, p_who, p_why, k.expected_duration, k.routed
  from unnest(kinds) k cross join lateral own_of(k.jobs) n where k.expected = 0 order by n.job_id;
  get diagnostics made = row_count;
  perform count_new_jobs(kinds);
  if old is not null then
    perform leave(old, t, 'edited', true);
    update jobs o set
      name = n.name, task_id = n.task_id, spec = n.spec, schedules = n.schedules, schedule_ids = n.schedule_ids,
      once_at = n.once_at, delay = n.delay, pool_id = case when n.stays then o.pool_id else n.pool_id end, priority = n.priority, misfire = n.misfire, catchup = n.catchup,
      overlap = n.overlap, key_id = n.key_id, cap = n.cap, jitter = n.jitter, jitter_by = n.jitter_by, late_after = n.late_after,
      starts_at = n.starts_at, ends_at = n.ends_at, enabled = n.enabled, owner = n.owner, tags = n.tags, revision = n.expected + 1,
      updated_at = t, what = 'changed', who = p_who, why = p_why, expected_duration = n.expected_duration, routed = n.routed,
      learned_at = case when n.stays then o.learned_at end
    from (select k.*, n.*, j.place,                      -- where nobody names a pool, what its runs have taught counts on
                 k.routed and j.routed and k.expected_duration is null and j.expected_duration is null as stays
          from unnest(kinds) k cross join lateral own_of(k.jobs) n
          cross join lateral (select j.ctid as place, j.tenant_id, j.revision, j.deleted_at, j.routed, j.expected_duration
                              from jobs j where j.job_id = n.job_id offset 0) j
          where k.expected > 0 and j.revision = k.expected and j.tenant_id = k.tenant_id and j.deleted_at is null) n
    where o.ctid = n.place;                              -- its row is locked, so it is still there
    get diagnostics changed = row_count;
  end if;
  if made + changed < many then
    raise exception 'a job was changed by someone else' using errcode = 'BR002';
  end if;
  if limited then
    update limits l set most = n.key_most
    from (select distinct on (key_id) key_id, key_most from unnest(kinds) where key_id is not null order by key_id, key_most) n
    where l.key_id = n.key_id and l.most <> n.key_most;
  end if;

  if old is not null then                                -- what waits follows the change, its task and arguments together
    perform 1 from queue q where q.job_id = any (old) order by q.job_id, q.scheduled_for, q.slot for update;
    update queue q set task_id = j.task_id, revision = j.revision, pool_id = j.pool_id,
           priority = case when q.priority < 0 then j.priority - 10 else j.priority end,
           blocked = q.blocked & case when j.overlap = 'allow' then ~82 else ~64 end
    from jobs j where q.job_id = any (old) and j.job_id = q.job_id and q.spec is null and q.worker_id is null and q.blocked & 128 = 0;
    update queue q set key_id = j.key_id, cap = j.cap,     -- a limit holds for what is under way too: it counts, or comes back
           blocked = q.blocked & ~32 | case when j.key_id is null then 0 else 32 end
    from jobs j where q.job_id = any (old) and j.job_id = q.job_id and (q.key_id, q.cap) is distinct from (j.key_id, j.cap);
  end if;

  perform enter(old, kinds, t, interval '1 minute', h_schedule, h_next, k_schedule, k_at, waits);
  return t;
end $$;

-- Pause holds what is due and unclaimed, retries too; nothing new fires until resume.
create function pause(p_job uuid, p_tenant integer, p_who text, p_reason text, p_until timestamptz) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform own(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- another tenant's is not even waited for
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  select revision into r from jobs                       -- it is so already: who paused it first has done it
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at is not null
    and (paused_reason, paused_until) is not distinct from (p_reason, p_until);
  if r is not null then return r; end if;
  t := bellringer.clock();
  perform leave(array[p_job], t, 'paused', true)
  from jobs where job_id = p_job and tenant_id = p_tenant and paused_at is null;
  update jobs set paused_at = coalesce(paused_at, t), paused_by = p_who, paused_reason = p_reason, paused_until = p_until,
                  revision = revision + 1, updated_at = t, what = 'paused', who = p_who, why = p_reason
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked & ~64 | 1
  where job_id = any (p_job || array(select f.flow_id from flows f where f.top_job = p_job and f.finished_at is null))
    and worker_id is null and blocked & 128 = 0;
  return r;
end $$;

-- What was missed meanwhile: nothing of it runs (skip), the latest (p_latest, of p_schedule), or all, as a catch-up.
create function resume(p_job uuid, p_tenant integer, p_who text, p_asof timestamptz, h_schedule integer[], h_next timestamptz[],
                       k_schedule integer[], k_at timestamptz[], p_missed text, p_schedule integer, p_latest timestamptz) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform own(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- another tenant's is not even waited for
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  perform check_fresh(p_asof);
  t := bellringer.clock();
  insert into gaps (job_id, from_at, to_at, reason, into_at, recorded_at)
  select j.job_id, s.from_at, s.to_at, 'paused', p_latest, t from jobs j
  cross join lateral (values (j.paused_at + interval '1 microsecond', coalesce(p_latest, t + interval '1 microsecond')),
                             (p_latest + interval '1 microsecond', t + interval '1 microsecond')) s (from_at, to_at)
  where j.job_id = p_job and j.tenant_id = p_tenant and j.deleted_at is null and j.paused_at is not null
    and (p_missed <> 'all' or j.schedule_ids = '{}')
    and s.from_at < s.to_at on conflict do nothing;
  insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most, who, why, created_at)
  select j.tenant_id, j.job_id, j.shard, 'catchup', i.schedule_id, s.from_at, s.to_at, case j.overlap when 'allow' then 10 else 1 end,
         c.rate, 100000, p_who, 'paused', t
  from jobs j cross join unnest(case p_missed when 'all' then j.schedule_ids when 'latest' then array[p_schedule] end) i (schedule_id)
  cross join lateral catchup_of(j.job_id) c
  cross join lateral (select coalesce(p_latest, greatest(j.paused_at + interval '1 microsecond', j.starts_at)) as from_at,
                             coalesce(p_latest, least(t, j.ends_at)) + interval '1 microsecond' as to_at) s
  where j.job_id = p_job and j.tenant_id = p_tenant and j.deleted_at is null and j.enabled and j.paused_at < t and i.schedule_id is not null
    and s.from_at < s.to_at;
  update jobs set paused_at = null, paused_by = null, paused_reason = null, paused_until = null,
                  revision = revision + 1, updated_at = t, what = 'resumed', who = p_who, why = null
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at is not null returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked & ~1
  where job_id = any (p_job || array(select f.flow_id from flows f where f.top_job = p_job and f.finished_at is null)) and blocked & 1 = 1;
  perform enter(array[p_job], '{}', t, interval '0', h_schedule, h_next, k_schedule, k_at);
  return r;
end $$;

-- Delete stops the future; what runs now finishes; what waits ends as cancelled. The row stays for the history that
-- points at it, its name is free at once.
create function retire(p_job uuid, p_tenant integer, p_who text) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform own(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- another tenant's is not even waited for
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  t := bellringer.clock();
  perform leave(array[p_job], t, 'deleted', false) from jobs where job_id = p_job and tenant_id = p_tenant;
  update jobs set deleted_at = t, revision = revision + 1, updated_at = t, paused_until = null, what = 'deleted', who = p_who, why = null
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null returning revision into r;
  if r is null then return null; end if;
  with gone as (
    delete from queue where job_id = p_job and worker_id is null and blocked & 128 = 0 returning *),
  later as (
    delete from timers where job_id = p_job returning *)
  insert into attempts (job_id, scheduled_for, slot, attempt, tenant_id, revision, outcome, ends_as, finished_at, error)
  select job_id, scheduled_for, slot, 0, tenant_id, revision, 'cancelled', 'cancelled', t, '{"reason": "the job was deleted"}'::jsonb
  from (select job_id, scheduled_for, slot, tenant_id, revision from gone
        union all select job_id, scheduled_for, slot, tenant_id, revision from later where attempt > 0) e
  on conflict do nothing;
  update queue set cancel_requested = true where job_id = p_job and blocked & 128 = 128;      -- the sweep stops its nodes
  return r;
end $$;
