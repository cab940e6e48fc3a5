-- Whether a tenant has fewer than p_most of something. The count is read under the tenant's lock (LOCK_TENANT_ROOM) in
-- a new statement, so that two transactions never take the last place; the caller inserts in the same transaction.
create or replace function room_for(p_tenant integer, p_what text, p_most integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform pg_advisory_xact_lock(LOCK_TENANT_ROOM, p_tenant);
  return p_most > case p_what
    when 'freeze' then (select count(*) from freezes where tenant_id = p_tenant and to_at > bellringer.now())
    when 'operation' then (select count(*) from operations where tenant_id = p_tenant and state = 'running')
    when 'secret' then (select count(*) from named_secrets where tenant_id = p_tenant)
    when 'webhook endpoint' then (select count(*) from webhook_endpoints where tenant_id = p_tenant)
    when 'notification channel' then (select count(*) from notification_channels where tenant_id = p_tenant)
    when 'notification route' then (select count(*) from notification_routes where tenant_id = p_tenant)
    when 'check-in' then (select count(*) from checkins where tenant_id = p_tenant) end;
end $$;

-- Creates a run of a job for an operation. The slot is derived from the operation, so repeated calls create one run.
-- Returns false if the tenant has no such job or operation. Locks the row of the job (shared).
create or replace function trigger_for_operation(p_job uuid, p_tenant integer, p_operation bigint) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  operation operations;
  n         integer;
begin
  select * into operation from operations where operation_id = p_operation and tenant_id = p_tenant;
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for share;
  if not found or operation.operation_id is null then return false; end if;
  perform ensure_days(array[day_of(operation.created_at)]);
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                    priority, cause, initial_state, reason)
  select job_id, operation.created_at, (1::bigint << 39) + p_operation, bellringer.now(), 0, tenant_id, task_id,
         revision, shard, pool_id, priority, 'manual', 'queued', operation.reason
  from jobs
  where job_id = p_job on conflict do nothing;
  get diagnostics n = row_count;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                     cause, key_id, cap, expires_at, blocked)
  select job_id, operation.created_at, (1::bigint << 39) + p_operation, bellringer.now(), tenant_id, task_id, revision,
         shard, pool_id, priority, 'manual', key_id, cap, operation.created_at + expires_in,
         case when key_id is null then 0 else LIMITED end
  from jobs
  where job_id = p_job and n = 1;
  if n = 1 then perform note(p_tenant, 'run.triggered', 'run',
    run_target(p_job, operation.created_at, (1::bigint << 39) + p_operation), null); end if;
  return true;
end $$;
