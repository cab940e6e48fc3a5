-- Returns runs that a worker claimed and did not start, as if they had never been claimed. Runs that were asked to stop
-- meanwhile, and runs of deleted jobs, end as cancelled. Returns how many rows the worker held.
--
-- Locks   Workflow runs (lock_tops), jobs, queue rows; each kind in key order.
-- Caller  Passes the runs in key order, and may repeat the call: rows that the worker no longer holds are left alone.
create or replace function give_back(
  p_worker integer, p_jobs uuid[], p_times timestamptz[], p_slots bigint[], p_attempts integer[]) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  returned   integer;
  cancelled  integer;
  rearmed    integer;
  live_jobs  uuid[];
  flow_ids   uuid[];                                     -- cancelled workflow nodes: their workflow run …
  node_slots bigint[];                                   -- … and their number in it
begin
  -- Step 1: locks.
  perform lock_tops(p_jobs);
  perform from jobs where job_id = any (p_jobs) order by job_id for share;
  perform from unnest(p_jobs, p_times, p_slots) given (job_id, scheduled_for, slot)
  join queue run on run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
  order by run.job_id, run.scheduled_for, run.slot for update of run;

  -- Step 2: runs without a request to cancel return to the queue.
  update queue run
  set worker_id = null, claimed_at = null, attempt = run.attempt - 1,
      task_id = coalesce((select job.task_id from jobs job where job.job_id = run.job_id and run.spec is null),
                         run.task_id),
      blocked = case when exists (
                       select from jobs job
                       where job.job_id = run.job_id
                         and job.paused_at is not
                           null) or run.cause = 'workflow' and is_paused(run.job_id) then run.blocked | PAUSED
                     else run.blocked end
  from unnest(p_jobs, p_times, p_slots, p_attempts) given (job_id, scheduled_for, slot, attempt)
  where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
    and run.worker_id + 0 = p_worker and run.attempt = given.attempt and not run.cancel_requested
    and not exists (select from jobs job where job.job_id = run.job_id and job.deleted_at is not null);
  get diagnostics returned = row_count;

  -- Step 3: the others end.
  with removed as (
    delete from queue run
    using unnest(p_jobs, p_times, p_slots, p_attempts) given (job_id, scheduled_for, slot, attempt)
    where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
      and run.worker_id + 0 = p_worker and run.attempt = given.attempt
    returning run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.revision, run.rearms, run.cause),
  recorded as (
    insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as,
                          error)
    select job_id, scheduled_for, slot, 0, bellringer.now(), tenant_id, revision, 'cancelled', 'cancelled',
           '{"reason": "cancelled before it was started"}'::jsonb
    from removed on conflict do nothing)
  select count(*), count(rearm(job_id)) filter (where rearms),
         array_agg(job_id) filter (where cause not in ('catchup', 'backfill', 'workflow')),
         array_agg(job_id) filter (where cause = 'workflow'), array_agg(slot) filter (where cause = 'workflow')
  from removed into cancelled, rearmed, live_jobs, flow_ids, node_slots;
  if cancelled > 0 then
    perform unblock_next(p_jobs, live_jobs);
  end if;
  if flow_ids is not null then
    perform advance(flow_ids, node_slots, array_fill('cancelled'::text, array[cardinality(flow_ids)]));
  end if;
  return returned + cancelled;
end $$;
