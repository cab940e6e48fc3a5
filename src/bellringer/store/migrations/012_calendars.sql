-- Calendars and freezes: what finds them, and the jobs that use a calendar.
set local search_path to bellringer;

create index freezes_newest on freezes (tenant_id, to_at, freeze_id);

-- Only jobs that use a calendar are in it, so that it costs the others nothing.
create index jobs_calendar on jobs using gin (schedules jsonb_path_ops) where deleted_at is null and schedules @? '$[*].calendar';

-- The version of each calendar that holds. No view, which would read for its owner, who passes the walls between tenants.
create function calendars_now() returns setof calendars language sql stable as $$
  select c.* from bellringer.calendars c
  where c.deleted_at is null
    and not exists (select 1 from bellringer.calendars n where n.tenant_id = c.tenant_id and n.name = c.name and n.version > c.version)
$$;

-- The jobs that use a calendar, at most so many, and whether by another content than this; or only those. In no order, which
-- would tempt the planner to walk over all jobs. `tenant_id + 0` hides the index on tenants, by which all jobs of one would be
-- looked at. It passes the wall between tenants, because with row-level security no such index is used.
create function users_of(p_tenant integer, p_name text, p_digest text, p_most integer, p_outdated boolean default false)
returns table (job_id uuid, job text, outdated boolean)
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select u.job_id, u.name, u.outdated from (
    select j.job_id, j.name, exists (select 1 from jsonb_array_elements(j.schedules) s
                                     where s ->> 'calendar' = p_name and s ->> 'calendar_digest' is distinct from p_digest) as outdated
    from jobs j
    where own(p_tenant) and j.tenant_id + 0 = p_tenant and j.deleted_at is null and j.schedules @? '$[*].calendar'
      and j.schedules @> jsonb_build_array(jsonb_build_object('calendar', p_name))) u
  where u.outdated or not p_outdated limit p_most
$$;

-- Make a calendar what is given; answers its version, which counts on only where the content differs.
create function keep_calendar(p_tenant integer, p_name text, p_digest text, p_dates date[], p_weekend smallint[], p_who text)
returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare held calendars;
begin
  perform own(p_tenant);
  perform 1 from tenants where tenant_id = p_tenant for no key update;     -- one at a time, or two take the same number
  insert into days_off (digest, dates, weekend) values (p_digest, p_dates, p_weekend) on conflict do nothing;
  select * into held from calendars where tenant_id = p_tenant and name = p_name order by version desc limit 1;
  if held.digest = p_digest and held.deleted_at is null then return held.version; end if;
  insert into calendars (tenant_id, name, version, digest, changed_at, changed_by)
  values (p_tenant, p_name, coalesce(held.version, 0) + 1, p_digest, bellringer.now(), p_who);
  return coalesce(held.version, 0) + 1;
end $$;
