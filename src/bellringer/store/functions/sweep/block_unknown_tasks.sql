-- Parks ready runs whose task no live worker of their pool knows, so that claims need not skip them. Only the first
-- p_most ready runs of each pool are checked: claims begin there, and later runs move up. A pool without a live worker
-- has no claims to slow down, so its runs are not parked. Runs that share a limit are parked too. The jobs of parked
-- runs get a row in `troubles` until none of their runs is parked (see recover).
create or replace function block_unknown_tasks(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_IN_INDEX_ORDER as $$
declare n integer;
begin
  with known as materialized (
    select distinct pool.pool_id, given.task_id from workers worker
    cross join unnest(worker.task_ids) given (task_id)
    join pools pool on worker.pools ? pool.name
    where worker.state = 'live'),
  unknown_runs as materialized (
    select run.ctid from (select distinct pool_id from known) pool
    cross join lateral (
      select run.ctid, run.task_id, run.available_at from queue run
      where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked = 0
      order by run.tenant_id, run.priority desc, run.available_at limit p_most) run
    where run.available_at <= bellringer.now() - interval '1 second'
      and not exists (select 1 from known where known.pool_id = pool.pool_id and known.task_id = run.task_id)
    union all
    select run.ctid from (select distinct pool_id from known) pool
    cross join lateral (
      select run.ctid, run.task_id, run.available_at from queue run
      where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked = LIMITED
      order by run.tenant_id, run.key_id, run.priority desc, run.available_at limit p_most) run
    where run.available_at <= bellringer.now() - interval '1 second'
      and not exists (select 1 from known where known.pool_id = pool.pool_id and known.task_id = run.task_id)),
  parked as (
    update queue set blocked = blocked | TASK_UNKNOWN
    -- `+ 0` keeps the planner from using the indexes on blocked
    where ctid = any (array(select ctid from unknown_runs)) and worker_id is null
      and (blocked + 0 = 0 or blocked + 0 = LIMITED)
    returning job_id, scheduled_for, tenant_id, revision),
  recorded as (
    insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at, began_at)
    select parked.job_id, min(parked.tenant_id), 'unknown_task', min(parked.scheduled_for), bellringer.now(),
           '-infinity', bellringer.now()
    from parked
    where parked.revision is not null
    group by parked.job_id
    order by parked.job_id on conflict do nothing)
  select count(*) from parked into n;
  return n;
end $$;

-- Makes at most p_most parked runs ready again whose task a live worker of their pool knows. Locks the queue rows,
-- skipping locked rows.
create or replace function unblock_known_tasks(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_IN_INDEX_ORDER as $$
declare n integer;
begin
  with known as materialized (
    select distinct pool.pool_id, given.task_id from workers worker cross join unnest(worker.task_ids) given (task_id)
    join pools pool on worker.pools ? pool.name where worker.state = 'live'),
  known_runs as materialized (
    select run.ctid from queue run
    where run.blocked = any (bits(TASK_UNKNOWN)) and run.blocked & HELD <> 0
      and exists (select 1 from known where known.pool_id = run.pool_id and known.task_id = run.task_id)
    limit p_most for update skip locked)
  update queue set blocked = blocked & ~TASK_UNKNOWN where ctid = any (array(select ctid from known_runs));
  get diagnostics n = row_count;
  return n;
end $$;
