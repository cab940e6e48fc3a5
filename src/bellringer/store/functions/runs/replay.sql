-- The slot of the runs of a backfill. The runs of a catch-up are the regular occurrences of the schedule, in slot 0.
create or replace function slot_of(backfill backfills) returns bigint language sql immutable parallel safe as
$$ select case backfill.cause when 'catchup' then 0 else (1::bigint << 40) + backfill.backfill_id end $$;

-- Runs an ended occurrence again as a new run with p_spec, and returns its slot. Without a slot nothing was created:
-- o_state is null if the tenant has no such run, the state of a run that has not ended, or 'deleted' if the job was
-- deleted. Locks the row of the job (shared).
create or replace function replay(
  p_job uuid, p_at timestamptz, p_slot bigint, p_tenant integer, p_spec jsonb, p_reason text, out o_slot bigint,
  out o_state text)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  run runs;
  job jobs;
begin
  perform filter_of(p_tenant, '{}');
  -- a pause or a deletion happens before or after this transaction, not in between
  select * into job from jobs where job_id = p_job and tenant_id = p_tenant for share;
  select * into run from runs where job_id = p_job and scheduled_for = p_at and slot = p_slot
    and tenant_id + 0 = p_tenant;
  if run.job_id is null then return; end if;
  o_state := state_of(p_job, p_at, p_slot);
  if o_state not in ('succeeded', 'dead', 'cancelled', 'skipped') then return; end if;
  if job.deleted_at is not null then o_state := 'deleted'; return; end if;
  loop
    select max(slot) + 1 into o_slot from runs where job_id = p_job and scheduled_for = p_at and slot < 1::bigint << 40;
    o_slot := coalesce(o_slot, 1);
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state, reason, spec, of_slot)
    values (p_job, p_at, o_slot, bellringer.now(), 0, run.tenant_id, run.task_id, run.revision, run.shard, run.pool_id,
            run.priority, 'replay', 'queued', p_reason, p_spec, p_slot) on conflict do nothing;
    exit when found;
  end loop;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                     cause, spec, key_id, cap, blocked)
  values (p_job, p_at, o_slot, bellringer.now(), run.tenant_id, run.task_id, run.revision, run.shard, run.pool_id,
          run.priority, 'replay', p_spec, job.key_id, job.cap, case when job.key_id is null then 0 else LIMITED end);
  perform note(p_tenant, 'run.replayed', 'run', run_target(p_job, p_at, p_slot),
    jsonb_build_object('slot', o_slot, 'reason', p_reason));
end $$;
