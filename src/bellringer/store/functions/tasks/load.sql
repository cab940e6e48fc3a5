-- The load of each task of a tenant. At most p_most waiting runs of each pool, running runs of each worker, held runs
-- and dead letters of the last hour are counted.
create or replace function task_load(p_tenant integer, p_most integer)
returns table (task_id integer, ready bigint, retrying bigint, running bigint, held bigint, dead bigint,
               oldest timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  with recursive holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holder.worker_id order by run.worker_id limit 1)
    from holders holder where holder.worker_id is not null),
  seen (task_id, kind, at) as (
    select run.task_id, case when run.attempt > 0 then 'retrying' when run.available_at <= bellringer.now() then 'ready'
                             else 'later' end, run.available_at
    from pools pool cross join lateral (
      (select ready.task_id, ready.attempt, ready.available_at from queue ready
       where ready.pool_id = pool.pool_id and ready.worker_id is null and ready.blocked = 0
         and ready.tenant_id = p_tenant
       limit p_most)
      union all
      (select limited.task_id, limited.attempt, limited.available_at from queue limited
       where limited.pool_id = pool.pool_id and limited.worker_id is null and limited.blocked = LIMITED
         and limited.tenant_id = p_tenant
       limit p_most)) run
    union all
    select run.task_id, 'running', null::timestamptz from holders holder cross join lateral (
      select running.task_id from queue running
      where running.worker_id = holder.worker_id and running.tenant_id = p_tenant limit p_most) run
    union all
    select run.task_id, 'held', null::timestamptz
    from (select held.task_id from queue held where held.blocked & TASK_PAUSED = TASK_PAUSED
            and held.tenant_id = p_tenant limit p_most) run
    union all
    select letter.task_id, 'dead', null::timestamptz
    from (select dead.task_id from dead_letters dead
          where dead.tenant_id = p_tenant and dead.died_at > bellringer.now() - interval '1 hour' limit p_most) letter)
  select seen.task_id, count(*) filter (where kind = 'ready'), count(*) filter (where kind = 'retrying'),
         count(*) filter (where kind = 'running'), count(*) filter (where kind = 'held'),
         count(*) filter (where kind = 'dead'), min(seen.at) filter (where kind = 'ready')
  from seen group by seen.task_id;
end $$;
