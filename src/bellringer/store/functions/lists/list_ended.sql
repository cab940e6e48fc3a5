-- Runs that ended as dead, cancelled or skipped, by the time of their end, newest first, before (b_ended, …). The
-- limits and the result are those of list_runs.
create or replace function list_ended(
  p_tenant integer, p_filter jsonb, b_ended timestamptz, b_at timestamptz, b_job uuid, b_slot bigint, p_scan integer,
  p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, ended_at timestamptz, scanned bigint,
               stop_ended timestamptz, stop_at timestamptz, stop_job uuid, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
declare
  wanted run_filter := filter_of(p_tenant, p_filter);
  f_task integer := task_id_of(wanted.task);
  f_pool smallint := pool_id_of(wanted.pool);
begin
  return query
  with seen as materialized (
    select attempt.*,
           row_number() over (order by attempt.finished_at desc, attempt.job_id desc, attempt.scheduled_for desc,
                              attempt.slot desc, attempt.attempt desc) as nth
    from unnest(wanted.states) given (state)
    cross join lateral (
      select attempt.job_id, attempt.scheduled_for, attempt.slot, attempt.finished_at, attempt.attempt
      from attempts attempt
      where attempt.tenant_id = p_tenant and attempt.ends_as = given.state::run_state and attempt.ends_as <> 'succeeded'
        and (wanted.from_at is null or attempt.scheduled_for >= wanted.from_at)
        and (wanted.to_at is null or attempt.scheduled_for < wanted.to_at)
        and (b_ended is null
             or (attempt.finished_at <= b_ended
                 and (attempt.finished_at, attempt.job_id, attempt.scheduled_for,
                      attempt.slot) < (b_ended, b_job, b_at, b_slot)))
      order by attempt.finished_at desc, attempt.job_id desc, attempt.scheduled_for desc, attempt.slot desc,
        attempt.attempt desc limit p_scan) attempt
    order by nth limit p_scan),
  kept as materialized (
    select seen.* from seen
    cross join lateral (
      select run.task_id, run.pool_id, run.cause from runs run
      where run.job_id = seen.job_id and run.scheduled_for = seen.scheduled_for and run.slot = seen.slot offset 0) run
    where (wanted.task is null or run.task_id = f_task) and (wanted.pool is null or run.pool_id = f_pool)
      and (wanted.cause is null or run.cause = wanted.cause)
      and not exists (
        select 1 from queue queued
        where queued.job_id = seen.job_id and queued.scheduled_for = seen.scheduled_for
          and queued.slot = seen.slot offset 0)
      and not exists (
        select 1 from timers timer
        where timer.job_id = seen.job_id and timer.scheduled_for = seen.scheduled_for
          and timer.slot = seen.slot offset 0)
      and not exists (
        select 1 from attempts later                     -- redriven, and ended again
        where later.job_id = seen.job_id and later.scheduled_for = seen.scheduled_for and later.slot = seen.slot
          and later.ends_as is not null
          and (later.finished_at, later.attempt) > (seen.finished_at, seen.attempt) offset 0)
      and (wanted.tag is null
           or exists (select 1 from jobs job where job.job_id = seen.job_id and wanted.tag = any (job.tags) offset 0))
      and (wanted.q is null
           or exists (
             select 1 from tasks task
             left join lateral (select job.name from jobs job where job.job_id = seen.job_id offset 0) job on true
             where task.task_id = run.task_id
               and position(lower(wanted.q) in lower(concat_ws(' ', job.name, task.name))) > 0 offset 0))
      and (wanted.worker is null
           or exists (
             select 1 from queue queued
             where queued.job_id = seen.job_id and queued.scheduled_for = seen.scheduled_for and queued.slot = seen.slot
               and queued.worker_id + 0 = wanted.worker offset 0)
           or exists (
             select 1 from attempts attempt
             where attempt.job_id = seen.job_id and attempt.scheduled_for = seen.scheduled_for
               and attempt.slot = seen.slot and attempt.worker_id = wanted.worker offset 0)) limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select kept.job_id, kept.scheduled_for, kept.slot, kept.finished_at, coalesce(tail.nth, (select count(*) from seen)),
         seen.finished_at, seen.scheduled_for, seen.job_id, seen.slot
  from tail
  left join seen on seen.nth = tail.nth
  left join kept on true
  order by kept.nth;
end $$;
