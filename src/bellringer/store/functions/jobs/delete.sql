-- Deleting jobs: they leave their cohorts, waiting runs and retries end as cancelled, running attempts finish. The rows
-- stay for their history; the names are free at once.

-- Deletes those of p_jobs that are not deleted. The caller has locked, in this order, the rows of the jobs and their
-- shards (shared); this function locks their queue rows.
create or replace function delete_locked_jobs(p_jobs uuid[], p_at timestamptz, p_who text, p_why text) returns void
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  perform leave_cohorts(p_jobs, p_at, 'deleted', false);
  update jobs set deleted_at = p_at, revision = revision + 1, updated_at = p_at, paused_until = null, what = 'deleted',
    who = p_who, why = p_why
  where job_id = any (p_jobs) and deleted_at is null;
  delete from job_followers where job_id = any (p_jobs);
  with gone as (
    delete from queue where job_id = any (p_jobs) and worker_id is null and blocked & OPEN_WORKFLOW = 0 returning *),
  later as (
    delete from timers where job_id = any (p_jobs) returning *)
  insert into attempts (job_id, scheduled_for, slot, attempt, tenant_id, revision, outcome, ends_as, finished_at, error)
  select job_id, scheduled_for, slot, 0, tenant_id, revision, 'cancelled', 'cancelled', p_at,
    '{"reason": "the job was deleted"}'::jsonb
  from (select job_id, scheduled_for, slot, tenant_id, revision from gone
        union all select job_id, scheduled_for, slot, tenant_id, revision from later where attempt > 0) ended
  on conflict do nothing;
  -- the sweep stops the nodes of open workflow runs
  update queue set cancel_requested = true
  where job_id = any (p_jobs) and blocked & OPEN_WORKFLOW = OPEN_WORKFLOW;
end $$;

-- Deletes a job. Returns the new revision; null if the tenant has no such job. Locks, in this order: the row of the
-- job, its shard (shared), its queue rows.
create or replace function delete_job(p_job uuid, p_tenant integer, p_who text) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  r integer;
begin
  perform assert_tenant(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- never wait for a lock on another tenant's job
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  select revision + 1 into r from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null;
  if r is null then return null; end if;
  perform delete_locked_jobs(array[p_job], bellringer.clock(), p_who, null);
  return r;
end $$;
