-- The newest runs of each job from p_from until before (b_at, b_slot), at most p_most for a job, with their states.
create or replace function last_runs(
  p_tenant integer, p_jobs uuid[], p_from timestamptz, b_at timestamptz, b_slot bigint, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, cause text, state text, reason text,
               first_started_at timestamptz, started_at timestamptz, finished_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  return query
  select run.job_id, run.scheduled_for, run.slot, run.cause::text,
         coalesce(queued.state, timer.state, last.ends_as::text, 'queued'),
         left(coalesce(last.error ->> 'reason', run.reason, ''), 500), first.first_started_at,
         coalesce(queued.claimed_at, last.started_at), last.finished_at
  from unnest(p_jobs) given (id)
  cross join lateral (
    select * from runs run
    where run.job_id = given.id and run.tenant_id + 0 = p_tenant and run.scheduled_for >= p_from
      and (run.scheduled_for, run.slot) < (b_at, b_slot) and run.scheduled_for <= b_at
    order by run.scheduled_for desc, run.slot desc limit p_most) run
  left join lateral (
    select queue_state(queued) as state, queued.claimed_at from queue queued
    where queued.job_id = run.job_id and queued.scheduled_for = run.scheduled_for
      and queued.slot = run.slot offset 0) queued on true
  left join lateral (
    select timer_state(timer) as state from timers timer
    where timer.job_id = run.job_id and timer.scheduled_for = run.scheduled_for
      and timer.slot = run.slot offset 0) timer on true
  left join lateral (
    select min(attempt.started_at) as first_started_at from attempts attempt
    where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for
      and attempt.slot = run.slot) first on true
  left join lateral (
    select attempt.ends_as, attempt.error, attempt.started_at, attempt.finished_at from attempts attempt
    where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
      and attempt.ends_as is not null
    order by attempt.finished_at desc, attempt.attempt desc limit 1) last on true;
end $$;

-- The newest attempts of a job, with any outcome.
create or replace function last_attempts(p_tenant integer, p_job uuid, p_most integer)
returns table (scheduled_for timestamptz, attempt integer, outcome text, ends_as text, started_at timestamptz,
               finished_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  return query
  select attempt.scheduled_for, attempt.attempt, attempt.outcome::text, attempt.ends_as::text, attempt.started_at,
         attempt.finished_at
  from attempts attempt
  where attempt.job_id = p_job and attempt.tenant_id + 0 = p_tenant
  order by attempt.scheduled_for desc, attempt.slot desc, attempt.attempt desc limit p_most;
end $$;

-- The attempts of the newest runs of a tenant between two times: one row for each attempt, and one for a run without
-- attempts. The range is repeated for the attempts, so that the planner excludes the partitions of other days.
create or replace function attempts_of_tenant(p_tenant integer, p_from timestamptz, p_to timestamptz, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, task text, jitter_by interval, attempt integer,
               outcome text, ends_as text, started_at timestamptz, finished_at timestamptz, is_node boolean)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  return query
  select run.job_id, run.scheduled_for, run.slot, task.name, case when run.cause = 'schedule' then job.jitter_by end,
         attempt.attempt, attempt.outcome::text, attempt.ends_as::text, attempt.started_at, attempt.finished_at,
         run.cause = 'workflow'
  from (
    select run.job_id, run.scheduled_for, run.slot, run.task_id, run.cause from runs run
    where run.tenant_id = p_tenant and run.scheduled_for >= p_from and run.scheduled_for < p_to
    order by run.scheduled_for desc, run.shard desc limit p_most) run
  join tasks task on task.task_id = run.task_id
  left join lateral (select job.jitter_by from jobs job where job.job_id = run.job_id offset 0) job on true
  left join lateral (
    select * from attempts attempt
    where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
      and attempt.scheduled_for >= p_from and attempt.scheduled_for < p_to limit 10) attempt on true;
end $$;

-- The number of runs of a job on each day, and of dead runs, each counted up to p_most for a day. The tenant is checked
-- once, at the job, so that only indexes of runs and attempts are read.
create or replace function daily_run_counts(p_tenant integer, p_job uuid, p_days date[], p_most integer)
returns table (day date, runs bigint, failed bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  select span.day, counted.many, deaths.failed
  from (select job.job_id from jobs job where job.job_id = p_job and job.tenant_id + 0 = p_tenant offset 0) job
  cross join unnest(p_days) given (day)
  cross join lateral (select given.day, start_of(given.day) as start offset 0) span
  cross join lateral (
    select count(*) as many
    from (
      select 1 from runs run
      where run.job_id = p_job and run.scheduled_for >= span.start and run.scheduled_for < span.start + interval '1 day'
      limit p_most) run) counted
  cross join lateral (
    select count(*) as failed
    from (
      select 1 from attempts attempt
      where attempt.job_id = p_job and attempt.ends_as = 'dead' and attempt.scheduled_for >= span.start
        and attempt.scheduled_for < span.start + interval '1 day' limit p_most) attempt) deaths;
end $$;

-- What became of the scheduled occurrences of jobs in spans of time: how many got a run, counted up to p_most_runs, and
-- how many of their runs are dead, counted up to p_most_failed. Returns one row for each span of a job of the tenant,
-- numbered from 1. Replays and backfills are not counted. The tenant is checked once, at the job, so that only indexes
-- of runs and attempts are read. The order makes the planner use the primary key of runs: the index on their times would
-- read the runs of all jobs.
create or replace function span_outcomes(p_tenant integer, p_ids uuid[], p_starts timestamptz[], p_ends timestamptz[],
                                         p_most_runs integer, p_most_failed integer)
returns table (number bigint, runs bigint, failed bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  select span.number, created.runs, deaths.failed
  from unnest(p_ids, p_starts, p_ends) with ordinality span (job_id, from_at, to_at, number)
  cross join lateral (
    select from jobs job where job.job_id = span.job_id and job.tenant_id + 0 = p_tenant offset 0) job
  cross join lateral (
    select count(*) as runs
    from (
      select 1 from runs run
      where run.job_id = span.job_id and run.scheduled_for >= span.from_at and run.scheduled_for < span.to_at
        and run.slot = 0
      order by run.scheduled_for desc limit p_most_runs) run) created
  cross join lateral (
    select count(*) as failed
    from (
      select 1 from attempts attempt
      where attempt.job_id = span.job_id and attempt.ends_as = 'dead' and attempt.slot = 0
        and attempt.scheduled_for >= span.from_at and attempt.scheduled_for < span.to_at
      order by attempt.scheduled_for desc limit p_most_failed) attempt) deaths;
end $$;

-- Statistics of a job's attempts in each span [p_starts[n], p_ends[n]), from the newest p_most attempts of the span:
-- how many there are, retries, failures, and percentiles in seconds of the duration (50, 95, 99) and of the lateness
-- (50, 99). Only first attempts of occurrences (slot 0) have a lateness: a backfill or replay is about the past. The
-- tenant is checked once, at the job, so that only one index of attempts is read.
create or replace function attempt_statistics(
  p_tenant integer, p_job uuid, p_starts timestamptz[], p_ends timestamptz[], p_most integer)
returns table (at timestamptz, attempts bigint, retries bigint, failed bigint, durations float8[], lateness float8[])
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  select span.start, found.attempts, found.retries, found.failed, found.durations, found.lateness
  from (
    select job.jitter_by from jobs job
    where job.job_id = p_job and job.tenant_id + 0 = p_tenant and job.deleted_at is null offset 0) job
  cross join unnest(p_starts, p_ends) span (start, stop)
  cross join lateral (
    select count(*) as attempts, count(*) filter (where newest.attempt > 1) as retries,
           count(*) filter (where newest.outcome <> 'ok') as failed,
           percentile_disc(array[0.5, 0.95, 0.99]) within group (order by newest.took) as durations,
           percentile_disc(array[0.5, 0.99]) within group (order by newest.late) as lateness
    from (
      select attempt.attempt, attempt.outcome,
             greatest(extract(epoch from attempt.finished_at - attempt.started_at), 0)::float8 as took,
             case when attempt.attempt = 1 and attempt.slot = 0 then
               greatest(extract(epoch from attempt.started_at - attempt.scheduled_for - job.jitter_by), 0)::float8
             end as late
      from attempts attempt
      where attempt.job_id = p_job and attempt.attempt > 0 and attempt.scheduled_for >= span.start
        and attempt.scheduled_for < span.stop
      order by attempt.scheduled_for desc, attempt.slot desc, attempt.attempt desc limit p_most) newest) found;
end $$;

-- The times at which the newest p_most dead runs of a tenant died. The function bypasses row-level security: under it
-- the index on ends_as is not used, because the comparison of enums is not leakproof.
create or replace function death_times(p_tenant integer, p_since timestamptz, p_most integer) returns setof timestamptz
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
begin
  perform assert_tenant(p_tenant);
  return query
  select attempt.finished_at from attempts attempt
  where attempt.tenant_id = p_tenant and attempt.ends_as = 'dead' and attempt.ends_as <> 'succeeded'
    and attempt.finished_at >= p_since
  order by attempt.finished_at desc limit p_most;
end $$;
