-- Tick: what is due in the held shards becomes runs. One call in autocommit; a stopped client holds no lock.
set local search_path to bellringer;

-- The fence. Locks the lease rows for share, so a takeover waits for this transaction and this one never commits
-- after it; an unlocked look, or `for key share`, lets a stale holder commit late. Answers the shards that were lost.
create function fence(p_holder uuid, p_shards smallint[], p_tokens bigint[]) returns smallint[]
language plpgsql set search_path = bellringer, pg_temp as $$
declare held smallint[];
begin
  select array_agg(shard) into held from (
    select l.shard from unnest(p_shards, p_tokens) u (shard, token)
    join leases l on l.shard = u.shard and l.token = u.token and l.holder = p_holder
    order by l.shard for share of l) s;
  return array(select unnest(p_shards) except select unnest(held));
end $$;

create function lock_shards(p_shards smallint[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare s smallint;
begin
  for s in select distinct unnest(p_shards) order by 1 loop perform pg_advisory_xact_lock(77, s); end loop;
end $$;

-- Answers how many runs were born, how many of the given hands were looked at (reached), and whether the last of those
-- is not done yet (cut).
-- Fires due cohorts whole, as many as fit into p_limit runs; a single larger one by chunks, with its cursor. The caller
-- computed each schedule's next instant once. `next_at + interval '0'` hides the index on next_at, which the planner
-- would take although thousands of cohorts share the instant. The sizes are counted first so that no sort and no outer limit is
-- needed, and the last member of a chunk is known from an ORDER BY and not from luck. Under the shard's lock nobody
-- else makes slot 0, so the inserts need no ON CONFLICT, which costs a fifth; should an occurrence exist already, the
-- primary key refuses the whole call and the caller repeats it with p_careful, which passes over what exists.
--
-- What becomes of a member: it is born queued; or blocked, because of a freeze, a limit or an unfinished run before it; or
-- skipped, by a freeze; or, later than p_grace, it is a gap, if it would rather skip what is late. The run before it is
-- locked, so that whoever settles it comes after this call, and frees what waits. One that is locked already may be ending
-- right now: this call waits for no worker, it leaves the decision to the time of the run.
create function tick(p_holder uuid, p_shards smallint[], p_tokens bigint[], c_shard smallint[], c_schedule integer[],
                     c_at timestamptz[], c_next timestamptz[], p_lead interval, p_grace interval, p_limit integer, p_tz smallint,
                     p_careful boolean, out fired integer, out reached integer, out cut boolean, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
  undecided  boolean;
  is_late    boolean;                                    -- known before the statement is planned, so that what is not
  is_frozen  boolean;                                    -- needed is not even looked at
  is_skipped boolean;
  is_several boolean;
begin
  fired := 0; reached := 0; cut := false;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  is_late := exists (select 1 from unnest(c_at) u (at) where u.at < bellringer.now() - p_grace);
  is_skipped := exists (select 1 from skips s where s.at = any (c_at));
  is_frozen := exists (select 1 from freezes f, (select min(u.at) as first, max(u.at) as last from unnest(c_at) u (at)) d
                       where f.to_at > d.first and f.from_at <= d.last)     -- one that is only to come costs nothing
            or exists (select 1 from tenants t where t.suspended_at is not null);
  is_several := exists (select 1 from unnest(c_shard, c_schedule) u (shard, schedule_id)
                        join members m on m.shard = u.shard and m.schedule_id = u.schedule_id where m.several);

  with due as materialized (
    select u.ord, u.next, k.ctid as tid, k.shard, k.schedule_id, k.next_at, coalesce(k.cursor, '00000000-0000-0000-0000-000000000000') as after,
           (select t.token from unnest(p_shards, p_tokens) t (shard, token) where t.shard = k.shard) as token
    from unnest(c_shard, c_schedule, c_at, c_next) with ordinality u (shard, schedule_id, at, next, ord)
    join cohorts k on k.shard = u.shard and k.schedule_id = u.schedule_id
    where u.shard = any (p_shards) and k.next_at + interval '0' = u.at and k.jump_to is null and u.at <= bellringer.now() + p_lead),
  sized as materialized (
    select d.*, (select count(*) from (select from members m where m.shard = d.shard and m.schedule_id = d.schedule_id
                                         and m.job_id > d.after limit p_limit + 1) s) as size
    from due d),
  chosen as materialized (
    select * from (select s.*, sum(size) over (order by ord) as upto, min(ord) over () as first from sized s) f
    where upto <= p_limit or ord = first),
  chunk as materialized (
    select d.tid, d.size, d.shard, d.schedule_id, d.next_at, d.token, m.job_id, m.tenant_id, m.task_id, m.revision, m.pool_id, m.priority,
           m.key_id, m.cap, m.late_after, m.overlap, m.several, z.policy, z.name,
           is_late and m.misfire = 1 and d.next_at < bellringer.now() - p_grace as misfired,
           case when m.jitter_ms = 0 then d.next_at else d.next_at + m.jitter_ms * interval '1 ms' end as due_at,
           case when m.key_id is null then 0 else 32 end | case
             when z.policy is not null then 8
             when p.cause is null then 0
             when not exists (select from (select 1 from queue q where q.job_id = m.job_id limit 1 for share of q skip locked) l) then 18
             when m.overlap = 2 then 2
             when p.cause in ('catchup', 'backfill') and not exists (    -- it waits, but is not skipped for those
               select 1 from queue q where q.job_id = m.job_id and q.cause not in ('catchup', 'backfill')) then 2
             else 18 end as held,
           case when z.policy = 'skip' then z.because
                when z.policy = 'collapse' then (
                  select 'coalesced into ' || to_char(q.scheduled_for at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' by freeze ' || z.name
                  from queue q where q.job_id = m.job_id and q.blocked & 8 = 8 limit 1) end as skipped
    from chosen d cross join lateral (
      select * from members m where m.shard = d.shard and m.schedule_id = d.schedule_id and m.job_id > d.after
        and m.active_since < d.next_at and (m.active_until is null or m.active_until >= d.next_at)
        and (not p_careful or not exists (
          select 1 from runs r where r.job_id = m.job_id and r.scheduled_for = d.next_at and r.slot = 0))
      order by m.job_id limit p_limit) m
    left join lateral (
      select q.cause from queue q where m.overlap <> 0 and q.job_id = m.job_id limit 1) p on true
    left join lateral (                                  -- by its key: a herd may have as many skips as members
      select 'skip' as policy, because(s) as because from skips s where s.job_id = m.job_id and s.at = d.next_at offset 0) k on is_skipped
    left join lateral (select j.tags from jobs j where j.job_id = m.job_id offset 0) j on is_frozen
    left join lateral (                                  -- those of its tenant alone: others may have many
      select z.policy, z.name, z.because from (
        select 'skip' as policy, null as name, 'tenant suspended' as because from tenants t
        where t.tenant_id = m.tenant_id and t.suspended_at is not null
        union all
        select f.policy, f.name, 'freeze ' || f.name from freezes f     -- the pair keeps the planner from the index on to_at alone
        where f.tenant_id = m.tenant_id and (f.tenant_id, f.to_at) > (m.tenant_id, d.next_at) and f.from_at <= d.next_at
          and (f.tags = '{}' or f.tags && j.tags)) z
      order by z.policy = 'skip' desc, z.policy limit 1) f on is_frozen
    cross join lateral (select coalesce(k.policy, f.policy) as policy, case when k.policy is null then f.name end as name,
                               coalesce(k.because, f.because) as because) z),
  struck as not materialized (                           -- of a job with several schedules, the later are held by the first;
    select *, held as bits, skipped as passed_by from chunk where not p_careful and not misfired and not (is_several and several)
    union all
    select c.*, case when row_number() over (partition by job_id order by next_at, schedule_id) = 1 or overlap = 0 or held & ~32 <> 0
                     then held else held | case overlap when 2 then 2 else 18 end end,
           case when policy = 'collapse' and skipped is null and row_number() over (partition by job_id order by next_at, schedule_id) > 1
                then 'coalesced by freeze ' || name else skipped end
    from (
      select * from chunk where is_several and several and not p_careful and not misfired
      union all                                          -- with care, one whose schedules strike together is struck once
      select * from (select distinct on (job_id, next_at) * from chunk where p_careful and not misfired) o) c),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, tz_id,
                      born_as, reason)
    select job_id, next_at, 0, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', p_tz,
           case when bits & ~32 = 0 then 'queued' when passed_by is not null then 'skipped' else 'blocked' end::run_state,
           case when policy is not null then coalesce(passed_by, 'freeze ' || name) end
    from struck),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause, blocked,
                       key_id, cap, late_at)
    select job_id, next_at, 0, due_at, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', bits,
           key_id, cap, due_at + late_after
    from struck where passed_by is null),
  passed as (
    insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
    select job_id, next_at, 0, 0, bellringer.now(), tenant_id, revision, 'skipped', jsonb_build_object('reason', passed_by)
    from struck where (is_frozen or is_skipped) and passed_by is not null),
  missed as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select job_id, next_at, next_at + interval '1 microsecond', schedule_id, 1, 'misfire', bellringer.now()
    from chunk where is_late and misfired
    on conflict do nothing),
  rest as materialized (                                 -- the one cohort that did not fit, and how far it came
    select tid, (array_agg(job_id order by job_id desc))[1] as last
    from chunk where size > p_limit group by tid having count(*) = p_limit),
  done as (
    update cohorts k set next_at = d.next, cursor = null from chosen d
    where k.ctid = d.tid and k.next_at + interval '0' = d.next_at and not exists (select 1 from rest where rest.tid = d.tid)),
  part as (
    update cohorts k set cursor = rest.last from rest where k.ctid = rest.tid)
  select count(*), coalesce(bool_or(bits & 16 = 16 and due_at <= bellringer.now()), false),
         coalesce((select max(ord) from chosen), 0), exists (select 1 from rest)
  from struck into fired, undecided, reached, cut;
  if undecided then perform decide_overlaps(p_limit); end if;
end $$;

-- The hand never walks the past: cohorts whose instant nobody ticked within the grace jump to their latest missed
-- instant, which a later tick then fires, and each member's gap says what was passed over; those of a member that wants
-- all are left to a catch-up. c_missed counts the instants
-- from c_at up to, and without, c_to. As a tick, it takes whole cohorts as far as p_limit goes, and a single larger one by
-- chunks: jump_to then keeps the goal, so that all its members jump to the same instant whenever it is finished.
create function jump(p_holder uuid, p_shards smallint[], p_tokens bigint[], c_shard smallint[], c_schedule integer[],
                     c_at timestamptz[], c_to timestamptz[], c_missed bigint[], p_limit integer,
                     out reached integer, out missed bigint, out cut boolean, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  reached := 0; missed := 0; cut := false;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;

  with late as materialized (
    select u.ord, k.ctid as tid, k.shard, k.schedule_id, k.next_at, k.cursor, u.til, u.missed,
           coalesce(k.jump_cursor, '00000000-0000-0000-0000-000000000000') as after
    from unnest(c_shard, c_schedule, c_at, c_to, c_missed) with ordinality u (shard, schedule_id, at, til, missed, ord)
    join cohorts k on k.shard = u.shard and k.schedule_id = u.schedule_id
    where u.shard = any (p_shards) and k.next_at + interval '0' = u.at and u.til = coalesce(k.jump_to, u.til)
      and u.til <= bellringer.now() and u.til > k.next_at),
  sized as materialized (
    select l.*, (select count(*) from (select from members m where m.shard = l.shard and m.schedule_id = l.schedule_id
                                         and m.job_id > l.after limit p_limit + 1) s) as size
    from late l),
  chosen as materialized (
    select * from (select s.*, sum(size) over (order by ord) as upto, min(ord) over () as first from sized s) f
    where upto <= p_limit or ord = first),
  chunk as materialized (
    select d.tid, d.size, d.shard, d.schedule_id, d.til, m.job_id, m.tenant_id, m.misfire, m.overlap, m.late_after, g.from_at,
           case when m.active_since < d.next_at and (m.active_until is null or m.active_until >= d.til)
                then d.missed - coalesce(m.job_id <= d.cursor, false)::int end as count,
           case when m.active_until is null or m.active_until >= d.til then d.til
                else m.active_until + interval '1 microsecond' end as to_at,
           g.from_at < d.til and (m.active_until is null or m.active_until >= g.from_at)
             and not coalesce(m.job_id <= d.cursor and d.missed = 1, false) as missed
    from chosen d cross join lateral (
      select * from members m where m.shard = d.shard and m.schedule_id = d.schedule_id and m.job_id > d.after
      order by m.job_id limit p_limit) m
    cross join lateral (select case
        when m.job_id <= d.cursor then d.next_at + interval '1 microsecond'      -- it got next_at before the outage
        else greatest(d.next_at, m.active_since + interval '1 microsecond') end as from_at) g),
  noted as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, into_at, recorded_at)
    select job_id, from_at, to_at, schedule_id, count, 'misfire', case when to_at = til and misfire = 0 then til end, bellringer.now()
    from chunk where missed and misfire <> 2
    on conflict do nothing returning count),
  caught as (
    insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most, horizon, who, why, created_at)
    select k.tenant_id, k.job_id, k.shard, 'catchup', k.schedule_id, k.from_at, k.to_at, case k.overlap when 0 then 10 else 1 end,
           c.rate, c.most, c.horizon, 'misfire', 'misfire', bellringer.now()
    from chunk k cross join lateral catchup_of(k.job_id) c where k.missed and k.misfire = 2),
  told as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
    select bellringer.now(), tenant_id, 'missed', job_id, from_at,
           jsonb_build_object('from', from_at, 'to', to_at, 'count', count, 'misfire', (array['fire_once', 'skip', 'fire_all'])[misfire + 1])
    from chunk where missed and late_after is not null on conflict do nothing),
  rest as materialized (
    select tid, til, (array_agg(job_id order by job_id desc))[1] as last
    from chunk where size > p_limit group by tid, til having count(*) = p_limit),
  done as (
    update cohorts k set next_at = d.til, cursor = null, jump_to = null, jump_cursor = null from chosen d
    where k.ctid = d.tid and k.next_at + interval '0' = d.next_at and not exists (select 1 from rest where rest.tid = d.tid)),
  part as (
    update cohorts k set jump_to = rest.til, jump_cursor = rest.last from rest where k.ctid = rest.tid)
  select coalesce((select max(ord) from chosen), 0), (select coalesce(sum(count), 0) from noted), exists (select 1 from rest)
  into reached, missed, cut;
end $$;

-- Timers that are due move into the queue: new runs are born, far retries come back. A run of a paused job is held. A
-- freeze defers what it finds here, whatever its policy, and what overlaps waits: a one-shot has no next time, a fixed
-- delay no rhythm.
-- strikes tells the first instants from which they may be claimed.
create function ring(p_holder uuid, p_shards smallint[], p_tokens bigint[], p_lead interval, p_limit integer,
                     out fired integer, out moved integer, out strikes timestamptz[], out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  fired := 0; moved := 0;
  perform lock_shards(p_shards);                -- a pause or an edit of the same job comes before or after, not between
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  perform ensure_days(array(                    -- after an outage, days may be missing that timers fell due on
    select distinct day_of(t.scheduled_for) from unnest(p_shards) s (shard) cross join lateral (
      select scheduled_for from timers m where m.shard = s.shard and m.due_at <= bellringer.now() + p_lead
      order by m.due_at limit p_limit) t));

  with picks as materialized (
    select p.ctid from unnest(p_shards) s (shard) cross join lateral (
      select t.ctid from timers t where t.shard = s.shard and t.due_at <= bellringer.now() + p_lead
      order by t.due_at limit p_limit for update skip locked) p
    limit p_limit),
  due as (
    delete from timers where ctid = any (array(select ctid from picks)) returning *),
  known as materialized (
    select d.job_id, d.scheduled_for, d.slot, d.due_at, d.shard, d.pool_id, d.priority, d.attempt, d.attempt_floor, d.tenant_id,
           coalesce(case when d.spec is null then j.task_id end, d.task_id) as task_id, d.revision, d.cause, d.rearms, d.spec,
           case when j.paused_at is not null or d.cause = 'workflow' and is_paused(d.job_id) then 1 else 0 end | case when j.key_id is null then 0 else 32 end
             | case when d.cause = 'schedule' and d.attempt = 0 and frozen_until(d.job_id, d.tenant_id, d.due_at) is not null then 8 else 0 end
             | case when j.overlap <> 'allow' and exists (select 1 from queue q where q.job_id = d.job_id) then 2 else 0 end
             as held, j.key_id, j.cap, case when d.attempt = 0 then d.due_at + j.late_after end as late_at, tok.token,
           coalesce(j.misfire = 'skip' and d.cause = 'schedule' and d.attempt = 0 and not d.rearms
                    and d.due_at < bellringer.now() - grace(), false) as misfired
    from due d left join jobs j on j.job_id = d.job_id
    cross join lateral (select u.token from unnest(p_shards, p_tokens) u (shard, token) where u.shard = d.shard) tok
    where j.deleted_at is null and not (d.rearms and d.attempt = 0 and j.delay is null)),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as, spec)
    select job_id, scheduled_for, slot, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority, cause,
           case when held & ~32 <> 0 then 'blocked' else 'queued' end::run_state, spec
    from known where attempt = 0 and not misfired on conflict do nothing
    returning job_id, scheduled_for, slot),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, attempt,
                       attempt_floor, cause, rearms, spec, blocked, key_id, cap, late_at)
    select k.job_id, k.scheduled_for, k.slot, k.due_at, k.tenant_id, k.task_id, k.revision, k.shard, k.pool_id, k.priority, k.attempt,
           k.attempt_floor, k.cause, k.rearms, k.spec, k.held, k.key_id, k.cap, k.late_at
    from known k left join born b using (job_id, scheduled_for, slot) where k.attempt > 0 or b.job_id is not null
    on conflict do nothing returning available_at),
  missed as (
    insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
    select job_id, scheduled_for, scheduled_for + interval '1 microsecond', 1, 'misfire', bellringer.now() from known where misfired
    on conflict do nothing returning 1)
  select (select count(*) from born), count(*) + (select count(*) from missed), (array_agg(distinct available_at))[:20]
  into fired, moved, strikes from queued;
end $$;
