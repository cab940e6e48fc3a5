-- Unfinished runs from the queue, if it has at most p_scan rows; `scanned` above p_scan means that it has more, and the
-- caller uses list_runs.
create or replace function list_queue(
  p_tenant integer, p_filter jsonb, b_at timestamptz, b_shard smallint, b_job uuid, b_slot bigint, p_scan integer,
  p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, shard smallint, scanned bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
declare
  wanted run_filter := filter_of(p_tenant, p_filter);
  f_task integer := task_id_of(wanted.task);
  f_pool smallint := pool_id_of(wanted.pool);
begin
  return query
  with seen as materialized (
    (select run.job_id, run.scheduled_for, run.slot, run.shard, run.task_id, run.pool_id, run.cause, run.tenant_id,
            queue_state(run) as state
     from queue run
     where wanted.states = '{running}' and run.worker_id is not null
     order by run.worker_id limit p_scan + 1)
    union all
    (select run.job_id, run.scheduled_for, run.slot, run.shard, run.task_id, run.pool_id, run.cause, run.tenant_id,
            'running'
     from queue run
     where wanted.states = '{running}' and run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW and run.tenant_id = p_tenant
     order by run.job_id limit p_scan + 1)
    union all
    (select run.job_id, run.scheduled_for, run.slot, run.shard, run.task_id, run.pool_id, run.cause, run.tenant_id,
            queue_state(run)
     from queue run
     where wanted.states <> '{running}'
     order by run.job_id limit p_scan + 1)
    union all
    (select timer.job_id, timer.scheduled_for, timer.slot, timer.shard, timer.task_id, timer.pool_id, timer.cause,
            timer.tenant_id, 'retrying'
     from timers timer
     where 'retrying' = any (wanted.states) and timer.tenant_id = p_tenant and (timer.attempt > 0) = true
     order by timer.scheduled_for desc, timer.shard desc, timer.job_id desc, timer.slot desc limit p_scan + 1)),
  kept as materialized (
    select seen.* from seen
    where seen.tenant_id = p_tenant and seen.state = any (wanted.states)
      and (wanted.job is null or seen.job_id = wanted.job) and (wanted.task is null or seen.task_id = f_task)
      and (wanted.pool is null or seen.pool_id = f_pool) and (wanted.cause is null or seen.cause = wanted.cause)
      and (wanted.from_at is null or seen.scheduled_for >= wanted.from_at)
      and (wanted.to_at is null or seen.scheduled_for < wanted.to_at)
      and (b_at is null or (seen.scheduled_for, seen.shard, seen.job_id, seen.slot) < (b_at, b_shard, b_job, b_slot))
      and (wanted.tag is null
           or exists (select 1 from jobs job where job.job_id = seen.job_id and wanted.tag = any (job.tags) offset 0))
      and (wanted.q is null
           or exists (
             select 1 from tasks task
             left join lateral (select job.name from jobs job where job.job_id = seen.job_id offset 0) job on true
             where task.task_id = seen.task_id
               and position(lower(wanted.q) in lower(concat_ws(' ', job.name, task.name))) > 0 offset 0))
      and (wanted.worker is null
           or exists (
             select 1 from queue run
             where run.job_id = seen.job_id and run.scheduled_for = seen.scheduled_for and run.slot = seen.slot
               and run.worker_id + 0 = wanted.worker offset 0)
           or exists (
             select 1 from attempts attempt
             where attempt.job_id = seen.job_id and attempt.scheduled_for = seen.scheduled_for
               and attempt.slot = seen.slot and attempt.worker_id = wanted.worker offset 0))
    order by seen.scheduled_for desc, seen.shard desc, seen.job_id desc, seen.slot desc limit p_most)
  select kept.job_id, kept.scheduled_for, kept.slot, kept.shard, counted.scanned
  from (
    -- do not disclose the number of other tenants' rows
    select case when count(*) > p_scan then p_scan + 1 else count(*) filter (where tenant_id = p_tenant) end as scanned
    from seen) counted
  left join kept on true
  order by kept.scheduled_for desc, kept.shard desc, kept.job_id desc, kept.slot desc;
end $$;
