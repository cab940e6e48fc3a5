-- Stops a workflow run: nodes that wait end now, running ones are requested to stop, no further node starts. Inner
-- workflow runs are stopped by the caller and by the sweep, each in a separate transaction. Compensations that have
-- begun are completed.
create or replace function stop_flow(p_flow uuid, p_reason text, p_as run_state) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  flow  flows;
  gone  bigint[];
  maps  integer[];
  ended integer;
begin
  perform lock_tops(array[p_flow]);
  perform 1 from timers where job_id = p_flow order by scheduled_for, slot for update;
  perform 1 from queue where job_id = p_flow order by scheduled_for, slot for update;
  select * into flow from flows where flow_id = p_flow and finished_at is null for update;
  if flow.flow_id is null or flow.stopped is not null then return false; end if;
  update flows set stopped = p_reason, stopped_as = p_as where flow_id = p_flow;
  if flow.undoing then return true; end if;
  update queue set cancel_requested = true where job_id = p_flow
    and (worker_id is not null or blocked & OPEN_WORKFLOW = OPEN_WORKFLOW);
  with waited as (
    delete from queue where job_id = p_flow and worker_id is null and blocked & OPEN_WORKFLOW = 0 returning slot),
  later as (delete from timers where job_id = p_flow returning slot),
  unsent as (                                            -- waits for signals without a timeout
    select node.node::bigint as slot from flow_nodes node
    join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.node = node.of
      and graph_node.kind = 'signal'
    where node.flow_id = p_flow and node.state = 'queued' and graph_node.waits ->> 'seconds' is null)
  select array_agg(slot) from (select slot from waited union select slot from later union select slot from unsent) ended
  into gone;
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                    initial_state, reason, spec)
  select p_flow, flow.scheduled_for, given.slot, bellringer.now(), 0, flow.tenant_id, graph_node.task_id, flow.shard,
         coalesce(graph_node.pool_id, flow.pool_id), flow.priority, 'workflow', 'cancelled', p_reason, graph_node.spec
  from unnest(gone) given (slot)
  join flow_nodes node on node.flow_id = p_flow and node.node = given.slot
  -- nodes with a timer had no run yet
  join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.node = node.of
  on conflict do nothing;
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, outcome, ends_as, error)
  select p_flow, flow.scheduled_for, given.slot, coalesce(attempt.attempt + 1, 0), bellringer.now(), flow.tenant_id,
         'cancelled', 'cancelled', jsonb_build_object('reason', p_reason)
  from unnest(gone) given (slot)
  cross join lateral (
    select max(attempt.attempt) as attempt from attempts attempt
    where attempt.job_id = p_flow and attempt.scheduled_for = flow.scheduled_for and attempt.slot = given.slot) attempt;
  update flow_nodes n set state = 'skipped', reason = 'stopped', ready = false, changed_at = bellringer.now()
  from graph_nodes g where n.flow_id = p_flow and n.state = 'blocked' and g.graph_id = flow.graph_id and g.node = n.of
    and g.undoes is null;
  -- Maps no longer wait for elements that are skipped now.
  with stopped as (
    select node.of, count(*)::integer as n from flow_nodes node
    where node.flow_id = p_flow and node.place is not null and node.state = 'skipped' and node.reason = 'stopped'
    group by node.of)
  update flow_nodes node
  set elements_failed = node.elements_failed + node.elements_left - remaining.n, elements_left = remaining.n,
      state = case when remaining.n = 0 then 'cancelled'::run_state else node.state end, changed_at = bellringer.now()
  from (
    select stopped.of,
           (select count(*)::integer from flow_nodes node
            where node.flow_id = p_flow and node.of = stopped.of and node.place is not null
              and node.state = 'queued') as n
    from stopped) remaining
  where node.flow_id = p_flow and node.node = remaining.of and node.state = 'queued';
  update flows
  set unfinished = (
        select count(*) from flow_nodes node
        join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.node = node.of
          and graph_node.undoes is null
        where node.flow_id = p_flow and node.place is null and node.state = 'queued')
  where flow_id = p_flow;
  perform advance(array_fill(p_flow, array[coalesce(cardinality(gone), 0)]), coalesce(gone, '{}'),
                  array_fill('cancelled'::text, array[coalesce(cardinality(gone), 0)]))
  where gone is not null;
  perform propagate(array[p_flow], null, null);
  return true;
end $$;

-- Workflow runs to stop: their run was asked to cancel, or their deadline has passed.
create or replace function flows_to_stop(p_most integer) returns table (flow_id uuid, reason text, ends_as run_state)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  return query
  select flow.flow_id, 'it was cancelled'::text, 'cancelled'::run_state from queue run
  cross join lateral (
    select * from flows flow where flow.flow_id = flow_of(run.job_id, run.scheduled_for, run.slot) offset 0) flow
  where run.cancel_requested and run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW and flow.stopped is null
    and flow.finished_at is null limit p_most;
  return query
  select flow.flow_id, 'it has had its time: ' || extract(epoch from flow.deadline_at - flow.started_at) || ' s',
         'dead'::run_state from flows flow
  where flow.deadline_at <= bellringer.now() and flow.finished_at is null and flow.stopped is null limit p_most;
end $$;
