-- The current version of each calendar. This is a function and not a view, because a view reads with the rights of its
-- owner and would bypass row-level security.
create or replace function calendars_now() returns setof calendars language sql stable as $$
  select calendar.* from bellringer.calendars calendar
  where calendar.deleted_at is null
    and not exists (select 1 from bellringer.calendars newer
      where newer.tenant_id = calendar.tenant_id and newer.name = calendar.name and newer.version > calendar.version)
$$;

-- At most p_most jobs that use a calendar, and whether each was stored with another content than p_digest; with
-- p_outdated only those. The result is not ordered: with an order the planner might scan all jobs. `tenant_id + 0`
-- hides the index on tenants, which would read all jobs of the tenant. The function bypasses row-level security, under
-- which the index on calendars could not be used.
create or replace function jobs_with_calendar(
  p_tenant integer, p_name text, p_digest text, p_most integer, p_outdated boolean default false)
returns table (job_id uuid, job text, outdated boolean)
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select job.job_id, job.name, job.outdated
  from (
    select job.job_id, job.name,
           exists (
             select 1 from jsonb_array_elements(job.schedules) schedule
             where schedule ->> 'calendar' = p_name
               and schedule ->> 'calendar_digest' is distinct from p_digest) as outdated
    from jobs job
    where assert_tenant(p_tenant) and job.tenant_id + 0 = p_tenant and job.deleted_at is null
      and job.schedules @? '$[*].calendar'
      and job.schedules @> jsonb_build_array(jsonb_build_object('calendar', p_name))) job
  where job.outdated or not p_outdated limit p_most
$$;

-- Stores a calendar and returns its version. The version increases only if the content differs. Locks the row of the
-- tenant.
create or replace function store_calendar(
  p_tenant integer, p_name text, p_digest text, p_dates date[], p_weekend smallint[], p_who text,
  p_hours text[] default '{}')
returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare held calendars;
begin
  perform assert_tenant(p_tenant);
  perform 1 from tenants where tenant_id = p_tenant for no key update;     -- or two calls could take the same version
  insert into days_off (digest, dates, weekend, hours) values (p_digest, p_dates, p_weekend, p_hours)
  on conflict do nothing;
  select * into held from calendars where tenant_id = p_tenant and name = p_name order by version desc limit 1;
  if held.digest = p_digest and held.deleted_at is null then return held.version; end if;
  insert into calendars (tenant_id, name, version, digest, changed_at, changed_by)
  values (p_tenant, p_name, coalesce(held.version, 0) + 1, p_digest, bellringer.now(), p_who);
  return coalesce(held.version, 0) + 1;
end $$;
