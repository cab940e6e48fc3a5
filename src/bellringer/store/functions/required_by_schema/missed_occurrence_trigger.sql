-- Writes a `missed` event for each gap with the reason misfire, and counts its occurrences against the tenant's
-- objective. A trigger does this because several functions write such gaps: a jump of a cohort, a late tick or timer of
-- a job with misfire skip, a catch-up that is cut off. A gap without a count may be empty, so it only writes the event.
-- Rows of usage are locked in key order, as workers do.
create or replace function record_missed() returns trigger
language plpgsql security definer set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  if not exists (select 1 from fresh f where f.reason = 'misfire') then return null; end if;
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  select f.recorded_at, j.tenant_id, 'missed', f.job_id, f.from_at,
         jsonb_build_object('from', f.from_at, 'to', f.to_at, 'count', f.count, 'misfire', j.misfire)
  from fresh f cross join lateral (select j.tenant_id, j.misfire from jobs j where j.job_id = f.job_id offset 0) j
  where f.reason = 'misfire' order by f.job_id, f.from_at
  on conflict do nothing;
  insert into usage as u (minute, pool_id, tenant_id, missed)
  select date_trunc('minute', f.to_at - interval '1 microsecond', 'UTC'), j.pool_id, j.tenant_id, sum(f.count)
  from fresh f cross join lateral (select j.tenant_id, j.pool_id from jobs j where j.job_id = f.job_id offset 0) j
  where f.reason = 'misfire' and f.count > 0 group by 1, 2, 3 order by 1, 2, 3
  on conflict (minute, pool_id, tenant_id) do update set missed = u.missed + excluded.missed;
  return null;
end $$;
