-- Skips: a user excludes one future occurrence of a job. When the tick fires that occurrence, it creates the run with
-- the state skipped, so history, `why` and `verify` show it like any other run. A skip has no effect if its occurrence
-- never fires, because the job was paused, changed or deleted before, or the occurrence was missed in an outage.

-- The reason that the skipped run shows.
create or replace function skip_reason(skip skips) returns text language sql immutable parallel safe as
$$ select 'skipped by ' || skip.who || coalesce(': ' || skip.reason, '') $$;

-- Ends runs as skipped that were created outside a tick although a skip excludes them.
create or replace function end_skipped_runs(p_jobs uuid[]) returns void
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  with passed as (
    delete from queue run using skips skip
    where skip.job_id = any (p_jobs) and run.job_id = skip.job_id and run.scheduled_for = skip.at and run.slot = 0
      and run.cause = 'schedule'
      and run.worker_id is null and run.attempt = 0
    returning run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.revision, skip_reason(skip) as reason)
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  select job_id, scheduled_for, slot, 0, bellringer.now(), tenant_id, revision, 'skipped',
    jsonb_build_object('reason', reason) from passed
  on conflict do nothing;
end $$;

-- Adds a skip. The caller has checked that the job has this occurrence at p_revision. Returns 'skipped', 'fired' if the
-- time has passed, 'changed' if the job has another revision; null if the tenant has no such job. Locks, in this order:
-- the row of the job, its shard (shared), so no tick fires between the check and the insert.
create or replace function skip(
  p_job uuid, p_tenant integer, p_at timestamptz, p_revision integer, p_who text, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare r integer;
begin
  perform assert_tenant(p_tenant);
  select revision into r from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for update;
  if r is null then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  if r <> p_revision then return 'changed'; end if;
  if p_at <= bellringer.clock() then return 'fired'; end if;
  delete from skips where job_id = p_job and at < bellringer.now() - interval '30 days';
  insert into skips (job_id, at, tenant_id, who, reason, made_at)
    values (p_job, p_at, p_tenant, p_who, p_reason, bellringer.now())
  on conflict do nothing;
  if found then perform note(p_tenant, 'job.skipped', 'job', p_job::text,
    jsonb_build_object('at', p_at, 'reason', p_reason)); end if;
  perform end_skipped_runs(array[p_job]);             -- the tick may have created the run ahead of time
  return 'skipped';
end $$;

-- Removes a skip before its occurrence has fired. Returns 'wanted' if the occurrence will run, 'fired' if it is too
-- late; null if there is no such skip. Locks as skip does.
create or replace function unskip(p_job uuid, p_tenant integer, p_at timestamptz) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform assert_tenant(p_tenant);
  perform 1 from skips where job_id = p_job and tenant_id = p_tenant and at = p_at;
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  if p_at <= bellringer.clock() or exists (select 1 from runs
    where job_id = p_job and scheduled_for = p_at and slot = 0) then
    return 'fired';
  end if;
  delete from skips where job_id = p_job and tenant_id = p_tenant and at = p_at;
  perform note(p_tenant, 'job.unskipped', 'job', p_job::text, jsonb_build_object('at', p_at));
  return 'wanted';
end $$;
