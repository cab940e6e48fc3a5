-- Makes a retry available now that waits for its backoff. Returns whether there was one.
create or replace function retry_now(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint) returns boolean
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  perform assert_tenant(p_tenant);
  update queue set available_at = bellringer.now()
  where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant and worker_id is null
    and attempt > 0 and available_at > bellringer.now();
  if not found then
    update timers set due_at = bellringer.now()
    where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant and attempt > 0;
    if not found then return false; end if;
  end if;
  perform note(p_tenant, 'run.retried', 'run', run_target(p_job, p_at, p_slot), null);
  return true;
end $$;
