-- Backfill: occurrences of the past become runs, a few at a time, behind live work. A catch-up is the same, for what a job
-- with fire_all has missed.
set local search_path to bellringer;

-- The slot of its runs. A catch-up's are the schedule's own occurrences.
create function slot_of(b backfills) returns bigint language sql immutable parallel safe as
$$ select case b.cause when 'catchup' then 0 else (1::bigint << 40) + b.backfill_id end $$;

-- How many of its runs have not ended; counted no further than p_most. By the key: its runs lie within its range.
create function unfinished(b backfills, p_most integer) returns integer
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare n integer;
begin
  select count(*) into n from (
    select 1 from queue q where q.job_id = b.job_id and q.scheduled_for >= b.from_at and q.scheduled_for < b.to_at
      and q.slot = slot_of(b) and q.cause = b.cause
    union all
    select 1 from timers t where t.job_id = b.job_id and t.scheduled_for >= b.from_at and t.scheduled_for < b.to_at
      and t.slot = slot_of(b) and t.cause = b.cause
    limit p_most) u;
  return n;
end $$;

create function is_busy(p_job uuid) returns boolean
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  return exists (select 1 from queue q where q.job_id = p_job) or exists (select 1 from timers t where t.job_id = p_job and t.attempt > 0);
end $$;

-- Backfills that have not ended, by their numbers, after one; with what is needed to decide what to make of them.
create function open_backfills(p_shards smallint[], p_after bigint, p_limit integer)
returns table (backfill_id bigint, shard smallint, tenant_id integer, job_id uuid, cause text, state text, schedule_ids integer[],
               from_at timestamptz, to_at timestamptz, cursor timestamptz, newest_first boolean, reprocess text,
               parallelism integer, rate double precision, most bigint, horizon interval, total bigint, made_at timestamptz,
               revision integer, starts_at timestamptz, ends_at timestamptz, overlap text, job_paused boolean, job_deleted boolean,
               unfinished integer, busy boolean)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with picks as materialized (
    select p.tid from unnest(p_shards) s (shard) cross join lateral (
      select o.ctid as tid, o.backfill_id from backfills o where o.shard = s.shard and o.state in ('running', 'paused') and o.backfill_id > p_after
      order by o.backfill_id limit p_limit) p
    order by p.backfill_id limit p_limit)
  select b.backfill_id, b.shard, b.tenant_id, b.job_id, b.cause::text, b.state,
         case b.schedule_id when 0 then j.schedule_ids else array[b.schedule_id] end,
         b.from_at, b.to_at, b.cursor, b.newest_first, b.reprocess, b.parallelism, b.rate, b.most, b.horizon, b.total, b.made_at,
         j.revision, case b.cause when 'backfill' then j.starts_at end, case b.cause when 'backfill' then j.ends_at end, j.overlap,
         j.paused_at is not null, j.deleted_at is not null, unfinished(b, b.parallelism), j.overlap <> 'allow' and is_busy(b.job_id)
  from picks p join backfills b on b.ctid = p.tid cross join lateral (select * from jobs j where j.job_id = b.job_id offset 0) j
  order by b.backfill_id;
end $$;

-- Where catch-ups really begin, and how many occurrences they hold; what was cut off becomes a gap.
create function measure(p_holder uuid, p_shards smallint[], p_tokens bigint[], b_id bigint[], b_start timestamptz[], b_total bigint[],
                        b_cut bigint[], out measured integer, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  measured := 0;
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  perform 1 from backfills b where b.backfill_id = any (b_id) order by b.backfill_id for update;

  with given as materialized (
    select b.tid, b.job_id, b.schedule_id, b.from_at, g.start, g.total, g.cut
    from unnest(b_id, b_start, b_total, b_cut) g (id, start, total, cut)
    cross join lateral (select b.ctid as tid, b.* from backfills b where b.backfill_id = g.id offset 0) b
    where b.shard = any (p_shards) and b.state = 'running' and b.cause = 'catchup' and b.total is null),
  passed_over as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select job_id, from_at, start, schedule_id, cut, 'misfire', bellringer.now() from given where cut > 0
    on conflict do nothing),
  known as (
    update backfills b set from_at = g.start, total = g.total,
           state = case g.total when 0 then 'done' else b.state end, ended_at = case g.total when 0 then bellringer.now() end
    from given g where b.ctid = g.tid returning 1)
  select count(*) from known into measured;
end $$;

-- Let occurrences become runs. For each backfill (b_*): the cursor and the job's revision that are expected; how many runs
-- there is room for; its next instants, in its order, as a slice of c_at; and whether nothing follows them.
--
-- Which instants need a run is decided here, under the shard's lock, and not before: until then a run may be redriven, or
-- born by a tick. Instants that need none are passed over, also those right behind the last run that there was room for.
-- The lock keeps pause, change and deletion of the job away as well. A backfill that is not as expected waits for the next
-- pass. c_low and c_high, the first and the last instant, tell the planner which days are meant. With `offset 0`
-- each row is found by its key, whatever the planner believes: otherwise it reads all jobs first, or all that a job has in
-- the range into a hash.
create function fill(p_holder uuid, p_shards smallint[], p_tokens bigint[], b_id bigint[], b_cursor timestamptz[],
                     b_revision integer[], b_room integer[], b_first integer[], b_last integer[], b_ends boolean[],
                     c_at timestamptz[], c_low timestamptz, c_high timestamptz,
                     out made integer, out moved integer, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  made := 0; moved := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  perform 1 from backfills b where b.backfill_id = any (b_id) order by b.backfill_id for update;

  with given as materialized (
    select b.tid, b.backfill_id, b.job_id, b.cause, b.reprocess, b.slot, g.first, g.last, g.ends, t.token,
           j.tenant_id, j.task_id, j.revision, j.shard, j.pool_id, j.priority - 10 as priority,
           case when j.overlap = 'allow' then g.room
                when row_number() over (partition by b.job_id order by g.ord) > 1 or is_busy(b.job_id) then 0
                else least(g.room, 1) end as room
    from unnest(b_id, b_cursor, b_revision, b_room, b_first, b_last, b_ends) with ordinality
      g (id, cursor, revision, room, first, last, ends, ord)
    cross join lateral (select b.ctid as tid, slot_of(b) as slot, b.* from backfills b where b.backfill_id = g.id offset 0) b
    cross join lateral (select * from jobs j where j.job_id = b.job_id offset 0) j
    cross join lateral (select u.token from unnest(p_shards, p_tokens) u (shard, token) where u.shard = b.shard) t
    where b.state = 'running' and b.total is not null and b.cursor is not distinct from g.cursor
      and j.paused_at is null and j.deleted_at is null and j.revision = g.revision),
  wanted as materialized (                               -- one more than there is room for: it tells how far this pass comes
    select g.*, w.nth, row_number() over (partition by g.backfill_id order by w.nth) as run
    from given g cross join lateral (
      select c.nth from generate_series(g.first, g.last) with ordinality c (nth, ord)
      where case when g.cause = 'catchup' then not exists (
                   select 1 from runs r where r.job_id = g.job_id and r.scheduled_for = c_at[c.nth] and r.slot = 0
                     and r.scheduled_for between c_low and c_high offset 0)
                 when g.reprocess = 'all' then true
                 else (g.reprocess = 'none' or exists (
                        select 1 from runs r where r.job_id = g.job_id and r.scheduled_for = c_at[c.nth]
                          and r.scheduled_for between c_low and c_high offset 0))
                  and not exists (select 1 from queue q where q.job_id = g.job_id and q.scheduled_for = c_at[c.nth] offset 0)
                  and not exists (select 1 from timers m where m.job_id = g.job_id and m.scheduled_for = c_at[c.nth] offset 0)
                  and not exists (
                        select 1 from attempts a where a.job_id = g.job_id and a.scheduled_for = c_at[c.nth]
                          and a.scheduled_for between c_low and c_high and a.ends_as = 'succeeded' offset 0) end
      order by c.ord limit g.room + 1) w),
  born as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as)
    select job_id, c_at[nth], slot, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority, cause, 'queued'
    from wanted where run <= room on conflict do nothing
    returning job_id, scheduled_for, slot, tenant_id, task_id, revision, shard, pool_id, priority, cause),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                       key_id, cap, blocked)
    select b.job_id, b.scheduled_for, b.slot, bellringer.now(), b.tenant_id, b.task_id, b.revision, b.shard, b.pool_id, b.priority,
           b.cause, j.key_id, j.cap, case when j.key_id is null then 0 else 32 end
    from born b join jobs j on j.job_id = b.job_id),
  sums as materialized (
    select backfill_id, count(*) filter (where run <= room) as made, min(nth) filter (where run > room) as stop
    from wanted group by backfill_id),
  came as materialized (
    select g.tid, g.first, g.last, g.ends, coalesce(s.made, 0) as made, coalesce(s.stop - 1, g.last) as nth
    from given g left join sums s on s.backfill_id = g.backfill_id),
  written as (
    update backfills b set cursor = case when c.nth >= c.first then c_at[c.nth] else b.cursor end, made = b.made + c.made,
           passed = b.passed + c.nth - c.first + 1 - c.made,
           made_at = case when c.made = 0 then b.made_at else paced(b, c.made) end,
           state = case when c.ends and c.nth = c.last then 'done' else b.state end,
           ended_at = case when c.ends and c.nth = c.last then bellringer.now() end
    from came c where b.ctid = c.tid and (c.nth >= c.first or (c.ends and c.nth = c.last)) returning 1)
  select (select count(*) from born), (select count(*) from written) into made, moved;
end $$;

-- When its last run counts as born. What a pass came late by is not lost, or the rate would be missed by it every time.
create function paced(b backfills, p_made bigint) returns timestamptz language sql stable as $$
  select case when bellringer.now() - n.due >= interval '0' and bellringer.now() - n.due < interval '1 minute' / b.rate
              then n.due else bellringer.now() end
  from (select b.made_at + p_made * (interval '1 minute' / b.rate) as due) n
$$;

-- End one before its time. What waits of it ends as well; what is left of a catch-up becomes a gap. Answers the state that
-- it was in, or null if there is no such backfill.
create function end_backfill(p_id bigint, p_tenant integer, p_reason text, p_why text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  b backfills;
begin
  perform own(p_tenant);
  select * into b from backfills where backfill_id = p_id and tenant_id = p_tenant for update;
  if b.state is null or b.state not in ('running', 'paused') then return b.state; end if;
  update backfills set state = 'cancelled', ended_at = bellringer.now(), why = coalesce(p_why, why) where backfill_id = p_id;

  if b.cause = 'catchup' then
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select b.job_id, r.from_at, r.to_at, b.schedule_id, b.total - b.made - b.passed, p_reason, bellringer.now()
    from (select case when b.newest_first then b.from_at else coalesce(b.cursor + interval '1 microsecond', b.from_at) end as from_at,
                 case when b.newest_first then coalesce(b.cursor, b.to_at) else b.to_at end as to_at) r
    where r.from_at < r.to_at and (b.total is null or b.total > b.made + b.passed)
    on conflict do nothing;
  end if;

  perform cancel(w.job_id, w.scheduled_for, w.slot, w.tenant_id, coalesce(p_why, p_reason)) from (
    select q.job_id, q.scheduled_for, q.slot, q.tenant_id from queue q
    where q.job_id = b.job_id and q.scheduled_for >= b.from_at and q.scheduled_for < b.to_at and q.slot = slot_of(b)
      and q.cause = b.cause and q.worker_id is null and q.blocked & 128 = 0
    union all
    select t.job_id, t.scheduled_for, t.slot, t.tenant_id from timers t
    where t.job_id = b.job_id and t.scheduled_for >= b.from_at and t.scheduled_for < b.to_at and t.slot = slot_of(b)
      and t.cause = b.cause
    order by 1, 2, 3) w;
  return b.state;
end $$;

-- Instants of a range at which a job has runs, at most so many: whether one of them succeeded or has not ended.
create function ran(p_job uuid, p_tenant integer, p_after timestamptz, p_before timestamptz, p_limit integer)
returns table (at timestamptz, good boolean)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  perform own(p_tenant);
  return query
  with instants as materialized (
    select r.scheduled_for from runs r
    where r.job_id = p_job and r.tenant_id + 0 = p_tenant and r.scheduled_for > p_after and r.scheduled_for < p_before
    order by r.scheduled_for limit p_limit)
  select i.scheduled_for,
         exists (select 1 from attempts a where a.job_id = p_job and a.scheduled_for = i.scheduled_for and a.ends_as = 'succeeded'
                   and a.scheduled_for > p_after and a.scheduled_for < p_before offset 0)
         or exists (select 1 from queue q where q.job_id = p_job and q.scheduled_for = i.scheduled_for offset 0)
         or exists (select 1 from timers t where t.job_id = p_job and t.scheduled_for = i.scheduled_for offset 0)
  from (select distinct o.scheduled_for from instants o) i order by 1;
end $$;

-- How many runs of a backfill ended otherwise than well, among the first p_limit of its tenant that ended so since it was
-- made. One that was revived since is not counted.
create function failed_runs(p_id bigint, p_tenant integer, p_limit integer) returns table (ends_as text, count bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare b backfills;
begin
  perform own(p_tenant);
  select * into b from backfills where backfill_id = p_id and tenant_id = p_tenant;
  return query
  with ended as materialized (
    select a.job_id, a.scheduled_for, a.slot, a.ends_as from attempts a
    where a.tenant_id = p_tenant and a.ends_as in ('dead', 'cancelled', 'skipped') and a.ends_as <> 'succeeded'
      and a.finished_at >= b.created_at and a.scheduled_for >= b.from_at and a.scheduled_for < b.to_at
    limit p_limit)
  select e.ends_as::text, count(distinct e.scheduled_for) from ended e
  where e.job_id = b.job_id and e.slot = slot_of(b)
    and not exists (select 1 from attempts s where s.job_id = e.job_id and s.scheduled_for = e.scheduled_for and s.slot = e.slot
                      and s.scheduled_for >= b.from_at and s.scheduled_for < b.to_at and s.ends_as = 'succeeded' offset 0)
    and not exists (select 1 from queue q where q.job_id = e.job_id and q.scheduled_for = e.scheduled_for and q.slot = e.slot offset 0)
  group by 1;
end $$;

-- The newest backfills of a job. It passes the wall between tenants, whose condition would tempt the planner to look through all
-- of the tenant.
create function backfills_of_job(p_tenant integer, p_job uuid, p_before bigint, p_most integer) returns setof backfills
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select * from backfills where own(p_tenant) and tenant_id + 0 = p_tenant and job_id = p_job
    and (p_before is null or backfill_id < p_before) order by backfill_id desc limit p_most
$$;
