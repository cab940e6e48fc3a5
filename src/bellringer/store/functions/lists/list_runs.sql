-- The newest runs before (b_at, b_shard, b_job, b_slot), ordered by time, shard, job and slot. Reads at most p_scan
-- runs, and looks up the state of at most p_weigh of them, which costs more. If a limit is reached, it returns fewer
-- than p_most runs, and stop_* is the position for the next call. Always returns at least one row. With `enable_sort`
-- off the index gives the order, and only runs with the same time and shard are sorted.
create or replace function list_runs(
  p_tenant integer, p_filter jsonb, b_at timestamptz, b_shard smallint, b_job uuid, b_slot bigint, p_scan integer,
  p_weigh integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, shard smallint, scanned bigint, stop_at timestamptz,
               stop_shard smallint, stop_job uuid, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
declare
  wanted  run_filter := filter_of(p_tenant, p_filter);
  f_task  integer := task_id_of(wanted.task);
  f_pool  smallint := pool_id_of(wanted.pool);
  waiting boolean := coalesce('waiting' = any (wanted.states), false);
  others  boolean := wanted.states is null or wanted.states <> '{waiting}';
  high    timestamptz := least(wanted.to_at, b_at + interval '1 microsecond', 'infinity');
  low     timestamptz := coalesce(wanted.from_at, '-infinity');
begin
  return query
  with seen as materialized (
    select listed.*,
           row_number() over (order by listed.scheduled_for desc, listed.shard desc, listed.job_id desc,
                              listed.slot desc) as nth
    from (
      (select run.job_id, run.scheduled_for, run.slot, run.shard, run.task_id, run.pool_id, run.cause from runs run
       where others and wanted.job is null and run.tenant_id = p_tenant and run.scheduled_for >= low
         and run.scheduled_for < high
         and (b_at is null or (run.scheduled_for, run.shard, run.job_id, run.slot) < (b_at, b_shard, b_job, b_slot))
       order by run.scheduled_for desc, run.shard desc, run.job_id desc, run.slot desc limit p_scan)
      union all
      (select run.job_id, run.scheduled_for, run.slot, run.shard, run.task_id, run.pool_id, run.cause from runs run
       where others and run.job_id = wanted.job and run.tenant_id + 0 = p_tenant and run.scheduled_for >= low
         and run.scheduled_for < high and (b_at is null or (run.scheduled_for, run.slot) < (b_at, b_slot))
       order by run.scheduled_for desc, run.slot desc limit p_scan)
      union all
      (select timer.job_id, timer.scheduled_for, timer.slot, timer.shard, timer.task_id, timer.pool_id, timer.cause
       from timers timer
       where waiting and timer.tenant_id = p_tenant and (timer.attempt > 0) = false and timer.scheduled_for >= low
         and timer.scheduled_for < high
         and (b_at is null
              or (timer.scheduled_for, timer.shard, timer.job_id, timer.slot) < (b_at, b_shard, b_job, b_slot))
       order by timer.scheduled_for desc, timer.shard desc, timer.job_id desc, timer.slot desc limit p_scan)) listed
    order by nth limit p_scan),
  weighed as materialized (                              -- a CTE is read in the order in which it was filled
    select seen.* from seen
    where (wanted.job is null or seen.job_id = wanted.job) and (wanted.task is null or seen.task_id = f_task)
      and (wanted.pool is null or seen.pool_id = f_pool) and (wanted.cause is null or seen.cause = wanted.cause)
    limit p_weigh),
  kept as materialized (
    select weighed.* from weighed
    where (wanted.states is null
           or coalesce((select queue_state(queued) from queue queued
                        where queued.job_id = weighed.job_id and queued.scheduled_for = weighed.scheduled_for
                          and queued.slot = weighed.slot offset 0),
                       (select timer_state(timer) from timers timer
                        where timer.job_id = weighed.job_id and timer.scheduled_for = weighed.scheduled_for
                          and timer.slot = weighed.slot offset 0),
                       (select attempt.ends_as::text from attempts attempt
                        where attempt.job_id = weighed.job_id and attempt.scheduled_for = weighed.scheduled_for
                          and attempt.slot = weighed.slot and attempt.ends_as is not null
                        order by attempt.finished_at desc, attempt.attempt desc limit 1),
                       'queued') = any (wanted.states))
      and (wanted.tag is null
           or exists (
             select 1 from jobs job where job.job_id = weighed.job_id and wanted.tag = any (job.tags) offset 0))
      and (wanted.q is null
           or exists (
             select 1 from tasks task
             left join lateral (select job.name from jobs job where job.job_id = weighed.job_id offset 0) job on true
             where task.task_id = weighed.task_id
               and position(lower(wanted.q) in lower(concat_ws(' ', job.name, task.name))) > 0 offset 0))
      and (wanted.worker is null
           or exists (
             select 1 from queue queued
             where queued.job_id = weighed.job_id and queued.scheduled_for = weighed.scheduled_for
               and queued.slot = weighed.slot and queued.worker_id + 0 = wanted.worker offset 0)
           or exists (
             select 1 from attempts attempt
             where attempt.job_id = weighed.job_id and attempt.scheduled_for = weighed.scheduled_for
               and attempt.slot = weighed.slot and attempt.worker_id = wanted.worker offset 0)) limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from weighed) = p_weigh then (select max(nth) from weighed)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select kept.job_id, kept.scheduled_for, kept.slot, kept.shard, coalesce(tail.nth, (select count(*) from seen)),
         seen.scheduled_for, seen.shard, seen.job_id, seen.slot
  from tail
  left join seen on seen.nth = tail.nth
  left join kept on true
  order by kept.nth;
end $$;
