-- Joining and leaving cohorts. A cohort is all jobs of one shard that share a schedule; `cohorts.next_at` is its next
-- fire time, and `members` has one row for each active job in it.
--
-- Caller  Holds the row locks of changed jobs and the shared locks of their shards (see lock_shards_shared), so that no
--         tick fires a cohort while its members change.
-- Plans   Rows are looked up by key in lateral selects with `offset 0`. The plans are kept, and a plan that was made
--         while a table was empty might otherwise scan another index.

-- The next fire time of a schedule that has ended.
create or replace function end_of_time() returns timestamptz language sql immutable parallel safe as $$
  select timestamptz '9999-12-31 23:59:59+00'
$$;

-- An occurrence that is later than this has misfired.
create or replace function grace() returns interval language sql immutable parallel safe as $$
  select interval '60 seconds'
$$;

-- The catch-up settings of a job: at most `most` occurrences, none older than `horizon`, `rate` runs a minute.
create or replace function catchup_of(p_job uuid, out most bigint, out horizon interval, out rate double precision)
language sql stable set search_path = bellringer, pg_temp as $$
  select coalesce((catchup ->> 'most')::bigint, 100),
         coalesce((catchup ->> 'window')::float8, 604800) * interval '1 second',
         (catchup ->> 'rate')::float8
  from jobs where job_id = p_job
$$;

-- The latest end of the freezes that hold a job at p_at; null if no freeze does.
create or replace function frozen_until(p_job uuid, p_tenant integer, p_at timestamptz) returns timestamptz
language sql stable set search_path = bellringer, pg_temp as $$
  select max(active.to_at) from freezes active
  where active.tenant_id = p_tenant and active.from_at <= p_at and active.to_at > p_at
    and (active.tags = '{}' or exists (select 1 from jobs job where job.job_id = p_job and job.tags && active.tags))
$$;

-- The initial queue.blocked of a run that is created now: a limit, a freeze, an unfinished run before it. A run that
-- waits only for catch-ups or backfills is never skipped because of them. p_nth is the position of the run among the
-- runs of the job that this statement creates. The tick computes the same flags in bulk, with one difference: here a
-- freeze always defers the run, whatever the policy of the freeze.
create or replace function initial_block_flags(
  p_job uuid, p_tenant integer, p_overlap smallint, p_key integer, p_at timestamptz, p_nth bigint) returns smallint
language sql stable set search_path = bellringer, pg_temp as $$
  select (case when p_key is null then 0 else LIMITED end
        | case when frozen_until(p_job, p_tenant, p_at) is not null then FROZEN
               when p_overlap = OVERLAP_ALLOW then 0
               when p_nth > 1 or exists (
                 select 1 from queue run where run.job_id = p_job and run.cause not in ('catchup', 'backfill'))
               then case p_overlap when OVERLAP_QUEUE then PREDECESSOR else PREDECESSOR | UNDECIDED end
               when exists (select 1 from queue run where run.job_id = p_job) then PREDECESSOR
               else 0 end)::smallint
$$;

-- Removes jobs from their cohorts and deletes their one-shot and delay timers.
--
-- Where a cohort is behind (next_at <= p_at), each job is settled up to p_at: with p_owed its oldest missed occurrence
-- is created as a run now, unless its misfire policy skips late occurrences, and the others are recorded as a gap; a
-- fire_all job gets a catch-up instead. Without p_owed everything becomes a gap. Runs that the tick created ahead of
-- their time are deleted; no worker could claim them yet.
create or replace function leave_cohorts(p_jobs uuid[], p_at timestamptz, p_reason text, p_owed boolean) returns void
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  perform ensure_days(array(
    select distinct day_of(cohort.next_at) from jobs job cross join unnest(job.schedule_ids) schedule (schedule_id)
    join cohorts cohort on cohort.shard = job.shard and cohort.schedule_id = schedule.schedule_id
    where job.job_id = any (p_jobs) and cohort.next_at <= p_at));

  with behind as materialized (
    -- The next fire time of this member: target_at if a fast-forward in progress has passed the member, otherwise
    -- next_at, which the member already `got` if a fire in progress has passed it.
    select member.*, next.at, next.got, greatest(next.at, member.active_since + interval '1 microsecond') as from_at,
           least(p_at, member.active_until) + interval '1 microsecond' as to_at,
           p_owed and member.misfire = MISFIRE_FIRE_ALL as all_owed,
           p_owed and member.misfire <> MISFIRE_FIRE_ALL and not next.got and next.at > member.active_since
             and (member.misfire = MISFIRE_FIRE_ONCE or next.at >= p_at - grace()) as owed
    from jobs job
    cross join unnest(job.schedule_ids) schedule (schedule_id)
    cross join lateral (
      select * from members member
      where member.shard = job.shard and member.schedule_id = schedule.schedule_id
        and member.job_id = job.job_id offset 0) member
    cross join lateral (
      select * from cohorts cohort
      where cohort.shard = member.shard and cohort.schedule_id = member.schedule_id offset 0) cohort
    cross join lateral (select coalesce(member.job_id <= cohort.gap_cursor, false) as jumped) jump
    cross join lateral (
      select case when jump.jumped then cohort.target_at else cohort.next_at end as at,
             not jump.jumped and coalesce(member.job_id <= cohort.cursor, false) as got) next
    where job.job_id = any (p_jobs) and next.at <= p_at
      and (member.active_until is null or member.active_until >= next.at)),
  created as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state)
    select distinct on (job_id, at) job_id, at, 0, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority,
           'schedule'::cause, 'queued'::run_state
    from behind
    where owed on conflict do nothing
    returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, cause, key_id, cap, late_at, expires_at, blocked)
    select run.job_id, run.scheduled_for, 0, run.scheduled_for + member.jitter_ms * interval '1 ms', run.tenant_id,
           run.task_id, run.revision, run.shard, run.pool_id, run.priority, 'schedule', member.key_id, member.cap,
           run.scheduled_for + member.jitter_ms * interval '1 ms' + member.late_after,
           run.scheduled_for + member.expires_in,
           initial_block_flags(run.job_id, run.tenant_id, member.overlap, member.key_id, run.scheduled_for,
                               row_number() over (partition by run.job_id order by run.scheduled_for))
    from created run
    cross join lateral (
      select * from behind member where member.job_id = run.job_id and member.at = run.scheduled_for limit 1) member),
  catchups as (
    insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most,
                           horizon, who, why, created_at)
    select member.tenant_id, member.job_id, member.shard, 'catchup', member.schedule_id, missed.from_at, member.to_at,
           case member.overlap when OVERLAP_ALLOW then 10 else 1 end, catchup.rate, catchup.most, catchup.horizon,
           'misfire', p_reason, p_at
    from behind member
    cross join lateral catchup_of(member.job_id) catchup
    cross join lateral (
      select case when member.got then member.at + interval '1 microsecond' else member.from_at end as from_at) missed
    where member.all_owed and missed.from_at < member.to_at)
  insert into gaps (job_id, from_at, to_at, schedule_id, reason, into_at, recorded_at)
  select job_id, missed.from_at, member.to_at, member.schedule_id, p_reason, missed.into_at, p_at from behind member
  cross join lateral (
    select case when member.got or member.owed then member.at + interval '1 microsecond'
                else member.from_at end as from_at,
           case when member.owed then member.at end as into_at) missed
  where missed.from_at < member.to_at and not member.all_owed on conflict do nothing;
  perform end_skipped_runs(p_jobs);

  delete from members where ctid = any (array(
    select member.ctid from jobs job cross join unnest(job.schedule_ids) schedule (schedule_id) cross join lateral (
      select member.ctid from members member
      where member.shard = job.shard and member.schedule_id = schedule.schedule_id and member.job_id = job.job_id
      offset 0) member
    where job.job_id = any (p_jobs)));

  with early as (
    delete from queue where job_id = any (p_jobs) and cause = 'schedule' and worker_id is null and attempt = 0
      and scheduled_for > p_at
    returning job_id, scheduled_for, slot)
  delete from runs run using early
  where run.job_id = early.job_id and run.scheduled_for = early.scheduled_for and run.slot = early.slot;

  -- One-shots that are due and have not fired are settled in the same way.
  perform ensure_days(array(
    select distinct day_of(scheduled_for) from timers
    where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0 and not rearms and due_at <= p_at));
  with due as (
    delete from timers timer using jobs job
    where timer.job_id = any (p_jobs) and timer.cause = 'schedule' and timer.attempt = 0 and not timer.rearms
      and timer.due_at <= p_at and job.job_id = timer.job_id
    returning timer.*, p_owed and (job.misfire <> 'skip' or timer.due_at >= p_at - grace()) as owed),
  created as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state)
    select job_id, scheduled_for, slot, p_at, 0, tenant_id, task_id, revision, shard, pool_id, priority, cause, 'queued'
    from due where owed on conflict do nothing returning *),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, cause, key_id, cap, expires_at, blocked)
    select run.job_id, run.scheduled_for, run.slot, run.scheduled_for, run.tenant_id, run.task_id, run.revision,
           run.shard, run.pool_id, run.priority, run.cause,
           job.key_id, job.cap, run.scheduled_for + job.expires_in, case when job.key_id is null then 0 else LIMITED end
    from created run join jobs job on job.job_id = run.job_id)
  insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
  select job_id, scheduled_for, scheduled_for + interval '1 microsecond', 1, p_reason, p_at from due where not owed
  on conflict do nothing;

  delete from timers where job_id = any (p_jobs) and cause = 'schedule' and attempt = 0;
end $$;

-- Adds active jobs to the cohorts of their schedules, and creates the timers of one-shots and fixed delays.
--
-- p_old    Ids of stored jobs; their rows are read.
-- p_new    Batches of jobs that this transaction has just inserted; their columns are taken from the batch.
-- h_*      The first fire time of each schedule after the caller's p_asof; a new cohort starts there.
-- k_*      All fire times of the following seconds. A tick that fires ahead of time may have passed some of them; the
--          jobs get runs for those here.
-- p_past   A one-shot may lie this far in the past, because clocks differ and requests take time.
-- p_waits  False if no job has a one-shot or a delay: the step that creates timers is skipped.
create or replace function join_cohorts(
  p_old uuid[], p_new job_batch[], p_at timestamptz, p_past interval, h_schedule integer[], h_next timestamptz[],
  k_schedule integer[], k_at timestamptz[], p_waits boolean default true) returns void
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
declare
  -- An object, so that each cohort costs one lookup: a join would compare every job with every schedule.
  first_fires jsonb := jsonb_object(h_schedule::text[], h_next::text[]);
  ids         uuid[];
begin
  with joining as (
    select job.job_id, job.shard, schedule.schedule_id, cardinality(job.schedule_ids) > 1 as several, job.tenant_id,
           job.task_id, job.revision, job.pool_id, job.priority, misfire_number(job.misfire) as misfire,
           overlap_number(job.overlap) as overlap, job.key_id, job.cap, milliseconds(job.jitter_by) as jitter_ms,
           job.late_after, job.expires_in,
           greatest(p_at, job.starts_at - interval '1 microsecond') as active_since, job.ends_at
    from unnest(p_old) given (id)
    cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
    cross join unnest(job.schedule_ids) schedule (schedule_id)
    where job.enabled and job.paused_at is null and job.deleted_at is null
    union all
    select job.job_id, job.shard, template.schedule_id, template.several, template.tenant_id, template.task_id, 1,
           template.pool_id, template.priority, template.misfire, template.overlap, template.key_id, template.cap,
           template.jitter_ms, template.late_after, template.expires_in, template.active_since, template.ends_at
    from (
      select batch.jobs, schedule.schedule_id, cardinality(template.schedule_ids) > 1 as several, template.tenant_id,
             template.task_id, template.pool_id, template.priority, misfire_number(template.misfire) as misfire,
             overlap_number(template.overlap) as overlap, template.key_id, template.cap,
             milliseconds(template.jitter_by) as jitter_ms, template.late_after, template.expires_in,
             greatest(p_at, template.starts_at - interval '1 microsecond') as active_since, template.ends_at
      from unnest(p_new) batch
      cross join lateral (select (batch.template).*) template
      cross join unnest(template.schedule_ids) schedule (schedule_id)
      where batch.expected = 0 and template.enabled offset 0) template
    cross join lateral batch_jobs(template.jobs) job),
  joined as (
    insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                         key_id, cap, jitter_ms, several, late_after, expires_in, active_since, active_until)
    select shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap, key_id, cap,
           jitter_ms, several, late_after, expires_in, active_since, ends_at
    from joining
    returning shard, schedule_id)
  insert into cohorts (shard, schedule_id, next_at)
  select needed.shard, needed.schedule_id,
         coalesce((first_fires ->> needed.schedule_id::text)::timestamptz, end_of_time())
  from (select distinct shard, schedule_id from joined offset 0) needed
  where not exists (                                     -- most cohorts exist
      select 1 from cohorts cohort
      where cohort.shard = needed.shard and cohort.schedule_id = needed.schedule_id offset 0)
  order by 1, 2 on conflict do nothing;

  if cardinality(k_schedule) > 0 then
  ids := p_old || array(
    select job.job_id from unnest(p_new) batch cross join lateral batch_jobs(batch.jobs) job
    where batch.expected = 0 and (batch.template).schedule_ids && k_schedule);
  with created as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state)
    select member.job_id, fire.at, 0, p_at, 0, member.tenant_id, member.task_id, member.revision, member.shard,
           member.pool_id, member.priority, 'schedule', 'queued'
    from unnest(ids) given (id)
    cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
    cross join unnest(job.schedule_ids) schedule (schedule_id)
    cross join lateral (
      select fire.at from unnest(k_schedule, k_at) fire (schedule_id, at)
      where fire.schedule_id = schedule.schedule_id) fire
    cross join lateral (
      select * from cohorts cohort
      where cohort.shard = job.shard and cohort.schedule_id = schedule.schedule_id offset 0) cohort
    cross join lateral (
      select * from members member
      where member.shard = job.shard and member.schedule_id = schedule.schedule_id and member.job_id = job.job_id
      offset 0) member
    where fire.at > member.active_since and (member.active_until is null or member.active_until >= fire.at)
      and (fire.at < cohort.next_at or (fire.at = cohort.next_at and member.job_id <= cohort.cursor))
    on conflict do nothing returning *)
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                     cause, key_id, cap, late_at, expires_at, blocked)
  select run.job_id, run.scheduled_for, 0, run.scheduled_for + job.jitter_by, run.tenant_id, run.task_id, run.revision,
         run.shard, run.pool_id, run.priority, 'schedule', job.key_id, job.cap,
         run.scheduled_for + job.jitter_by + job.late_after, run.scheduled_for + job.expires_in,
         initial_block_flags(run.job_id, run.tenant_id, overlap_number(job.overlap), job.key_id, run.scheduled_for,
                             row_number() over (partition by run.job_id order by run.scheduled_for))
  from created run join jobs job on job.job_id = run.job_id;
  perform end_skipped_runs(ids);
  end if;

  if not p_waits then return; end if;
  ids := p_old || array(
    select job.job_id from unnest(p_new) batch cross join lateral batch_jobs(batch.jobs) job
    where batch.expected = 0 and ((batch.template).once_at is not null or (batch.template).delay is not null));
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision,
                      cause, rearms)
  select job.job_id, due.at, 0, due.at, job.shard, job.pool_id, job.priority, job.tenant_id, job.task_id, job.revision,
         'schedule', job.delay is not null
  from unnest(ids) given (id) cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
  cross join lateral (
    select coalesce(job.once_at,
                    case when job.delay is not null then greatest(p_at + job.delay, job.starts_at) end) as at) due
  where job.enabled and job.paused_at is null and job.deleted_at is null
    and due.at > p_at - p_past and (job.ends_at is null or job.ends_at >= due.at)
    and not exists (
      select 1 from runs run where run.job_id = job.job_id and run.scheduled_for = due.at and run.slot = 0)
    and (job.delay is null
         or not exists (select 1 from queue run where run.job_id = job.job_id and run.rearms)
        and not exists (select 1 from timers timer where timer.job_id = job.job_id and timer.rearms))
  on conflict do nothing;
end $$;
