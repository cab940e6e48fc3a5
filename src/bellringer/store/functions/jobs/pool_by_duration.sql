-- The durations of the newest successful attempts of each job, newest first, with the schedules of the job. Only the
-- newest p_look attempts of a job are read, because a job that always fails has a long history without a success.
create or replace function recent_durations(p_jobs uuid[], p_look integer, p_most integer)
returns table (job_id uuid, tenant_id integer, schedule_ids integer[], took double precision[])
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  select job.job_id, job.tenant_id, job.schedule_ids,
         array(
           select extract(epoch from attempt.finished_at - attempt.started_at)::double precision
           from (
             select attempt.scheduled_for, attempt.slot, attempt.attempt, attempt.started_at, attempt.finished_at,
                    attempt.ends_as
             from attempts attempt
             where attempt.job_id = job.job_id
             order by attempt.scheduled_for desc, attempt.slot desc, attempt.attempt desc limit p_look) attempt
           where attempt.ends_as = 'succeeded' and attempt.started_at is not null
           order by attempt.scheduled_for desc, attempt.slot desc, attempt.attempt desc limit p_most)
  from unnest(p_jobs) given (job_id)
  join jobs job on job.job_id = given.job_id and job.deleted_at is null;
end $$;

-- Jobs with a run in this pool that was claimed before p_before. There are at most as many as workers have slots; if
-- there are more than p_most, each call returns a random sample.
create or replace function jobs_running_since(p_pool smallint, p_before timestamptz, p_most integer) returns setof uuid
language sql volatile set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
  select job_id
  from (
    select distinct run.job_id from queue run
    where run.worker_id is not null and run.pool_id = p_pool and run.claimed_at < p_before
      and run.revision is not null) run
  order by random() limit p_most
$$;

-- Those of p_jobs whose definition names neither a pool nor an expected duration. `served` says whether a live worker
-- of the other pool knows the task: without one, a moved job would wait there forever.
create or replace function routed_of(p_jobs uuid[], p_short smallint, p_long smallint)
returns table (job_id uuid, tenant_id integer, revision integer, is_long boolean, served boolean)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_KEY as $$
#variable_conflict use_column
begin
  return query
  select job.job_id, job.tenant_id, job.revision, job.pool_id = p_long,
         exists (
           select 1 from pools pool
           join workers worker on worker.state = 'live' and worker.pools ? pool.name
             and job.task_id = any (worker.task_ids)
           where pool.pool_id = case when job.pool_id = p_long then p_short else p_long end)
  from unnest(p_jobs) given (id)
  cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
  where job.routed and job.expected_duration is null and job.deleted_at is null and job.pool_id in (p_short, p_long);
end $$;

-- Moves a job to the pool that fits the duration of its runs: writes a new revision, and changes its members, timers
-- and waiting runs. The schedules do not change, so the job stays in its cohorts; the shard lock keeps a tick from
-- copying members that are changed here. Returns the new revision; null if the job is not at p_revision any more.
-- Locks, in this order: the row of the job, its shard (shared), its queue rows.
create or replace function change_pool(
  p_job uuid, p_revision integer, p_pool smallint, p_learned boolean, p_who text, p_why text) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_KEPT PLAN_BY_KEY as $$
declare
  t   timestamptz;
  job jobs;
begin
  perform lock_shards_shared(array[p_job], '{}');
  t := bellringer.clock();
  update jobs
  set pool_id = p_pool, learned_at = case when p_learned then t end, revision = revision + 1, updated_at = t,
      what = 'changed', who = p_who, why = p_why
  where job_id = p_job and revision = p_revision and routed and expected_duration is null and deleted_at is null
  returning * into job;
  if job.job_id is null then return null; end if;
  update members m set pool_id = p_pool, revision = job.revision
  where m.shard = job.shard and m.schedule_id = any (job.schedule_ids) and m.job_id = p_job;
  update timers set pool_id = p_pool, revision = job.revision where job_id = p_job and spec is null;
  perform 1 from queue where job_id = p_job order by job_id, scheduled_for, slot for update;
  update queue set pool_id = p_pool, revision = job.revision, blocked = blocked & ~SENT
  where job_id = p_job and spec is null and worker_id is null;
  return job.revision;
end $$;
