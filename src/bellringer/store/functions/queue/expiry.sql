-- Deadlines of runs (expires_in): no attempt begins at or after queue.expires_at.
--
-- A worker gets the deadline with the run and drops a run that has expired before it calls the handler. Runs that wait
-- (for a worker, a pause, a freeze, an earlier run, an unknown task or a retry) are ended by `expire_runs`.

-- How long a run may wait: the option of a send, which is stored with the run, or that of its job.
create or replace function expiry_of(p_spec jsonb, p_of_job interval) returns interval
language sql immutable parallel safe as $$
  select coalesce(make_interval(secs => (p_spec ->> 'expires_in')::double precision), p_of_job)
$$;

-- The spec of a claimed run, with its deadline in seconds since 1970.
create or replace function claimed_spec(p_spec jsonb, p_expires_at timestamptz) returns jsonb
language sql stable parallel safe as $$
  select case when p_expires_at is null then p_spec
              else p_spec || jsonb_build_object('expires_at', extract(epoch from p_expires_at)) end
$$;

-- Reports runs that ended as skipped because they had not started by their deadline: an `expired` event, at most one an
-- hour for a job, or for the sends of a tenant with the same task; and the usage of the minute in which they were due.
-- Of an occurrence it counts as missed, of another run as a late start. Catch-ups and backfills have no start
-- objective. Locks rows of usage in key order; called last, because workers lock these rows too.
create or replace function report_expired(p_jobs uuid[], p_times timestamptz[], p_slots bigint[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  with expired as materialized (
    select run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.task_id, job.job_id is null as is_send
    from unnest(p_jobs, p_times, p_slots) given (job_id, scheduled_for, slot)
    join runs run on run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
    left join jobs job on job.job_id = run.job_id
    where run.cause <> 'webhook'),
  subjects as materialized (
    select distinct on (tenant_id, subject) expired.*, count(*) over (partition by tenant_id, subject) as many
    from expired cross join lateral (select case when is_send then task_id::text else job_id::text end as subject) named
    order by tenant_id, subject, scheduled_for, job_id)
  insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
  select bellringer.now(), subject.tenant_id, 'expired', subject.job_id, subject.scheduled_for, subject.slot,
         jsonb_build_object('count', subject.many)
           || case when subject.is_send then jsonb_build_object('task', task.name) else '{}' end
  from subjects subject
  join tasks task on task.task_id = subject.task_id
  where case when subject.is_send
             then not exists (
               select from (
                 select event.at, event.data from events event
                 where event.tenant_id = subject.tenant_id and event.kind = 'expired'
                 order by event.event_id desc limit 200) recent
               where recent.at > bellringer.now() - interval '1 hour' and recent.data ->> 'task' = task.name)
             else not exists (
               select from events event
               where event.job_id = subject.job_id and event.kind = 'expired'
                 and event.at > bellringer.now() - interval '1 hour') end
  order by subject.job_id, subject.scheduled_for, subject.slot on conflict do nothing;

  insert into usage as used (minute, pool_id, tenant_id, started, late, missed, occurrences)
  select date_trunc('minute', run.scheduled_for, 'UTC'), run.pool_id, run.tenant_id,
         count(*) filter (where not is_occurrence), count(*) filter (where not is_occurrence),
         count(*) filter (where is_occurrence), 0
  from unnest(p_jobs, p_times, p_slots) given (job_id, scheduled_for, slot)
  join runs run on run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
  cross join lateral (select run.cause = 'schedule' as is_occurrence) kind
  where run.cause not in ('webhook', 'catchup', 'backfill')
  group by 1, 2, 3 order by 1, 2, 3
  on conflict (minute, pool_id, tenant_id) do update
  set started = used.started + excluded.started, late = used.late + excluded.late,
      missed = used.missed + excluded.missed, occurrences = coalesce(used.occurrences, used.started);
end $$;

-- Ends at most p_most waiting runs that have expired. A run without a counted attempt ends as skipped; a run that waits
-- for a retry is dead, because its attempts failed; the death gets an attempt number of its own, and starts the jobs
-- that start after a failure.
--
-- Guarantees  A run ends once: rows are locked, and a row that a worker holds is left to the worker.
-- Locks       Jobs that a dead run may pause or start, with their shards (shared); queue rows, skipping locked ones;
--             job_outcomes.
-- Caller      Calls again while it ends p_most runs.
create or replace function expire_runs(p_most integer, out o_skipped integer, out o_dead integer)
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_INDEX as $$
declare
  found_jobs   uuid[] := array(
    select distinct job_id from (
      select job_id from queue where expires_at <= bellringer.now() and worker_id is null
      order by expires_at limit p_most) expired);
  may_pause    uuid[];
  followers    uuid[] := '{}';                           -- jobs that start after these
  row_ids      tid[];
  job_ids      uuid[];
  live_jobs    uuid[];
  rearming     uuid[];
  tracked_runs job_ending[];
  dead_jobs    uuid[];
  dead_times   timestamptz[];
  dead_slots   bigint[];
  unstarted_jobs  uuid[];                                -- runs that never started …
  unstarted_times timestamptz[];
  unstarted_slots bigint[];
begin
  o_skipped := 0; o_dead := 0;
  if found_jobs = '{}' then return; end if;
  may_pause := array(select job_id from jobs where job_id = any (found_jobs) and pause_after_failures is not null
                     and deleted_at is null);
  if exists (select from job_followers) then
    followers := followers_of(found_jobs);
  end if;
  if may_pause <> '{}' then
    perform lock_shards_shared(may_pause || followers, '{}');
  elsif followers <> '{}' then
    perform lock_followers(followers, '{}');
  end if;
  row_ids := array(
    select ctid from queue
    where expires_at <= bellringer.now() and worker_id is null and job_id = any (found_jobs)
    order by expires_at limit p_most for update skip locked);

  with expired as (
    delete from queue run where run.ctid = any (row_ids)
    returning run.*, case when run.attempt > run.attempt_floor then 'dead' else 'skipped' end as ends_as,
              case when run.attempt > run.attempt_floor then run.attempt + 1 else 0 end as death,
              case when run.attempt > run.attempt_floor
                   then 'expired: its deadline passed before the next attempt' else 'expired' end as reason),
  failed as materialized (
    select expired.*, last.error as last_error from expired
    left join lateral (
      select attempt.error from attempts attempt
      where attempt.job_id = expired.job_id and attempt.scheduled_for = expired.scheduled_for
        and attempt.slot = expired.slot and attempt.attempt = expired.attempt offset 0) last
      on expired.ends_as = 'dead'),
  recorded as (
    insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
    select job_id, scheduled_for, slot, death, bellringer.now(), tenant_id, revision, ends_as::run_state,
           coalesce(last_error, '{}') || jsonb_build_object('reason', reason, 'expired_at', expires_at)
    from failed on conflict do nothing),
  dead as (
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error,
                              fingerprint, resume_from)
    select job_id, scheduled_for, slot, tenant_id, task_id, death, bellringer.now(), reason, last_error,
           substr(md5('expired ' || task_id || coalesce(last_error ->> 'type', '')), 1, 16), resume_from
    from failed where ends_as = 'dead' on conflict do nothing),
  dead_events as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select bellringer.now(), tenant_id, 'dead', job_id, scheduled_for, slot, death,
           jsonb_build_object('reason', reason, 'error', last_error ->> 'type')
    from failed where ends_as = 'dead' on conflict do nothing),
  unneeded_signals as (                                  -- workflow runs that were never opened
    delete from signals where flow_id = any (array(select flow_of(job_id, scheduled_for, slot) from failed)))
  select count(*) filter (where ends_as = 'skipped'), count(*) filter (where ends_as = 'dead'), array_agg(job_id),
         array_agg(job_id) filter (where cause not in ('catchup', 'backfill')),
         array_agg(job_id) filter (where rearms),
         array_agg(row(job_id, tenant_id, scheduled_for, slot, death, cause, ends_as, 0, null)::job_ending)
           filter (where ends_as = 'dead' and job_id = any (may_pause)),
         array_agg(job_id) filter (where ends_as = 'dead'), array_agg(scheduled_for) filter (where ends_as = 'dead'),
         array_agg(slot) filter (where ends_as = 'dead'),
         array_agg(job_id) filter (where ends_as = 'skipped' and attempt = 0),
         array_agg(scheduled_for) filter (where ends_as = 'skipped' and attempt = 0),
         array_agg(slot) filter (where ends_as = 'skipped' and attempt = 0)
  from failed
  into o_skipped, o_dead, job_ids, live_jobs, rearming, tracked_runs, dead_jobs, dead_times, dead_slots,
       unstarted_jobs, unstarted_times, unstarted_slots;
  perform rearm(job_id) from unnest(rearming) given (job_id);
  if tracked_runs is not null then
    perform record_outcomes(tracked_runs);
  end if;
  if job_ids is not null then
    perform unblock_next(job_ids, coalesce(live_jobs, '{}'));
  end if;
  if followers <> '{}' and dead_jobs is not null then
    perform start_followers(dead_jobs, dead_times, dead_slots, array_fill('dead'::text, array[cardinality(dead_jobs)]));
  end if;
  if unstarted_jobs is not null then
    perform report_expired(unstarted_jobs, unstarted_times, unstarted_slots);
  end if;
end $$;
