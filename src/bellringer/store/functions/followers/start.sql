-- Starting followers: a run of a job that starts after another is created in the transaction that ends the run of the
-- upstream job.
--
-- Guarantees  A follower gets one run for each run of its upstream job that ended as it wants: the key of the new run
--             is the time of the upstream run, and a slot derived from the upstream job and its slot. Settling again, a
--             redrive, or another node that settles at the same moment find the key taken.
-- Locks       `lock_followers` is called before any queue row is locked: the rows of followers (shared) so that a pause
--             or a deletion comes before or after, then their shards (shared) if they have schedules, so that a tick
--             does. `start_followers` takes LOCK_FOLLOWER_RUN of each follower whose runs may not overlap: two upstream
--             runs that end at once must see each other's follow-up.
-- Costs       Without followers, one look at an empty table for each call.

-- The jobs that start after one of p_jobs.
create or replace function followers_of(p_jobs uuid[]) returns uuid[]
language plpgsql stable set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
begin
  return array(
    select distinct follower.job_id
    from (select distinct unnest(p_jobs) as job_id offset 0) given
    cross join lateral (
      select job.tenant_id, job.name_key from jobs job where job.job_id = given.job_id offset 0) upstream
    cross join lateral (
      select found.job_id from job_followers found
      where found.tenant_id = upstream.tenant_id and found.upstream_key = upstream.name_key offset 0) follower);
end $$;

-- Locks followers, and other jobs that the caller needs: all rows in one order, as every writer of jobs does.
create or replace function lock_followers(p_followers uuid[], p_others uuid[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  s smallint;
begin
  perform from jobs where job_id = any (p_followers || p_others) order by job_id for share;
  for s in
    select distinct job.shard from jobs job
    where job.job_id = any (p_followers)
      and (job.schedule_ids <> '{}' or job.once_at is not null or job.delay is not null)
    order by 1
  loop
    perform pg_advisory_xact_lock_shared(LOCK_SHARD, s);
  end loop;
end $$;

-- The slot of a follower's run: above those of schedules, manual runs and backfills.
create or replace function follower_slot(p_upstream uuid, p_slot bigint) returns bigint
language sql immutable parallel safe as $$
  select FOLLOWER_SLOT_BASE | (hashtextextended(p_upstream || ' ' || p_slot, 0) & (FOLLOWER_SLOT_BASE - 1))
$$;

-- Whether a follower with this condition starts after a run that ended in this state. Cancelled and skipped runs start
-- nothing.
create or replace function is_follow_up(p_outcome text, p_state text) returns boolean
language sql immutable parallel safe as $$
  select case p_state when 'succeeded' then p_outcome in ('success', 'any')
                      when 'dead' then p_outcome in ('failure', 'any') else false end
$$;

-- Creates the runs of followers. The arrays are parallel: the keys of runs that have ended, and their final states. A
-- disabled, deleted or finished follower gets no run; that of a paused one waits until the job is resumed.
create or replace function start_followers(
  p_jobs uuid[], p_times timestamptz[], p_slots bigint[], p_states text[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  now       timestamptz := bellringer.now();
  follower  record;
  available timestamptz[];
  pools     smallint[];
begin
  for follower in
    select distinct found.job_id, job.overlap from unnest(p_jobs, p_states) ended (job_id, state)
    cross join lateral (
      select job.tenant_id, job.name_key from jobs job where job.job_id = ended.job_id offset 0) upstream
    join job_followers found on found.tenant_id = upstream.tenant_id and found.upstream_key = upstream.name_key
    cross join lateral (select job.overlap from jobs job where job.job_id = found.job_id offset 0) job
    where is_follow_up(found.outcome, ended.state) order by 1
  loop
    if follower.overlap <> 'allow' then
      perform pg_advisory_xact_lock(LOCK_FOLLOWER_RUN, uuid_hash(follower.job_id));
    end if;
  end loop;
  if not found then return; end if;

  with wanted as materialized (
    select job.job_id, ended.scheduled_for, follower_slot(ended.job_id, ended.slot) as slot, job.tenant_id, job.task_id,
           job.revision, job.shard, job.pool_id, job.key_id, job.cap, job.overlap, job.paused_at,
           now + job.jitter_by as available_at, now + job.jitter_by + job.late_after as late_at,
           now + job.expires_in as expires_at,
           -- the follow-ups of a backfill or a catch-up are background work too
           case when upstream_run.priority < 0 then job.priority - 10 else job.priority end as priority,
           job.spec || jsonb_build_object('upstream', jsonb_build_object(
             'job_id', upstream.job_id, 'job', upstream.name, 'slot', ended.slot, 'state', ended.state,
             'attempt', last.attempt)
             || case when upstream_run.trace is null then '{}'
                     else jsonb_build_object('trace_id', substr(upstream_run.trace ->> 'parent', 4, 32)) end
             || case when last.result is null then '{}' when pg_column_size(last.result) > 4096 then '{"large": true}'
                     else jsonb_build_object('result', last.result) end)
             || case when upstream_run.trace is null then '{}'
                     else jsonb_build_object('trace', upstream_run.trace) end as spec
    from unnest(p_jobs, p_times, p_slots, p_states) ended (job_id, scheduled_for, slot, state)
    cross join lateral (select * from jobs job where job.job_id = ended.job_id offset 0) upstream
    join job_followers found on found.tenant_id = upstream.tenant_id and found.upstream_key = upstream.name_key
    cross join lateral (select * from jobs job where job.job_id = found.job_id offset 0) job
    left join lateral (
      select run.priority, run.spec -> 'trace' as trace from runs run
      where run.job_id = ended.job_id and run.scheduled_for = ended.scheduled_for
        and run.slot = ended.slot offset 0) upstream_run on true
    left join lateral (
      select attempt.attempt, case when ended.state = 'succeeded' then attempt.result end as result
      from attempts attempt
      where attempt.job_id = ended.job_id and attempt.scheduled_for = ended.scheduled_for
        and attempt.slot = ended.slot and attempt.ends_as = ended.state::run_state
      order by attempt.attempt desc limit 1) last on true
    where is_follow_up(found.outcome, ended.state) and upstream.deleted_at is null
      and job.deleted_at is null and job.enabled and job.done_at is null
      and (job.starts_at is null or job.starts_at <= now) and (job.ends_at is null or job.ends_at >= now)
      and not exists (
        select from runs run
        where run.job_id = job.job_id and run.scheduled_for = ended.scheduled_for
          and run.slot = follower_slot(ended.job_id, ended.slot))),
  decided as materialized (
    select wanted.*,
           case when paused_at is null then 0 else PAUSED end
             | case when key_id is null then 0 else LIMITED end
             | case when frozen_until(job_id, tenant_id, now) is null then 0 else FROZEN end
             | case when overlap <> 'allow'
                      and (row_number() over (partition by job_id order by scheduled_for, slot) > 1
                           or exists (select from queue run where run.job_id = wanted.job_id))
                    then PREDECESSOR | UNDECIDED else 0 end as blocked
    from wanted),
  insert_runs as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state, spec)
    select job_id, scheduled_for, slot, now, 0, tenant_id, task_id, revision, shard, pool_id, priority, 'after',
           case when blocked & ~LIMITED <> 0 then 'blocked' else 'queued' end::run_state, spec
    from decided),
  insert_queue as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, cause, spec, blocked, key_id, cap, late_at, expires_at)
    select job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, 'after',
           spec, blocked, key_id, cap, late_at, expires_at
    from decided)
  select array_agg(available_at), array_agg(pool_id) from decided into available, pools;
  perform notify_workers(available, pools);
end $$;

-- Starts the followers of runs that a call of `settle` has ended.
create or replace function start_followers_of_endings(p_worker integer, p_endings attempt_ending[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  perform start_followers(array_agg(ended.job_id), array_agg(ended.scheduled_for), array_agg(ended.slot),
                          array_agg(ended.ends_as))
  from unnest(p_endings) ending
  cross join lateral (
    select attempt.job_id, attempt.scheduled_for, attempt.slot, attempt.ends_as::text from attempts attempt
    where attempt.job_id = ending.job_id and attempt.scheduled_for = ending.scheduled_for
      and attempt.slot = ending.slot and attempt.attempt = ending.attempt
      and attempt.worker_id = p_worker and attempt.ends_as in ('succeeded', 'dead') offset 0) ended
  having count(*) > 0;
end $$;
