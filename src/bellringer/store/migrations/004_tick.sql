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
create function tick(p_holder uuid, p_shards smallint[], p_tokens bigint[], c_shard smallint[], c_schedule integer[],
                     c_at timestamptz[], c_next timestamptz[], p_lead interval, p_limit integer,
                     p_careful boolean, out fired integer, out reached integer, out cut boolean, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
begin
  fired := 0; reached := 0; cut := false;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;

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
    select d.tid, d.size, d.shard, d.next_at, d.token, m.job_id, m.tenant_id, m.task_id, m.revision, m.pool_id, m.priority,
           m.overlap <> 0 and exists (select 1 from queue q where q.job_id = m.job_id) as waits
    from chosen d cross join lateral (
      select * from members m where m.shard = d.shard and m.schedule_id = d.schedule_id and m.job_id > d.after
        and m.active_since < d.next_at and (m.active_until is null or m.active_until >= d.next_at)
        and (not p_careful or not exists (
          select 1 from runs r where r.job_id = m.job_id and r.scheduled_for = d.next_at and r.slot = 0))
      order by m.job_id limit p_limit) m),
  struck as not materialized (                           -- with care, a job whose schedules strike together is struck once
    select * from chunk where not p_careful
    union all
    select * from (select distinct on (job_id, next_at) * from chunk where p_careful) c),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select job_id, next_at, 0, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule',
           case when waits then 'blocked' else 'queued' end::run_state
    from struck),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause, blocked)
    select job_id, next_at, 0, next_at, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule',
           case when waits then 2 else 0 end
    from struck),
  rest as materialized (                                 -- the one cohort that did not fit, and how far it came
    select tid, (array_agg(job_id order by job_id desc))[1] as last
    from chunk where size > p_limit group by tid having count(*) = p_limit),
  done as (
    update cohorts k set next_at = d.next, cursor = null from chosen d
    where k.ctid = d.tid and k.next_at + interval '0' = d.next_at and not exists (select 1 from rest where rest.tid = d.tid)),
  part as (
    update cohorts k set cursor = rest.last from rest where k.ctid = rest.tid)
  select (select count(*) from struck), coalesce((select max(ord) from chosen), 0), exists (select 1 from rest)
  into fired, reached, cut;
end $$;

-- The hand never walks the past: cohorts whose instant nobody ticked within the grace jump to their latest missed
-- instant, which a later tick then fires, and each member's gap says what was passed over. c_missed counts the instants
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
    select d.tid, d.size, d.next_at, d.cursor, d.til, d.missed, m.job_id, m.active_since, m.active_until
    from chosen d cross join lateral (
      select * from members m where m.shard = d.shard and m.schedule_id = d.schedule_id and m.job_id > d.after
      order by m.job_id limit p_limit) m),
  noted as (
    insert into gaps (job_id, from_at, to_at, count, reason, into_at, recorded_at)
    select c.job_id, g.from_at, c.til,
           case when c.active_since < c.next_at and (c.active_until is null or c.active_until >= c.til)
                then c.missed - coalesce(c.job_id <= c.cursor, false)::int end,
           'misfire', case when c.active_until is null or c.active_until >= c.til then c.til end, bellringer.now()
    from chunk c
    cross join lateral (select case
        when c.job_id <= c.cursor then c.next_at + interval '1 microsecond'      -- it got next_at before the outage
        else greatest(c.next_at, c.active_since + interval '1 microsecond') end as from_at) g
    where g.from_at < c.til and (c.active_until is null or c.active_until >= g.from_at)
    on conflict do nothing returning count),
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

-- Timers that are due move into the queue: new runs are born, far retries come back. A run of a paused job is held.
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
           j.paused_at is not null as paused, tok.token
    from due d left join jobs j on j.job_id = d.job_id
    cross join lateral (select u.token from unnest(p_shards, p_tokens) u (shard, token) where u.shard = d.shard) tok
    where j.deleted_at is null),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as, spec)
    select job_id, scheduled_for, slot, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority, cause,
           case when paused then 'blocked' else 'queued' end::run_state, spec
    from known where attempt = 0 on conflict do nothing
    returning job_id, scheduled_for, slot),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, attempt,
                       attempt_floor, cause, rearms, spec, blocked)
    select k.job_id, k.scheduled_for, k.slot, k.due_at, k.tenant_id, k.task_id, k.revision, k.shard, k.pool_id, k.priority, k.attempt,
           k.attempt_floor, k.cause, k.rearms, k.spec, case when k.paused then 1 else 0 end
    from known k left join born b using (job_id, scheduled_for, slot) where k.attempt > 0 or b.job_id is not null
    on conflict do nothing returning available_at)
  select (select count(*) from born), count(*), (array_agg(distinct available_at))[:20] into fired, moved, strikes from queued;
end $$;
