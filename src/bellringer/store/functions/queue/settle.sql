-- Settling: recording how attempts ended.
--
-- Guarantees  An ending is written once, and only for the worker that holds the attempt: each statement is fenced by
--             worker and attempt number. A worker that is lost or stopped settles nothing; the reaper settles for it
--             (p_reaping), and settles nothing of a live worker.
-- Locks       Jobs, their shards (shared), queue rows, job_outcomes; each kind in key order. Of jobs, only those of
--             workflow runs, those that start after the jobs of these runs, and those of the runs themselves if one is
--             retried (a pause or a deletion then happens before or after this transaction, not in between) or if a
--             dead run may pause its job.
-- Caller      Passes the endings in key order, and may repeat the call until it gets a response.
-- Plans       `worker_id + 0` hides the index of held rows: the planner would read all rows of the worker for each
--             ending.

-- `written` counts the endings that this call wrote. `refused` has the positions of those that were decided otherwise
-- (the run was taken from the worker); an ending that an earlier call wrote is in neither. p_has_workflows: workflow
-- runs or their nodes are among the endings. p_progress: the last progress of each attempt as JSON, by position; null
-- elements leave the stored progress as it is.
create or replace function settle(
  p_worker integer, p_endings attempt_ending[], p_has_workflows boolean default false, p_reaping boolean default false,
  p_progress text[] default null, out written integer, out refused integer[])
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_custom_plan PLAN_BY_KEY as $$
declare
  job_ids     uuid[] := array(select job_id from unnest(p_endings));
  has_retries boolean := exists (select from unnest(p_endings) where ends_as is null);
  tops        uuid[] := '{}';                            -- jobs of the workflow runs whose nodes are among the endings
  followers   uuid[] := '{}';                            -- jobs that start after these
  dying       uuid[] := '{}';                            -- jobs that a dead run may pause
  finished    integer;
  continued   integer := 0;                              -- retried, or opened as a workflow
  tracked     uuid[];                                    -- jobs with pause_after_failures or keep_result
  tracked_runs job_ending[];                             -- runs of these jobs that this call ends
  live_jobs   uuid[];                                    -- of finished runs that are neither catch-up nor backfill
  flow_ids    uuid[];                                    -- finished workflow nodes: their workflow run …
  node_slots  bigint[];
  node_states text[];
  has_expired boolean;                                   -- runs that a worker did not start because of their deadline
begin
  -- Planning takes longer than settling a few runs. Workflows have statements whose plans depend on the tables.
  if not p_has_workflows then
    perform set_config('plan_cache_mode', 'force_generic_plan', true);
  end if;

  -- Step 1: fence by the state of the worker.
  if p_reaping = exists (select from workers where worker_id = p_worker and state in ('live', 'draining')) then
    written := 0;
    refused := array(select generate_series(1, cardinality(p_endings)));
    return;
  end if;

  -- Step 2: locks. Without retries one statement deletes all rows, and locks them in the order of the endings.
  if exists (select from jobs where (pause_after_failures is not null or spec ? 'keep_result')
             and deleted_at is null) then
    tracked := array(select job_id from jobs
                     where job_id = any (job_ids) and (pause_after_failures is not null or spec ? 'keep_result')
                       and deleted_at is null);
    dying := dying_jobs(p_endings);
  end if;
  if p_has_workflows then
    tops := array(select top_job from flows where flow_id = any (job_ids));
  end if;
  if exists (select from job_followers) then             -- a call that sets planner settings costs more than the look
    followers := followers_of(job_ids || tops);
  end if;
  -- All jobs at once, because writers of several jobs lock them in the order of their ids. The steps below find these
  -- rows locked.
  if dying <> '{}' then
    perform lock_shards_shared(
      dying || followers || case when has_retries or p_has_workflows then job_ids || tops else '{}' end, '{}');
  elsif followers <> '{}' then
    perform lock_followers(followers, case when has_retries or p_has_workflows then job_ids || tops else '{}' end);
  end if;
  if p_has_workflows then
    perform lock_tops(job_ids);
  end if;
  if has_retries then
    perform from jobs where job_id = any (job_ids) order by job_id for share;
  end if;
  if has_retries or p_progress is not null then
    perform from unnest(p_endings) ending
    join queue run on run.job_id = ending.job_id and run.scheduled_for = ending.scheduled_for and run.slot = ending.slot
    order by run.job_id, run.scheduled_for, run.slot for update of run;
  end if;
  if p_progress is not null then
    perform store_last_progress(p_worker, p_endings, p_progress);
  end if;

  -- Step 3: runs that end, and runs that get another attempt.
  select count(*),
         array_agg(run.job_id) filter (where run.cause not in ('catchup', 'backfill', 'workflow')),
         array_agg(run.job_id) filter (where run.cause = 'workflow'),
         array_agg(run.slot) filter (where run.cause = 'workflow'),
         array_agg(run.ends_as) filter (where run.cause = 'workflow'),
         array_agg(run.tracked) filter (where (run.tracked).job_id is not null),
         bool_or(run.ends_as = 'skipped')
  from finish_runs(p_worker, p_endings, tracked) run
  into finished, live_jobs, flow_ids, node_slots, node_states, tracked_runs, has_expired;
  if has_retries then
    continued := retry_runs(p_worker, p_endings);
  end if;

  -- Step 4: what the runs leave to their jobs. Before runs are unblocked: a pause locks the runs that wait.
  if tracked_runs is not null then
    perform record_outcomes(tracked_runs);
  end if;

  -- Step 5: runs that waited for these, jobs that start after them, and workflows.
  if finished > 0 then
    perform unblock_next(job_ids, live_jobs);
  end if;
  if followers <> '{}' and finished > 0 then
    perform start_followers_of_endings(p_worker, p_endings);
  end if;
  if p_has_workflows then
    continued := continued + open_workflow_runs(p_worker, p_endings);
  end if;
  if flow_ids is not null then
    perform advance(flow_ids, node_slots, node_states);
  end if;

  if has_expired then
    perform report_expired(array_agg(job_id), array_agg(scheduled_for), array_agg(slot))
    from unnest(p_endings) where ends_as = 'skipped' and attempt = 1;
  end if;

  -- Step 6: the response.
  written := finished + continued;
  refused := case when written < cardinality(p_endings) then refused_endings(p_worker, p_endings) else '{}' end;
end $$;

-- The jobs that a dead run or a dead workflow node among the endings may pause.
create or replace function dying_jobs(p_endings attempt_ending[]) returns uuid[]
language plpgsql stable set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  ended uuid[] := array(select job_id from unnest(p_endings) where ends_as = 'dead');
begin
  return array(
    select job_id from jobs
    where job_id = any (ended || array(select top_job from flows where flow_id = any (ended)))
      and pause_after_failures is not null and deleted_at is null);
end $$;

-- Ends runs: moves them from the queue to attempts, with a dead letter and an event where a run died, and arms the next
-- run of jobs with a fixed delay. A workflow run that was to be opened ends as cancelled if a stop was requested
-- meanwhile. `tracked` is set for runs of the jobs p_tracked, which may be null.
create or replace function finish_runs(p_worker integer, p_endings attempt_ending[], p_tracked uuid[])
returns table (job_id uuid, slot bigint, cause cause, ends_as text, tracked job_ending)
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
#variable_conflict use_column
begin
  return query
  with finished as (
    delete from queue run using unnest(p_endings) ending
    where run.job_id = ending.job_id and run.scheduled_for = ending.scheduled_for and run.slot = ending.slot
      and run.worker_id + 0 = p_worker and run.attempt = ending.attempt
      and (ending.ends_as <> 'running' or run.cancel_requested
           or exists (select from jobs job where job.job_id = run.job_id and job.deleted_at is not null))
    returning run.job_id, run.scheduled_for, run.slot, run.attempt, run.tenant_id, run.task_id, run.revision,
              run.rearms,
              run.cause, ending.outcome, coalesce(nullif(ending.ends_as, 'running'), 'cancelled') as ends_as,
              run.cancel_requested or exists (
                select from jobs job where job.job_id = run.job_id and job.deleted_at is not null) as stop_requested,
              ending.ran, ending.ended_ago, ending.error, ending.result, ending.reason, ending.fingerprint,
              coalesce(run.progress -> 'details', run.resume_from) as resume_from),
  recorded as (
    insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, revision, attempt,
                          outcome, ends_as, error, result)
    select job_id, scheduled_for, slot, bellringer.now() - (ran + ended_ago) * interval '1 second',
           bellringer.now() - ended_ago * interval '1 second', tenant_id, p_worker, revision, attempt,
           outcome::outcome, ends_as::run_state,
           case when stop_requested and outcome = 'cancelled'
                then coalesce(error::jsonb, '{}') || '{"requested": true}' else error::jsonb end,
           result::jsonb
    from finished),
  dead as (
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error,
                              fingerprint, resume_from)
    select job_id, scheduled_for, slot, tenant_id, task_id, attempt, bellringer.now(), reason, error::jsonb,
           fingerprint, resume_from
    from finished where ends_as = 'dead' and cause <> 'workflow' on conflict do nothing),
  -- No event for a webhook delivery: each event would cause another delivery.
  dead_events as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select bellringer.now(), tenant_id, 'dead', job_id, scheduled_for, slot, attempt,
           jsonb_build_object('reason', reason, 'error', error::jsonb ->> 'type')
    from finished where ends_as = 'dead' and cause not in ('webhook', 'workflow') on conflict do nothing),
  defects as (                                           -- nobody requested the cancellation; `verify` finds it too
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select bellringer.now(), tenant_id, 'stranded', job_id, scheduled_for, slot, attempt,
           '{"reason": "cancelled_unasked"}'
    from finished where outcome = 'cancelled' and ends_as = 'cancelled' and not stop_requested on conflict do nothing),
  rearmed as (
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision,
                        cause, rearms)
    select job.job_id, bellringer.now() + job.delay, 0, bellringer.now() + job.delay, job.shard, job.pool_id,
           job.priority, job.tenant_id, job.task_id, job.revision, 'schedule', true
    from finished run join jobs job on job.job_id = run.job_id
    where run.rearms and job.delay is not null and job.enabled and job.paused_at is null and job.deleted_at is null
      and (job.ends_at is null or job.ends_at >= bellringer.now() + job.delay)
    on conflict do nothing)
  select run.job_id, run.slot, run.cause, run.ends_as,
         case when run.job_id = any (p_tracked)
              then row(run.job_id, run.tenant_id, run.scheduled_for, run.slot, run.attempt, run.cause, run.ends_as,
                       run.ended_ago, run.result)::job_ending end
  from finished run;
end $$;

-- Stores the last progress of attempts that end. The caller has locked the rows.
create or replace function store_last_progress(p_worker integer, p_endings attempt_ending[], p_progress text[])
returns void language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  update queue run set progress = ending.progress::jsonb
  from rows from (unnest(p_endings), unnest(p_progress))
    ending (job_id, scheduled_for, slot, attempt, outcome, ends_as, retry_after, is_counted, ran, ended_ago, error,
            result, reason, fingerprint, progress)
  where ending.progress is not null
    and run.job_id = ending.job_id and run.scheduled_for = ending.scheduled_for and run.slot = ending.slot
    and run.worker_id + 0 = p_worker and run.attempt = ending.attempt;
end $$;

-- Prepares another attempt of runs that do not end; returns how many. The attempt can read the last progress details
-- of those before it (resume_from). A retry within a minute goes back to the queue, a
-- later one waits in timers, except where the next run of the job waits for this one: `tick` looks for it in the queue
-- only.
create or replace function retry_runs(p_worker integer, p_endings attempt_ending[]) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
#variable_conflict use_column
declare
  retried integer;
begin
  with failed as materialized (
    select ending.*, ending.retry_after > 60 and not exists (
             select from jobs job where job.job_id = ending.job_id and job.overlap <> 'allow') as is_far
    from unnest(p_endings) ending where ending.ends_as is null),
  requeued as (
    update queue run
    set worker_id = null, claimed_at = null, progress = null,
        resume_from = coalesce(run.progress -> 'details', run.resume_from),
        available_at = bellringer.now() + failed.retry_after * interval '1 second',
        attempt_floor = run.attempt_floor + (not failed.is_counted)::integer,
        task_id = coalesce((select job.task_id from jobs job where job.job_id = run.job_id and run.spec is null),
                           run.task_id),
        blocked = case
          when exists (select from jobs job where job.job_id = run.job_id and job.paused_at is not null)
            or run.cause = 'workflow' and is_paused(run.job_id)
          then run.blocked | PAUSED else run.blocked end
    from failed
    where run.job_id = failed.job_id and run.scheduled_for = failed.scheduled_for and run.slot = failed.slot
      and run.worker_id + 0 = p_worker and run.attempt = failed.attempt and not failed.is_far
    returning run.job_id, run.scheduled_for, run.slot, run.attempt, run.tenant_id, run.revision, run.cause,
              failed.outcome, failed.ran, failed.ended_ago, failed.error, failed.retry_after, failed.is_counted),
  postponed as (
    delete from queue run using failed
    where run.job_id = failed.job_id and run.scheduled_for = failed.scheduled_for and run.slot = failed.slot
      and run.worker_id + 0 = p_worker and run.attempt = failed.attempt and failed.is_far
    returning run.*, failed.outcome, failed.ran, failed.ended_ago, failed.error, failed.retry_after, failed.is_counted),
  timed as (
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, attempt, attempt_floor,
                        tenant_id, task_id, revision, cause, rearms, spec, expires_at, resume_from)
    select job_id, scheduled_for, slot, bellringer.now() + retry_after * interval '1 second', shard, pool_id, priority,
           attempt, attempt_floor + (not is_counted)::integer, tenant_id, task_id, revision, cause, rearms, spec,
           expires_at, coalesce(progress -> 'details', resume_from)
    from postponed),
  attempted as (
    select job_id, scheduled_for, slot, attempt, tenant_id, revision, cause, outcome, ran, ended_ago, error,
           retry_after, is_counted
    from requeued
    union all
    select job_id, scheduled_for, slot, attempt, tenant_id, revision, cause, outcome, ran, ended_ago, error,
           retry_after, is_counted
    from postponed),
  failed_events as (                                     -- losses do not count, but are events
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select bellringer.now(), tenant_id, 'failed', job_id, scheduled_for, slot, attempt,
           jsonb_build_object('outcome', outcome, 'error', error::jsonb ->> 'type', 'retry_in', retry_after)
    from attempted
    where (is_counted and outcome <> 'ok'
           or outcome = 'lost' and error::jsonb ->> 'type' in ('WorkerLost', 'EventLoopLost'))
      and cause <> 'webhook' on conflict do nothing),
  recorded as (
    insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, revision, attempt,
                          outcome, error)
    select job_id, scheduled_for, slot, bellringer.now() - (ran + ended_ago) * interval '1 second',
           bellringer.now() - ended_ago * interval '1 second', tenant_id, p_worker, revision, attempt,
           outcome::outcome, error::jsonb
    from attempted
    returning 1)
  select count(*) from recorded into retried;
  return retried;
end $$;

-- Opens the workflow runs among the endings; returns how many.
create or replace function open_workflow_runs(p_worker integer, p_endings attempt_ending[]) returns integer
language sql set search_path = bellringer, pg_temp as $$
  select coalesce(open_flows(p_worker, array_agg(job_id), array_agg(scheduled_for), array_agg(slot),
                             array_agg(attempt)), 0)
  from unnest(p_endings) where ends_as = 'running'
$$;

-- Positions of endings that are written neither by this call nor by an earlier one whose response was lost.
create or replace function refused_endings(p_worker integer, p_endings attempt_ending[]) returns integer[]
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  return array(
    select ending.position::integer
    from unnest(p_endings) with ordinality
      ending (job_id, scheduled_for, slot, attempt, outcome, ends_as, retry_after, is_counted, ran, ended_ago, error,
              result, reason, fingerprint, position)
    where not exists (
        select from attempts recorded
        where recorded.job_id = ending.job_id and recorded.scheduled_for = ending.scheduled_for
          and recorded.slot = ending.slot and recorded.attempt = ending.attempt
          and recorded.worker_id = p_worker and recorded.outcome = ending.outcome::outcome)
      and not (ending.ends_as = 'running' and exists (   -- a workflow run that is open
        select from queue run
        where run.job_id = ending.job_id and run.scheduled_for = ending.scheduled_for and run.slot = ending.slot
          and run.attempt = ending.attempt and run.worker_id is null and run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW))
    order by ending.position);
end $$;
