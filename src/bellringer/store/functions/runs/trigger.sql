-- Creates a run of a job now, at the request of a user, in the first free slot above 0: slot 0 is for scheduled
-- occurrences. Returns nulls if the tenant has no such job. Locks the row of the job (shared).
create or replace function trigger_job(
  p_job uuid, p_tenant integer, p_spec jsonb, out o_scheduled_for timestamptz, out o_slot bigint)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare t timestamptz := bellringer.now();
begin
  perform assert_tenant(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for share;
  if not found then return; end if;
  o_scheduled_for := t; o_slot := 0;
  loop
    o_slot := o_slot + 1;
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state, spec)
    select job_id, t, o_slot, t, 0, tenant_id, task_id, revision, shard, pool_id, priority, 'manual', 'queued', p_spec
    from jobs where job_id = p_job on conflict do nothing;
    exit when found;
  end loop;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                     cause, spec, key_id, cap, expires_at, blocked)
  select job_id, t, o_slot, t, tenant_id, task_id, revision, shard, pool_id, priority, 'manual', p_spec,
         key_id, cap, t + expires_in, case when key_id is null then 0 else LIMITED end from jobs where job_id = p_job;
  perform note(p_tenant, 'run.triggered', 'run', run_target(p_job, t, o_slot), null);
end $$;
