-- Pausing a task for a tenant: no run of it starts, whether it was scheduled, sent, triggered, retried or created by a
-- workflow. Running ones finish.
--
-- Guarantees  After `hold_task_runs` has returned, no claim gives a run of the task to a worker until the pause ends.
--             The row in task_pauses decides; TASK_PAUSED in queue.blocked only keeps claims from reading the runs that
--             wait. So it is no race if a run is created while its task is being paused: every claim looks at
--             task_pauses, however the run came into the queue. See docs/decisions/027-task-pauses.md.
-- Locks       Rows of task_pauses; queue rows in key order.
-- Caller      Calls `hold_task_runs` after `pause_task` has committed: a claim that began before the commit does not
--             see the pause, and `hold_task_runs` waits for it or takes the run from it.

-- Pauses a task, or changes the reason and the end of its pause.
create or replace function pause_task(
  p_tenant integer, p_task integer, p_who text, p_reason text, p_until timestamptz) returns void
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform assert_tenant(p_tenant);
  insert into task_pauses as pause (tenant_id, task_id, paused_at, paused_by, reason, until_at)
  values (p_tenant, p_task, bellringer.now(), p_who, p_reason, p_until)
  on conflict (tenant_id, task_id) do update
  set paused_at = case when pause.resumed_at is null then pause.paused_at else excluded.paused_at end,
      paused_by = excluded.paused_by, reason = excluded.reason, until_at = excluded.until_at,
      resumed_at = null, release_rate = null, released_at = null
  where (pause.reason, pause.until_at, pause.resumed_at) is distinct from (excluded.reason, excluded.until_at, null);
  if found then
    perform record_task_change(p_tenant, p_task, 'task.paused', p_who,
                               jsonb_build_object('reason', p_reason, 'until', p_until));
  end if;
end $$;

-- Ends the pause of a task. With p_rate, the runs that it has held are released at so many a second, the oldest first,
-- and new ones start at once; without it, all are released. Returns false if the task is not paused.
create or replace function resume_task(
  p_tenant integer, p_task integer, p_who text, p_rate double precision) returns boolean
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform assert_tenant(p_tenant);
  perform from task_pauses where tenant_id = p_tenant and task_id = p_task for update;
  if not found then return false; end if;
  if p_rate is null then
    delete from task_pauses where tenant_id = p_tenant and task_id = p_task;
  else
    perform hold_task_runs(p_tenant, p_task, null, null);              -- a run that is not held would start at once
    update task_pauses set resumed_at = bellringer.now(), released_at = bellringer.now(), release_rate = p_rate,
                           until_at = null
    where tenant_id = p_tenant and task_id = p_task;
  end if;
  perform record_task_change(p_tenant, p_task, 'task.resumed', p_who, jsonb_build_object('rate', p_rate));
  return true;
end $$;

-- Holds waiting runs of paused tasks, and withdraws those that a broker has; returns how many. p_tenant null: of all
-- tenants, which a connection of a tenant may not ask for; p_task null: of all tasks. Looks at the first p_scan ready
-- runs of each tenant in a pool, where claims begin (null: at all), and holds at most p_most. Waits for claims that are
-- under way.
create or replace function hold_task_runs(p_tenant integer, p_task integer, p_scan integer, p_most integer)
returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s'
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  held integer;
begin
  perform assert_tenant(p_tenant);
  with pause as materialized (
    select pause.tenant_id, pause.task_id from task_pauses pause
    where (p_tenant is null or pause.tenant_id = p_tenant) and (p_task is null or pause.task_id = p_task)
      and pause.resumed_at is null and (pause.until_at is null or pause.until_at > bellringer.now())),
  waiting as materialized (
    select run.row_id, pause.task_id
    from pause cross join pools pool cross join lateral (
      (select ready.ctid as row_id, ready.task_id from queue ready
       where ready.pool_id = pool.pool_id and ready.worker_id is null and ready.blocked = 0
         and ready.tenant_id = pause.tenant_id
       order by ready.priority desc, ready.available_at limit p_scan)
      union all
      (select limited.ctid, limited.task_id from queue limited
       where limited.pool_id = pool.pool_id and limited.worker_id is null and limited.blocked = LIMITED
         and limited.tenant_id = pause.tenant_id
       order by limited.key_id, limited.priority desc, limited.available_at limit p_scan)
      union all
      (select sent.ctid, sent.task_id from queue sent
       where sent.pool_id = pool.pool_id and sent.worker_id is null and sent.blocked & SENT = SENT
         and sent.tenant_id = pause.tenant_id
       limit p_scan)) run
    where run.task_id = pause.task_id limit p_most),
  locked as materialized (
    select run.ctid as row_id from queue run
    where run.ctid = any (array(select row_id from waiting)) and run.worker_id is null
      and (run.blocked + 0) & ~(LIMITED | SENT) = 0
    order by run.job_id, run.scheduled_for, run.slot for update)
  update queue set blocked = blocked & ~SENT | TASK_PAUSED, sent_at = null
  where ctid = any (array(select row_id from locked)) and worker_id is null;
  get diagnostics held = row_count;
  return held;
end $$;

-- Releases runs whose task is not paused any more: all, or as many as the rate of the resume allows; at most p_most.
-- p_tenant and p_task as for hold_task_runs. Returns how many. Locks the queue rows, skipping locked rows.
create or replace function release_task_runs(p_tenant integer, p_task integer, p_most integer) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  paused   record;
  allowed  integer;
  released integer;
  total    integer := 0;
begin
  perform assert_tenant(p_tenant);
  for paused in
    with recursive held (tenant_id, task_id) as (         -- a skip scan: the tenants and tasks that have held runs
      (select run.tenant_id, run.task_id from queue run where run.blocked & TASK_PAUSED = TASK_PAUSED
       order by run.tenant_id, run.task_id limit 1)
      union all
      select following.* from held cross join lateral (
        select run.tenant_id, run.task_id from queue run
        where run.blocked & TASK_PAUSED = TASK_PAUSED
          and (run.tenant_id, run.task_id) > (held.tenant_id, held.task_id)
        order by run.tenant_id, run.task_id limit 1) following)
    select held.tenant_id, held.task_id, pause.release_rate as rate, pause.released_at from held
    left join task_pauses pause on pause.tenant_id = held.tenant_id and pause.task_id = held.task_id
    where (pause.tenant_id is null or pause.resumed_at is not null)
      and (p_tenant is null or held.tenant_id = p_tenant) and (p_task is null or held.task_id = p_task)
  loop
    allowed := case when paused.rate is null then p_most - total
                    else least(p_most - total, floor(paused.rate * extract(epoch from bellringer.now()
                                                                                    - paused.released_at))) end;
    continue when allowed <= 0;
    update queue set blocked = blocked & ~TASK_PAUSED
    where ctid = any (array(
      select run.ctid from queue run
      where run.blocked & TASK_PAUSED = TASK_PAUSED and run.tenant_id = paused.tenant_id
        and run.task_id = paused.task_id
      order by run.available_at limit allowed for update skip locked));
    get diagnostics released = row_count;
    total := total + released;
    -- An allowance that was not used expires, so that no burst follows.
    update task_pauses set released_at = greatest(released_at + allowed / release_rate * interval '1 s',
                                                  bellringer.now() - interval '1 s')
    where tenant_id = paused.tenant_id and task_id = paused.task_id and resumed_at is not null;
  end loop;
  return total;
end $$;

-- Ends pauses whose time is over, and forgets those whose held runs are all released; returns the number of the former.
create or replace function end_task_pauses() returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  ended integer;
begin
  with over as (
    delete from task_pauses where resumed_at is null and until_at <= bellringer.now() returning *)
  select count(record_task_change(tenant_id, task_id, 'task.resumed', 'the end of its pause',
                                  jsonb_build_object('until', until_at)))
  from over into ended;
  delete from task_pauses pause where resumed_at is not null and not exists (
    select from queue run where run.blocked & TASK_PAUSED = TASK_PAUSED and run.tenant_id = pause.tenant_id
      and run.task_id = pause.task_id);
  return ended;
end $$;

-- Writes the audit entry and the event of a pause or a resume. Its callers have compared the tenant.
create or replace function record_task_change(
  p_tenant integer, p_task integer, p_action text, p_who text, p_after jsonb) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  task_name text := (select name from tasks where task_id = p_task);
begin
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
  select bellringer.now(), p_tenant, coalesce(actor.who, p_who), actor.origin, actor.request_id, p_action, 'task',
         task_name, jsonb_strip_nulls(p_after)
  from actor() actor;
  -- An event belongs to a job; of a task it has an id of its own, which no job has.
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  values (bellringer.now(), p_tenant, replace(p_action, '.', '_'), md5('task ' || p_tenant || ' ' || p_task)::uuid,
          bellringer.now(), jsonb_strip_nulls(p_after || jsonb_build_object('task', task_name, 'who', p_who)))
  on conflict do nothing;
  return true;
end $$;
