-- The newest events of a job. The function bypasses row-level security, whose condition could make the planner read all
-- events of the tenant.
create or replace function events_of_job(
  p_tenant integer, p_job uuid, p_kind text, p_before bigint, p_most integer) returns setof events
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select * from events where assert_tenant(p_tenant) and tenant_id + 0 = p_tenant and job_id = p_job
    and event_id < p_before
    and (p_kind is null or kind = p_kind) order by event_id desc limit p_most
$$;
