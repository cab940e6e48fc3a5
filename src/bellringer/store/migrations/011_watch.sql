-- Watch: what is late, what takes longer than usual; and hands that follow new rules of the time zones. All of it is
-- looked for beside the path of a run, every few seconds, so the plans are pinned as those of the sweeps.
set local search_path to bellringer;

-- Of jobs that want to be told, only: others cost nothing here.
create index members_told on members (shard, schedule_id, job_id) where late_after is not null;
create index events_of_job on events (job_id, event_id);
create index events_of_kind on events (tenant_id, kind, event_id);

-- By which rules the hands of a shard were last looked through, and under which lease: a token that is missing in between
-- is a holder that never said by which rules it fired.
create table tz_applied (
  shard smallint primary key,
  tz_id smallint not null references tz_versions,
  token bigint not null
);

-- Runs that should have started by now. One that has started is not late, whatever became of it since; each is looked at
-- once. `looked` tells whether there may be more.
create function tell_waiting(p_now timestamptz, p_most integer, out looked integer, out told integer)
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  with picks as materialized (
    select ctid, job_id, scheduled_for, slot, tenant_id, available_at, late_at, blocked, worker_id is null and attempt = 0 as waits
    from queue where late_at <= p_now order by late_at limit p_most for update skip locked),
  cleared as (
    update queue q set late_at = null where q.ctid = any (array(select ctid from picks))),
  news as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, tenant_id, 'late', job_id, scheduled_for, slot,
           jsonb_build_object('due', available_at, 'late_after', extract(epoch from late_at - available_at), 'blocked', blocked)
    from picks where waits order by job_id, scheduled_for, slot
    on conflict do nothing returning 1)
  select (select count(*) from picks), (select count(*) from news) into looked, told;
end $$;

-- Occurrences whose hand has not even struck, though somebody should have been told by now: nothing was born that could
-- wait. A member that got next_at already, or whose gap is written already, is no longer behind.
create function tell_unborn(p_now timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare n integer;
begin
  with behind as materialized (
    select m.job_id, m.tenant_id, m.late_after, c.next_at, c.next_at + m.jitter_ms * interval '1 ms' as due_at
    from leases l
    cross join lateral (
      select * from cohorts k where k.shard = l.shard and k.next_at < p_now order by k.next_at limit p_most) c
    cross join lateral (
      select * from members m
      where m.shard = c.shard and m.schedule_id = c.schedule_id and m.late_after is not null
        and m.job_id > coalesce(greatest(c.cursor, c.jump_cursor), '00000000-0000-0000-0000-000000000000')
        and c.next_at + m.jitter_ms * interval '1 ms' + m.late_after <= p_now
        and m.active_since < c.next_at and (m.active_until is null or m.active_until >= c.next_at)
        and not exists (select 1 from events e where e.job_id = m.job_id and e.scheduled_for = c.next_at and e.slot = 0
                          and e.attempt = 0 and e.kind = 'late')
      order by m.job_id limit p_most) m
    limit p_most)
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  select p_now, tenant_id, 'late', job_id, next_at,
         jsonb_build_object('due', due_at, 'late_after', extract(epoch from late_after), 'unborn', true)
  from behind order by job_id, next_at
  on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;

-- How long the last attempts of jobs took that ended well, newest first, and by which schedules the jobs run. Only the
-- newest p_look attempts of each are looked at: a job that fails for ever has a long history without an answer.
create function histories(p_jobs uuid[], p_look integer, p_most integer)
returns table (job_id uuid, tenant_id integer, schedule_ids integer[], took double precision[])
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  select j.job_id, j.tenant_id, j.schedule_ids, array(
    select extract(epoch from a.finished_at - a.started_at)::double precision from (
      select t.scheduled_for, t.slot, t.attempt, t.started_at, t.finished_at, t.ends_as from attempts t
      where t.job_id = j.job_id order by t.scheduled_for desc, t.slot desc, t.attempt desc limit p_look) a
    where a.ends_as = 'succeeded' and a.started_at is not null
    order by a.scheduled_for desc, a.slot desc, a.attempt desc limit p_most)
  from unnest(p_jobs) u (job_id) join jobs j on j.job_id = u.job_id and j.deleted_at is null;
end $$;

-- Jobs with a run that was claimed before then in this pool. There are at most as many as workers have slots; where that is more than
-- p_most, every pass looks at others.
create function under_way_since(p_pool smallint, p_before timestamptz, p_most integer) returns setof uuid
language sql volatile set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
  select job_id from (
    select distinct q.job_id from queue q
    where q.worker_id is not null and q.pool_id = p_pool and q.claimed_at < p_before and q.revision is not null) j
  order by random() limit p_most
$$;

-- Jobs whose pool nobody named, and that no expectation routes, among these; with where they are, and whether a worker of the other
-- pool knows their task: without one they would wait there for ever.
create function routed_of(p_jobs uuid[], p_short smallint, p_long smallint)
returns table (job_id uuid, tenant_id integer, revision integer, is_long boolean, served boolean)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  return query
  select j.job_id, j.tenant_id, j.revision, j.pool_id = p_long, exists (
    select 1 from pools p join workers w on w.state = 'live' and w.pools ? p.name and j.task_id = any (w.task_ids)
    where p.pool_id = case when j.pool_id = p_long then p_short else p_long end)
  from unnest(p_jobs) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
  where j.routed and j.expected_duration is null and j.deleted_at is null and j.pool_id in (p_short, p_long);
end $$;

-- A job goes to the pool where its runs belong by their length: one more revision of it, and all that waits follows. Its schedules
-- stay as they are, so it needs not leave its cohorts; the shard's lock keeps a tick from copying what is changed here. Answers the
-- new revision; none, where the job is not as it was read.
create function reroute(p_job uuid, p_revision integer, p_pool smallint, p_learned boolean, p_who text, p_why text) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  t timestamptz;
  j jobs;
begin
  perform lock_shards_shared(array[p_job], '{}');
  t := bellringer.clock();
  update jobs set pool_id = p_pool, learned_at = case when p_learned then t end, revision = revision + 1, updated_at = t,
                  what = 'changed', who = p_who, why = p_why
  where job_id = p_job and revision = p_revision and routed and expected_duration is null and deleted_at is null returning * into j;
  if j.job_id is null then return null; end if;
  update members m set pool_id = p_pool, revision = j.revision
  where m.shard = j.shard and m.schedule_id = any (j.schedule_ids) and m.job_id = p_job;
  update timers set pool_id = p_pool, revision = j.revision where job_id = p_job and spec is null;
  perform 1 from queue where job_id = p_job order by job_id, scheduled_for, slot for update;
  update queue set pool_id = p_pool, revision = j.revision, blocked = blocked & ~64
  where job_id = p_job and spec is null and worker_id is null;
  return j.revision;
end $$;

-- Hands go where the rules of the time zones now say, under the fence as in a tick, each from where the caller saw it and
-- only into the future. A hand that fires or jumps just now stays: whoever ends that computes anew. What the lead has
-- fired before its time is not due again; c_lost is what a hand waited for, where that now lies in the past.
create function retime(p_holder uuid, p_shards smallint[], p_tokens bigint[], p_tz smallint, c_shard smallint[],
                       c_schedule integer[], c_at timestamptz[], c_to timestamptz[], c_lost timestamptz[],
                       out moved integer, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare t timestamptz;
begin
  moved := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  t := bellringer.clock();

  with moves as materialized (
    select k.ctid as tid, k.shard, k.schedule_id, u.at, u.til, u.lost
    from unnest(c_shard, c_schedule, c_at, c_to, c_lost) u (shard, schedule_id, at, til, lost)
    join cohorts k on k.shard = u.shard and k.schedule_id = u.schedule_id
    where u.shard = any (p_shards) and k.next_at + interval '0' = u.at and k.cursor is null and k.jump_to is null
      and u.at > t and u.til >= t
      and (u.til > t + interval '5 seconds' or not exists (
        select 1 from members m join runs r on r.job_id = m.job_id and r.scheduled_for = u.til and r.slot = 0
        where m.shard = k.shard and m.schedule_id = k.schedule_id))),
  hands as (
    update cohorts k set next_at = m.til from moves m where k.ctid = m.tid),
  passed as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select m.job_id, v.lost, v.lost + interval '1 microsecond', v.schedule_id, 1, 'retimed', t
    from moves v join members m on m.shard = v.shard and m.schedule_id = v.schedule_id
    where m.active_since < v.lost and (m.active_until is null or m.active_until >= v.lost)
      and not exists (select 1 from runs r where r.job_id = m.job_id and r.scheduled_for = v.lost and r.slot = 0)
    on conflict do nothing),
  noted as (
    insert into tz_moves (tz_id, schedule_id, shard, moved_at, old_next, new_next)
    select p_tz, schedule_id, shard, t, at, til from moves
    on conflict (tz_id, schedule_id, shard) do update
    set moved_at = excluded.moved_at, old_next = excluded.old_next, new_next = excluded.new_next)
  select count(*) from moves into moved;
end $$;

-- The holder says by which rules it fires from now on.
create function apply_rules(p_holder uuid, p_shards smallint[], p_tokens bigint[], p_tz smallint) returns smallint[]
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' as $$
declare refused smallint[];
begin
  refused := fence(p_holder, p_shards, p_tokens);
  insert into tz_applied (shard, tz_id, token)
  select u.shard, p_tz, u.token from unnest(p_shards, p_tokens) u (shard, token)
  where u.shard <> all (refused) order by u.shard
  on conflict (shard) do update set tz_id = excluded.tz_id, token = excluded.token;
  return refused;
end $$;

-- The newest events of a job. It passes the wall between tenants, whose condition would tempt the planner to look through all
-- events of the tenant.
create function events_of_job(p_tenant integer, p_job uuid, p_kind text, p_before bigint, p_most integer) returns setof events
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select * from events where own(p_tenant) and tenant_id + 0 = p_tenant and job_id = p_job and event_id < p_before
    and (p_kind is null or kind = p_kind) order by event_id desc limit p_most
$$;
