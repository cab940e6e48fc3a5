-- Writes an `unknown_task` event for each task whose runs have been parked since before p_before, and a `recovered`
-- event once a worker knows the task. The tasks are found by a skip scan of the index, so the cost does not depend on
-- the number of parked runs.
create or replace function report_unknown_tasks(
  p_now timestamptz, p_before timestamptz, p_most integer, out reported integer, out recovered integer)
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
begin
  with recursive known as materialized (
    select distinct pool.pool_id, given.task_id from workers worker
    cross join unnest(worker.task_ids) given (task_id)
    join pools pool on worker.pools ? pool.name
    where worker.state = 'live'),
  distinct_tasks (tenant_id, pool_id, task_id, n) as (
    (select run.tenant_id, run.pool_id, run.task_id, 1 from queue run
     where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN
     order by run.tenant_id, run.pool_id, run.task_id limit 1)
    union all
    select run.tenant_id, run.pool_id, run.task_id, distinct_tasks.n + 1 from distinct_tasks
    cross join lateral (
      select run.tenant_id, run.pool_id, run.task_id from queue run
      where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN
        and (run.tenant_id, run.pool_id, run.task_id) > (distinct_tasks.tenant_id, distinct_tasks.pool_id,
                                                         distinct_tasks.task_id)
      order by run.tenant_id, run.pool_id, run.task_id limit 1) run
    where distinct_tasks.n < p_most),
  fresh as (
    insert into unknown_tasks (tenant_id, pool_id, task_id, since, job_id, scheduled_for, slot)
    select distinct_tasks.tenant_id, distinct_tasks.pool_id, distinct_tasks.task_id, run.available_at, run.job_id,
           run.scheduled_for, run.slot
    from distinct_tasks
    cross join lateral (
      select * from queue run
      where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN and run.tenant_id = distinct_tasks.tenant_id
        and run.pool_id = distinct_tasks.pool_id and run.task_id = distinct_tasks.task_id
      order by run.available_at limit 1) run
    where run.available_at < p_before
      and not exists (
        select 1 from known where known.pool_id = distinct_tasks.pool_id and known.task_id = distinct_tasks.task_id)
    order by 1, 2, 3 on conflict do nothing
    returning *),
  written as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, fresh.tenant_id, 'unknown_task', fresh.job_id, fresh.scheduled_for, fresh.slot,
           jsonb_build_object('task', task.name, 'pool', pool.name, 'since', fresh.since)
    from fresh
    join tasks task on task.task_id = fresh.task_id
    join pools pool on pool.pool_id = fresh.pool_id
    order by fresh.job_id, fresh.scheduled_for, fresh.slot on conflict do nothing
    returning 1)
  select count(*) from written into reported;

  with known as materialized (
    select distinct pool.pool_id, given.task_id from workers worker
    cross join unnest(worker.task_ids) given (task_id)
    join pools pool on worker.pools ? pool.name
    where worker.state = 'live'),
  resolved as (
    delete from unknown_tasks unknown
    where exists (select 1 from known where known.pool_id = unknown.pool_id and known.task_id = unknown.task_id)
      or not exists (
        select 1 from queue run
        where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN and run.tenant_id = unknown.tenant_id
          and run.pool_id = unknown.pool_id and run.task_id = unknown.task_id)
    returning unknown.*),
  written as (  -- tasks whose runs were cancelled or deleted have not recovered
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, resolved.tenant_id, 'recovered', resolved.job_id, resolved.scheduled_for, resolved.slot,
           jsonb_build_object('after', 'unknown_task', 'since', resolved.since, 'task', task.name, 'pool', pool.name)
    from resolved
    join tasks task on task.task_id = resolved.task_id
    join pools pool on pool.pool_id = resolved.pool_id
    where exists (select 1 from known where known.pool_id = resolved.pool_id and known.task_id = resolved.task_id)
    order by resolved.job_id, resolved.scheduled_for, resolved.slot on conflict do nothing
    returning 1)
  select count(*) from written into recovered;
end $$;

-- Unknown tasks of a tenant, the oldest first, with the number of runs that wait for each, counted up to p_count.
create or replace function unknown_tasks_of(p_tenant integer, p_most integer, p_count integer)
returns table (task text, pool text, since timestamptz, runs bigint, job_id uuid, job text, scheduled_for timestamptz,
               slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  select task.name, pool.name, unknown.since, waiting.many, unknown.job_id, job.name, unknown.scheduled_for,
         unknown.slot
  from (
    select * from unknown_tasks unknown where unknown.tenant_id = p_tenant order by unknown.since limit p_most) unknown
  join tasks task on task.task_id = unknown.task_id
  join pools pool on pool.pool_id = unknown.pool_id
  left join lateral (select job.name from jobs job where job.job_id = unknown.job_id offset 0) job on true
  cross join lateral (
    select count(*) as many
    from (
      select 1 from queue run
      where run.blocked & TASK_UNKNOWN = TASK_UNKNOWN and run.tenant_id = unknown.tenant_id
        and run.pool_id = unknown.pool_id and run.task_id = unknown.task_id limit p_count) run) waiting
  order by unknown.since;
end $$;
