-- Creates timers for active jobs with a fixed delay that have neither an unfinished run nor a timer, because a run
-- ended without creating the next timer. Returns the number of timers.
create or replace function rearm_orphans() returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_IN_INDEX_ORDER as $$
declare n integer;
begin
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision,
                      cause, rearms)
  select job.job_id, bellringer.now() + job.delay, 0, bellringer.now() + job.delay, job.shard, job.pool_id,
         job.priority, job.tenant_id, job.task_id, job.revision, 'schedule', true
  from jobs job
  where job.delay is not null and job.enabled and job.paused_at is null and job.deleted_at is null
    and job.updated_at < bellringer.now() - job.delay - interval '30 seconds'
    and (job.ends_at is null or job.ends_at >= bellringer.now() + job.delay)
    and not exists (select 1 from queue run where run.job_id = job.job_id and run.rearms)
    and not exists (select 1 from timers timer where timer.job_id = job.job_id and timer.rearms)
  on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;
