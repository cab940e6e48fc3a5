-- Pauses a job: nothing fires until it is resumed, and runs that no worker has claimed are held, retries included.
-- Returns the new revision, or the current one if the job is already paused with the same reason and end; null if the
-- tenant has no such job. Locks, in this order: the row of the job, its shard (shared), its queue rows.
create or replace function pause(
  p_job uuid, p_tenant integer, p_who text, p_reason text, p_until timestamptz) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform assert_tenant(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- never wait for a lock on another tenant's job
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  select revision into r from jobs                       -- already paused in this way: nothing to do
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at is not null
    and (paused_reason, paused_until) is not distinct from (p_reason, p_until);
  if r is not null then return r; end if;
  t := bellringer.clock();
  perform leave_cohorts(array[p_job], t, 'paused', true)
  from jobs where job_id = p_job and tenant_id = p_tenant and paused_at is null;
  update jobs
  set paused_at = coalesce(paused_at, t), paused_by = p_who, paused_reason = p_reason, paused_until = p_until,
      revision = revision + 1, updated_at = t, what = 'paused', who = p_who, why = p_reason
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null
  returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked & ~SENT | PAUSED
  where job_id = any (p_job || array(select f.flow_id from flows f where f.top_job = p_job and f.finished_at is null))
    and worker_id is null and blocked & OPEN_WORKFLOW = 0;
  return r;
end $$;

-- Resumes a paused job. p_missed says which of the occurrences missed during the pause run: 'skip' (none), 'latest'
-- (p_latest, of p_schedule) or 'all', as a catch-up. The others are recorded as gaps. The count of failures begins
-- again (see pause_after_failures). With p_paused_by, only a pause by this caller is ended: the caller has read whose
-- pause it is, and another caller may have paused the job since. Returns the new revision; null if the tenant has no
-- such paused job. Raises BR001 if the fire times in h_* and k_* are stale (see join_cohorts). Locks as pause does.
create or replace function resume(
  p_job uuid, p_tenant integer, p_who text, p_asof timestamptz, h_schedule integer[], h_next timestamptz[],
  k_schedule integer[], k_at timestamptz[], p_missed text, p_schedule integer, p_latest timestamptz,
  p_paused_by text default null) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  t timestamptz;
  r integer;
begin
  perform assert_tenant(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant;    -- never wait for a lock on another tenant's job
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  if p_paused_by is not null and not exists (select from jobs where job_id = p_job and paused_by = p_paused_by) then
    return null;
  end if;
  perform check_fresh(p_asof);
  t := bellringer.clock();
  insert into gaps (job_id, from_at, to_at, reason, into_at, recorded_at)
  select job.job_id, missed.from_at, missed.to_at, 'paused', p_latest, t from jobs job
  cross join lateral (
    values (job.paused_at + interval '1 microsecond', coalesce(p_latest, t + interval '1 microsecond')),
      (p_latest + interval '1 microsecond', t + interval '1 microsecond')) missed (from_at, to_at)
  where job.job_id = p_job and job.tenant_id = p_tenant and job.deleted_at is null and job.paused_at is not null
    and (p_missed <> 'all' or job.schedule_ids = '{}') and missed.from_at < missed.to_at
  on conflict do nothing;
  insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at, parallelism, rate, most, who,
                         why, created_at)
  select job.tenant_id, job.job_id, job.shard, 'catchup', schedule.schedule_id, missed.from_at, missed.to_at,
         case job.overlap when 'allow' then 10 else 1 end, catchup.rate, 100000, p_who, 'paused', t
  from jobs job
  cross join unnest(case p_missed when 'all' then job.schedule_ids
                         when 'latest' then array[p_schedule] end) schedule (schedule_id)
  cross join lateral catchup_of(job.job_id) catchup
  cross join lateral (
    select coalesce(p_latest, greatest(job.paused_at + interval '1 microsecond', job.starts_at)) as from_at,
           coalesce(p_latest, least(t, job.ends_at)) + interval '1 microsecond' as to_at) missed
  where job.job_id = p_job and job.tenant_id = p_tenant and job.deleted_at is null and job.enabled and job.paused_at < t
    and schedule.schedule_id is not null and missed.from_at < missed.to_at;
  update jobs set paused_at = null, paused_by = null, paused_reason = null, paused_until = null, done_at = null,
                  revision = revision + 1, updated_at = t, what = 'resumed', who = p_who, why = null
  where job_id = p_job and tenant_id = p_tenant and deleted_at is null and paused_at is not null
    returning revision into r;
  if r is null then return null; end if;
  update queue set blocked = blocked & ~PAUSED
  where job_id = any (p_job || array(select f.flow_id from flows f where f.top_job = p_job and f.finished_at is null))
    and blocked & PAUSED = PAUSED;
  update job_outcomes set failures = 0 where job_id = p_job and failures > 0;
  perform join_cohorts(array[p_job], '{}', t, interval '0', h_schedule, h_next, k_schedule, k_at);
  return r;
end $$;
