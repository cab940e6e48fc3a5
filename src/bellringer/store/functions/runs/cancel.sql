-- Cancels a run: a waiting run ends at once; a running attempt or an open workflow run is asked to stop. Returns
-- 'cancelled' or 'running' accordingly; null if the tenant has no such unfinished run. Locks, in this order: the
-- workflow run if it is a node, the queue row or the timer.
create or replace function cancel(
  p_job uuid, p_at timestamptz, p_slot bigint, p_tenant integer, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  queued queue;
  timer  timers;
begin
  perform assert_tenant(p_tenant);
  perform lock_tops(array[p_job]) where exists (select 1 from flows f where f.flow_id = p_job);
  for look in 1..2 loop          -- a timer that fires after the first look is in the queue at the second
    -- The row is locked before its state is read: a settle may be returning it to the queue.
    select * into queued from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot
      and tenant_id = p_tenant for update;
    exit when queued.job_id is not null;
    delete from timers where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant
      returning * into timer;
    exit when timer.job_id is not null;
  end loop;
  -- the caller or the sweep stops the nodes of a workflow run
  if queued.worker_id is not null or queued.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then
    update queue set cancel_requested = true where job_id = p_job and scheduled_for = p_at and slot = p_slot;
    perform note(p_tenant, 'run.cancelled', 'run', run_target(p_job, p_at, p_slot),
      jsonb_build_object('reason', p_reason, 'state', 'running'));
    return 'running';
  end if;
  if queued.job_id is not null then
    delete from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot;
    delete from signals where flow_id = flow_of(p_job, p_at, p_slot);    -- the workflow run was never opened
  else
    if timer.job_id is null then return null; end if;
    perform ensure_days(array[day_of(timer.scheduled_for)]);
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state, reason, spec)
    select timer.job_id, timer.scheduled_for, timer.slot, bellringer.now(), 0, timer.tenant_id, timer.task_id,
           timer.revision, timer.shard, timer.pool_id, timer.priority, timer.cause, 'cancelled', p_reason, timer.spec
    on conflict do nothing;
  end if;
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as, error)
  values (p_job, p_at, p_slot, 0, bellringer.now(), p_tenant, coalesce(queued.revision, timer.revision), 'cancelled',
          'cancelled', jsonb_build_object('reason', p_reason)) on conflict do nothing;
  if coalesce(queued.rearms, timer.rearms) then perform rearm(p_job); end if;
  perform unblock_next(array[p_job], case when coalesce(queued.cause, timer.cause) not in ('catchup', 'backfill',
    'workflow') then array[p_job] else '{}' end);
  if coalesce(queued.cause, timer.cause) = 'workflow' then perform advance(array[p_job], array[p_slot],
    array['cancelled']); end if;
  perform note(p_tenant, 'run.cancelled', 'run', run_target(p_job, p_at, p_slot),
    jsonb_build_object('reason', p_reason, 'state', 'cancelled'));
  return 'cancelled';
end $$;
