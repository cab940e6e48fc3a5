-- Backfills: past occurrences become runs, a few at a time, with lower priority than live runs. A catch-up is the same
-- for the occurrences that a fire_all job has missed.

-- The number of unfinished runs of a backfill, counted up to p_most. The rows are found by key, because all runs of a
-- backfill lie in its range.
create or replace function unfinished(backfill backfills, p_most integer) returns integer
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
declare n integer;
begin
  select count(*) into n
  from (
    select 1 from queue run
    where run.job_id = backfill.job_id and run.scheduled_for >= backfill.from_at and run.scheduled_for < backfill.to_at
      and run.slot = slot_of(backfill) and run.cause = backfill.cause
    union all
    select 1 from timers timer
    where timer.job_id = backfill.job_id and timer.scheduled_for >= backfill.from_at
      and timer.scheduled_for < backfill.to_at and timer.slot = slot_of(backfill) and timer.cause = backfill.cause
    limit p_most) run;
  return n;
end $$;

-- Whether a job has a run in the queue, or a retry that waits.
create or replace function is_busy(p_job uuid) returns boolean
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
begin
  return exists (select 1 from queue q where q.job_id = p_job)
    or exists (select 1 from timers t where t.job_id = p_job and t.attempt > 0);
end $$;

-- Running and paused backfills of these shards with an id above p_after, in the order of their ids, with the columns
-- that the scheduler needs to plan their next runs.
create or replace function open_backfills(p_shards smallint[], p_after bigint, p_limit integer)
returns table (backfill_id bigint, shard smallint, tenant_id integer, job_id uuid, cause text, state text,
               schedule_ids integer[], from_at timestamptz, to_at timestamptz, cursor timestamptz, newest_first boolean,
               reprocess text, parallelism integer, rate double precision, most bigint, horizon interval, total bigint,
               made_at timestamptz, revision integer, starts_at timestamptz, ends_at timestamptz, overlap text,
               job_paused boolean, job_deleted boolean, unfinished integer, busy boolean)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  with picks as materialized (
    select backfill.tid from unnest(p_shards) given (shard)
    cross join lateral (
      select backfill.ctid as tid, backfill.backfill_id from backfills backfill
      where backfill.shard = given.shard and backfill.state in ('running', 'paused') and backfill.backfill_id > p_after
      order by backfill.backfill_id limit p_limit) backfill
    order by backfill.backfill_id limit p_limit)
  select backfill.backfill_id, backfill.shard, backfill.tenant_id, backfill.job_id, backfill.cause::text,
         backfill.state, case backfill.schedule_id when 0 then job.schedule_ids else array[backfill.schedule_id] end,
         backfill.from_at, backfill.to_at, backfill.cursor, backfill.newest_first, backfill.reprocess,
         backfill.parallelism, backfill.rate, backfill.most, backfill.horizon, backfill.total, backfill.made_at,
         job.revision, case backfill.cause when 'backfill' then job.starts_at end,
         case backfill.cause when 'backfill' then job.ends_at end, job.overlap, job.paused_at is not null,
         job.deleted_at is not null, unfinished(backfill, backfill.parallelism),
         job.overlap <> 'allow' and is_busy(backfill.job_id)
  from picks
  join backfills backfill on backfill.ctid = picks.tid
  cross join lateral (select * from jobs job where job.job_id = backfill.job_id offset 0) job
  order by backfill.backfill_id;
end $$;

-- Stores the start and the number of occurrences of catch-ups, as the caller has counted them; occurrences before the
-- start (b_cut) become a gap. `refused` has the shards whose lease the caller does not hold: if there is one, nothing
-- is written. Locks, in this order: the fence of the shards, rows of backfills in the order of their ids.
create or replace function set_backfill_totals(
  p_holder uuid, p_shards smallint[], p_tokens bigint[], b_id bigint[], b_start timestamptz[], b_total bigint[],
  b_cut bigint[], out measured integer, out refused smallint[], out missed bigint)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_BY_KEY as $$
begin
  measured := 0; missed := 0;
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  perform 1 from backfills b where b.backfill_id = any (b_id) order by b.backfill_id for update;

  with given as materialized (
    select backfill.tid, backfill.job_id, backfill.schedule_id, backfill.from_at, given.start, given.total, given.cut
    from unnest(b_id, b_start, b_total, b_cut) given (id, start, total, cut)
    cross join lateral (
      select backfill.ctid as tid, backfill.* from backfills backfill
      where backfill.backfill_id = given.id offset 0) backfill
    where backfill.shard = any (p_shards) and backfill.state = 'running' and backfill.cause = 'catchup'
      and backfill.total is null),
  passed_over as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select job_id, from_at, start, schedule_id, cut, 'misfire', bellringer.now() from given
    where cut > 0 on conflict do nothing
    returning count),
  known as (
    update backfills backfill
    set from_at = given.start, total = given.total, state = case given.total when 0 then 'done' else backfill.state end,
        ended_at = case given.total when 0 then bellringer.now() end
    from given
    where backfill.ctid = given.tid
    returning 1)
  select count(*), (select coalesce(sum(count), 0) from passed_over) from known into measured, missed;
end $$;

-- Creates the next runs of backfills. For each backfill (b_*): the cursor and the revision of the job that the caller
-- has read, the number of runs that may be created, the next fire times as a slice of c_at, and whether the slice ends
-- the backfill.
--
-- Guarantees  This function decides under the shard lock which fire times need a run: until then a tick may create the
--             run, or a user may redrive one. The cursor also passes fire times that need no run, up to the next one
--             that does. A backfill whose cursor, job revision or state has changed is left for the next pass.
-- Locks       In this order: the shards (exclusive, which excludes pause, change and deletion of the jobs), the fence,
--             rows of backfills in the order of their ids.
-- Plans       c_low and c_high, the first and the last fire time, let the planner exclude partitions. `offset 0` keeps
--             each lookup a search by key: otherwise the planner reads all jobs, or builds a hash of all runs of a job.
create or replace function create_backfill_runs(
  p_holder uuid, p_shards smallint[], p_tokens bigint[], b_id bigint[], b_cursor timestamptz[], b_revision integer[],
  b_room integer[], b_first integer[], b_last integer[], b_ends boolean[], c_at timestamptz[], c_low timestamptz,
  c_high timestamptz, out made integer, out moved integer, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  made := 0; moved := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  perform 1 from backfills backfill where backfill.backfill_id = any (b_id) order by backfill.backfill_id for update;

  with given as materialized (
    select backfill.tid, backfill.backfill_id, backfill.job_id, backfill.cause, backfill.reprocess, backfill.slot,
           plan.first, plan.last, plan.ends, lease.token, job.tenant_id, job.task_id, job.revision, job.shard,
           job.pool_id, job.priority - 10 as priority,
           case when job.overlap = 'allow' then plan.room
                when row_number() over (partition by backfill.job_id order by plan.ord) > 1
                  or is_busy(backfill.job_id) then 0
                else least(plan.room, 1) end as room
    from unnest(b_id, b_cursor, b_revision, b_room, b_first, b_last, b_ends)
    with ordinality plan (id, cursor, revision, room, first, last, ends, ord)
    cross join lateral (
      select backfill.ctid as tid, slot_of(backfill) as slot, backfill.* from backfills backfill
      where backfill.backfill_id = plan.id offset 0) backfill
    cross join lateral (select * from jobs job where job.job_id = backfill.job_id offset 0) job
    cross join lateral (
      select held.token from unnest(p_shards, p_tokens) held (shard, token) where held.shard = backfill.shard) lease
    where backfill.state = 'running' and backfill.total is not null and backfill.cursor is not distinct from plan.cursor
      and job.paused_at is null and job.deleted_at is null and job.revision = plan.revision),
  -- one more than there is room for: it shows how far the cursor moves
  wanted as materialized (
    select backfill.*, needed.nth, row_number() over (partition by backfill.backfill_id order by needed.nth) as run
    from given backfill
    cross join lateral (
      select instant.nth from generate_series(backfill.first, backfill.last)
      with ordinality instant (nth, ord)
      where case when backfill.cause = 'catchup' then not exists (
                   select 1 from runs run
                   where run.job_id = backfill.job_id and run.scheduled_for = c_at[instant.nth] and run.slot = 0
                     and run.scheduled_for between c_low and c_high offset 0)
                 when backfill.reprocess = 'all' then true
                 else (backfill.reprocess = 'none'
                       or exists (
                         select 1 from runs run
                         where run.job_id = backfill.job_id and run.scheduled_for = c_at[instant.nth]
                           and run.scheduled_for between c_low and c_high offset 0))
                   and not exists (
                     select 1 from queue queued
                     where queued.job_id = backfill.job_id and queued.scheduled_for = c_at[instant.nth] offset 0)
                   and not exists (
                     select 1 from timers timer
                     where timer.job_id = backfill.job_id and timer.scheduled_for = c_at[instant.nth] offset 0)
                   and not exists (
                     select 1 from attempts attempt
                     where attempt.job_id = backfill.job_id and attempt.scheduled_for = c_at[instant.nth]
                       and attempt.scheduled_for between c_low and c_high
                       and attempt.ends_as = 'succeeded' offset 0) end
      order by instant.ord limit backfill.room + 1) needed),
  created as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state)
    select job_id, c_at[nth], slot, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id, priority,
           cause, 'queued'
    from wanted
    where run <= room on conflict do nothing
    returning job_id, scheduled_for, slot, tenant_id, task_id, revision, shard, pool_id, priority, cause),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, cause, key_id, cap, expires_at, blocked)
    select run.job_id, run.scheduled_for, run.slot, bellringer.now(), run.tenant_id, run.task_id, run.revision,
           run.shard, run.pool_id, run.priority, run.cause, job.key_id, job.cap,
           case when run.cause = 'catchup' then run.scheduled_for + job.expires_in end,
           case when job.key_id is null then 0 else LIMITED end
    from created run
    join jobs job on job.job_id = run.job_id),
  sums as materialized (
    select backfill_id, count(*) filter (where run <= room) as made, min(nth) filter (where run > room) as stop
    from wanted
    group by backfill_id),
  came as materialized (
    select backfill.tid, backfill.first, backfill.last, backfill.ends, coalesce(sums.made, 0) as made,
           coalesce(sums.stop - 1, backfill.last) as nth
    from given backfill
    left join sums on sums.backfill_id = backfill.backfill_id),
  written as (
    update backfills backfill
    set cursor = case when progress.nth >= progress.first then c_at[progress.nth] else backfill.cursor end,
        made = backfill.made + progress.made,
        passed = backfill.passed + progress.nth - progress.first + 1 - progress.made,
        made_at = case when progress.made = 0 then backfill.made_at else next_made_at(backfill, progress.made) end,
        state = case when progress.ends and progress.nth = progress.last then 'done' else backfill.state end,
        ended_at = case when progress.ends and progress.nth = progress.last then bellringer.now() end
    from came progress
    where backfill.ctid = progress.tid
      and (progress.nth >= progress.first or (progress.ends and progress.nth = progress.last))
    returning 1)
  select (select count(*) from created), (select count(*) from written) into made, moved;
end $$;

-- The new made_at of a backfill with a rate. A pass that comes late keeps the planned time, so that the delay does not
-- lower the rate.
create or replace function next_made_at(backfill backfills, p_made bigint) returns timestamptz language sql stable as $$
  select case when bellringer.now() - planned.at >= interval '0'
                   and bellringer.now() - planned.at < interval '1 minute' / backfill.rate
              then planned.at else bellringer.now() end
  from (select backfill.made_at + p_made * (interval '1 minute' / backfill.rate) as at) planned
$$;

-- Cancels a backfill and its waiting runs; the rest of a catch-up becomes a gap. Returns the state before the call;
-- null if the tenant has no such backfill. Locks, in this order: the row of the backfill, then for each waiting run the
-- locks of cancel, in key order.
create or replace function end_backfill(p_id bigint, p_tenant integer, p_reason text, p_why text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s'
PLAN_BY_INDEX as $$
declare
  backfill backfills;
begin
  perform assert_tenant(p_tenant);
  select * into backfill from backfills where backfill_id = p_id and tenant_id = p_tenant for update;
  if backfill.state is null or backfill.state not in ('running', 'paused') then return backfill.state; end if;
  update backfills set state = 'cancelled', ended_at = bellringer.now(), why = coalesce(p_why, why)
    where backfill_id = p_id;

  if backfill.cause = 'catchup' then
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select backfill.job_id, rest.from_at, rest.to_at, backfill.schedule_id,
           backfill.total - backfill.made - backfill.passed, p_reason, bellringer.now()
    from (
      select case when backfill.newest_first then backfill.from_at
                  else coalesce(backfill.cursor + interval '1 microsecond', backfill.from_at) end as from_at,
             case when backfill.newest_first then coalesce(backfill.cursor, backfill.to_at)
                  else backfill.to_at end as to_at) rest
    where rest.from_at < rest.to_at and (backfill.total is null or backfill.total > backfill.made + backfill.passed)
    on conflict do nothing;
  end if;

  perform cancel(run.job_id, run.scheduled_for, run.slot, run.tenant_id, coalesce(p_why, p_reason))
  from (
    select run.job_id, run.scheduled_for, run.slot, run.tenant_id from queue run
    where run.job_id = backfill.job_id and run.scheduled_for >= backfill.from_at and run.scheduled_for < backfill.to_at
      and run.slot = slot_of(backfill) and run.cause = backfill.cause and run.worker_id is null
      and run.blocked & OPEN_WORKFLOW = 0
    union all
    select timer.job_id, timer.scheduled_for, timer.slot, timer.tenant_id from timers timer
    where timer.job_id = backfill.job_id and timer.scheduled_for >= backfill.from_at
      and timer.scheduled_for < backfill.to_at and timer.slot = slot_of(backfill) and timer.cause = backfill.cause
    order by 1, 2, 3) run;
  return backfill.state;
end $$;

-- Times between p_after and p_before at which a job has runs, at most p_limit runs; `good` says whether one of the runs
-- succeeded or has not ended.
create or replace function instants_with_runs(
  p_job uuid, p_tenant integer, p_after timestamptz, p_before timestamptz, p_limit integer)
returns table (at timestamptz, good boolean)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
begin
  perform assert_tenant(p_tenant);
  return query
  with instants as materialized (
    select run.scheduled_for from runs run
    where run.job_id = p_job and run.tenant_id + 0 = p_tenant and run.scheduled_for > p_after
      and run.scheduled_for < p_before
    order by run.scheduled_for limit p_limit)
  select instant.scheduled_for,
         exists (
             select 1 from attempts attempt
             where attempt.job_id = p_job and attempt.scheduled_for = instant.scheduled_for
               and attempt.ends_as = 'succeeded' and attempt.scheduled_for > p_after
               and attempt.scheduled_for < p_before offset 0)
           or exists (
             select 1 from queue queued
             where queued.job_id = p_job and queued.scheduled_for = instant.scheduled_for offset 0)
           or exists (
             select 1 from timers timer
             where timer.job_id = p_job and timer.scheduled_for = instant.scheduled_for offset 0)
  from (select distinct instants.scheduled_for from instants) instant
  order by 1;
end $$;

-- How many runs of a backfill ended as dead, cancelled or skipped, among the first p_limit runs of the tenant that
-- ended so since the backfill was created. Runs that succeeded or were queued again later are not counted.
create or replace function failed_runs(p_id bigint, p_tenant integer, p_limit integer)
returns table (ends_as text, count bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
declare backfill backfills;
begin
  perform assert_tenant(p_tenant);
  select * into backfill from backfills where backfill_id = p_id and tenant_id = p_tenant;
  return query
  with ended as materialized (
    select attempt.job_id, attempt.scheduled_for, attempt.slot, attempt.ends_as from attempts attempt
    where attempt.tenant_id = p_tenant and attempt.ends_as in ('dead', 'cancelled', 'skipped')
      and attempt.ends_as <> 'succeeded' and attempt.finished_at >= backfill.created_at
      and attempt.scheduled_for >= backfill.from_at and attempt.scheduled_for < backfill.to_at limit p_limit)
  select ended.ends_as::text, count(distinct ended.scheduled_for) from ended
  where ended.job_id = backfill.job_id and ended.slot = slot_of(backfill)
    and not exists (
      select 1 from attempts attempt
      where attempt.job_id = ended.job_id and attempt.scheduled_for = ended.scheduled_for and attempt.slot = ended.slot
        and attempt.scheduled_for >= backfill.from_at and attempt.scheduled_for < backfill.to_at
        and attempt.ends_as = 'succeeded' offset 0)
    and not exists (
      select 1 from queue run
      where run.job_id = ended.job_id and run.scheduled_for = ended.scheduled_for and run.slot = ended.slot offset 0)
  group by 1;
end $$;

-- The newest backfills of a job. The function bypasses row-level security, whose condition could make the planner read
-- all backfills of the tenant.
create or replace function backfills_of_job(
  p_tenant integer, p_job uuid, p_before bigint, p_most integer) returns setof backfills
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select * from backfills where assert_tenant(p_tenant) and tenant_id + 0 = p_tenant and job_id = p_job
    and (p_before is null or backfill_id < p_before) order by backfill_id desc limit p_most
$$;
