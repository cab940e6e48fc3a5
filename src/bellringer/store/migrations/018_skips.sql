-- Skips: one coming occurrence of a job that somebody does not want. The tick finds the skip when it comes to the instant, and
-- the run is born as skipped, so history, `why` and `verify` tell of it as of any other run. A skip whose instant never comes,
-- because the job is paused, changed or deleted before, or was passed over in an outage, means nothing.
set local search_path to bellringer;

create table skips (
  job_id    uuid not null,
  at        timestamptz not null,
  tenant_id integer not null,
  who       text not null,
  reason    text,
  made_at   timestamptz not null,
  primary key (job_id, at)
);
create index skips_at on skips (at);

-- What the run will say.
create function because(s skips) returns text language sql immutable parallel safe as
$$ select 'skipped by ' || s.who || coalesce(': ' || s.reason, '') $$;

-- What was born for jobs otherwise than by a tick, though somebody does not want it, ends as skipped.
create function pass_over(p_jobs uuid[]) returns void
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  with passed as (
    delete from queue q using skips s
    where s.job_id = any (p_jobs) and q.job_id = s.job_id and q.scheduled_for = s.at and q.slot = 0 and q.cause = 'schedule'
      and q.worker_id is null and q.attempt = 0
    returning q.job_id, q.scheduled_for, q.slot, q.tenant_id, q.revision, because(s) as reason)
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  select job_id, scheduled_for, slot, 0, bellringer.now(), tenant_id, revision, 'skipped', jsonb_build_object('reason', reason) from passed
  on conflict do nothing;
end $$;

-- Under the shard's lock, so no tick is between the look and the row. The caller has seen that the job, as it was at p_revision,
-- has such an occurrence. Answers `skipped`, `fired` if its time has come, `changed` if the job was; null: there is no such job.
create function skip(p_job uuid, p_tenant integer, p_at timestamptz, p_revision integer, p_who text, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare r integer;
begin
  perform own(p_tenant);
  select revision into r from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for update;
  if r is null then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  if r <> p_revision then return 'changed'; end if;
  if p_at <= bellringer.clock() then return 'fired'; end if;
  delete from skips where job_id = p_job and at < bellringer.now() - interval '30 days';
  insert into skips (job_id, at, tenant_id, who, reason, made_at) values (p_job, p_at, p_tenant, p_who, p_reason, bellringer.now())
  on conflict do nothing;
  if found then perform note(p_tenant, 'job.skipped', 'job', p_job::text, jsonb_build_object('at', p_at, 'reason', p_reason)); end if;
  perform pass_over(array[p_job]);             -- the lead may have born it ahead of its time
  return 'skipped';
end $$;

-- Let an occurrence run after all, as long as nothing has become of it. Answers `wanted`, or `fired`; null: it is not skipped.
create function unskip(p_job uuid, p_tenant integer, p_at timestamptz) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform own(p_tenant);
  perform 1 from skips where job_id = p_job and tenant_id = p_tenant and at = p_at;
  if not found then return null; end if;
  perform lock_shards_shared(array[p_job], '{}');
  if p_at <= bellringer.clock() or exists (select 1 from runs where job_id = p_job and scheduled_for = p_at and slot = 0) then
    return 'fired';
  end if;
  delete from skips where job_id = p_job and tenant_id = p_tenant and at = p_at;
  perform note(p_tenant, 'job.unskipped', 'job', p_job::text, jsonb_build_object('at', p_at));
  return 'wanted';
end $$;
