-- The end of nodes and of workflow runs. Callers hold the lock of the workflow run's row in `flows`.

-- Ends the run of a node without a worker: by a signal, or because an operator marks it.
create or replace function end_node(
  p_flow flows, p_node integer, p_state run_state, p_result jsonb, p_error jsonb) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  next_attempt integer;
begin
  delete from timers where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node;
  delete from queue where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node;
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                    initial_state, spec)
  select p_flow.flow_id, p_flow.scheduled_for, p_node, bellringer.now(), 0, p_flow.tenant_id, graph_node.task_id,
         p_flow.shard, coalesce(graph_node.pool_id, p_flow.pool_id), p_flow.priority, 'workflow', 'queued',
           graph_node.spec
  from flow_nodes node join graph_nodes graph_node on graph_node.graph_id = p_flow.graph_id
    and graph_node.node = node.of
  where node.flow_id = p_flow.flow_id and node.node = p_node on conflict do nothing;
  select coalesce(max(attempt), 0) + 1 from attempts
  where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node
  into next_attempt;
  insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, outcome, ends_as,
                        error, result)
  values (p_flow.flow_id, p_flow.scheduled_for, p_node, next_attempt, bellringer.now(), bellringer.now(),
          p_flow.tenant_id, outcome_of(p_state), p_state, p_error, p_result);
end $$;

-- The outcome of the attempt that ends a run in this state.
create or replace function outcome_of(p_state run_state) returns outcome language sql immutable parallel safe as $$
  select case p_state when 'succeeded' then 'ok' when 'dead' then 'failed' else 'cancelled' end::bellringer.outcome
$$;

-- Nodes that failed and whose failure no other node has handled (by the rule one_failed).
create or replace function unhandled_failures(p_flow flows) returns setof flow_nodes language sql stable as $$
  select node.* from flow_nodes node
  cross join lateral (
    select undoes from graph_nodes where graph_id = p_flow.graph_id and node = node.of offset 0) graph_node
  where node.flow_id = p_flow.flow_id and node.place is null and node.state in ('dead', 'cancelled')
    and graph_node.undoes is null
    and not exists (
      select from graph_edges edge
      cross join lateral (
        select rule from graph_nodes where graph_id = edge.graph_id and node = edge.child offset 0) handler
      cross join lateral (
        select state from flow_nodes where flow_id = p_flow.flow_id and node = edge.child offset 0) handled
      where edge.graph_id = p_flow.graph_id and edge.parent = node.node and handler.rule = 'one_failed'
        and handled.state = 'succeeded' offset 0)
  order by node.changed_at, node.node
$$;

-- Ends workflow runs whose nodes have all ended. One that did not succeed first runs its compensations (nodes that undo
-- others), in reverse order and one after another. Returns whether such a node is to begin.
create or replace function end_finished_flows(p_flows uuid[]) returns boolean
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  flow          flows;
  failed_names  text[];
  ends_as       run_state;
  begins        boolean := false;
  parent_flows  uuid[];                                  -- inner workflow runs that ended: nodes of other workflow runs
  parent_nodes  bigint[];
  parent_states text[];
begin
  for flow in
    select finished.* from (select distinct flow_id from unnest(p_flows) given (flow_id)) given
    cross join lateral (select * from flows where flow_id = given.flow_id offset 0) finished
    where finished.unfinished = 0 and finished.finished_at is null order by finished.flow_id
  loop
    failed_names := array(
      select (select name from graph_nodes where graph_id = flow.graph_id and node = failed.of)
      from unhandled_failures(flow) failed limit 20);
    ends_as := coalesce(flow.stopped_as, case when failed_names <> '{}' then 'dead' else 'succeeded' end::run_state);
    if begin_compensation(flow, ends_as) then
      begins := true;
    elsif end_workflow_run(flow, ends_as, failed_names) and flow.parent is not null then
      parent_flows := parent_flows || flow.job_id;
      parent_nodes := parent_nodes || flow.slot;
      parent_states := parent_states || ends_as::text;
    end if;
  end loop;
  if parent_flows is not null then                       -- all in one call, because advance locks them in order
    perform advance(parent_flows, parent_nodes, parent_states);
  end if;
  return begins;
end $$;

-- Makes the next compensation of a workflow run ready; returns whether there is one. Without one, compensations that
-- are not needed are skipped.
create or replace function begin_compensation(p_flow flows, p_ends_as run_state) returns boolean
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  next_node integer;
begin
  if not exists (select from graphs where graph_id = p_flow.graph_id and undoes) then
    return false;
  end if;
  select graph_node.node from graph_nodes graph_node
  cross join lateral (
    select state from flow_nodes where flow_id = p_flow.flow_id and node = graph_node.node offset 0) compensation
  cross join lateral (
    select state from flow_nodes where flow_id = p_flow.flow_id and node = graph_node.undoes offset 0) undone
  where graph_node.graph_id = p_flow.graph_id and graph_node.undoes is not null and compensation.state = 'blocked'
    and undone.state = 'succeeded' and p_ends_as <> 'succeeded'
  order by graph_node.undoes desc, graph_node.node desc limit 1
  into next_node;
  if next_node is not null then
    update flow_nodes set ready = true where flow_id = p_flow.flow_id and node = next_node;
    update flows set undoing = true, unfinished = 1 where flow_id = p_flow.flow_id;
    return true;
  end if;
  update flow_nodes set state = 'skipped', reason = 'not needed', changed_at = bellringer.now()
  where flow_id = p_flow.flow_id and state = 'blocked'
    and node = any (array(select node from graph_nodes where graph_id = p_flow.graph_id and undoes is not null));
  return false;
end $$;

-- Ends the run that a workflow run belongs to: its queue row becomes an attempt, with a dead letter and an event if it
-- died. Returns false if it had ended before.
create or replace function end_workflow_run(p_flow flows, p_state run_state, p_failed_names text[]) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  run    queue;
  error  jsonb;
  result jsonb;
begin
  update flows set state = p_state, finished_at = bellringer.now() where flow_id = p_flow.flow_id;
  delete from signals where flow_id = p_flow.flow_id;
  delete from queue
  where job_id = p_flow.job_id and scheduled_for = p_flow.scheduled_for and slot = p_flow.slot
    and blocked & OPEN_WORKFLOW = OPEN_WORKFLOW
  returning * into run;
  if run.job_id is null then
    return false;
  end if;

  if p_state = 'succeeded' then
    result := (select result_of(p_flow.flow_id, p_flow.scheduled_for, graph.output) from graphs graph
               where graph.graph_id = p_flow.graph_id and graph.output is not null);
  else
    error := workflow_error(p_flow, p_failed_names);
  end if;
  insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, revision, outcome,
                        ends_as, error, result)
  values (p_flow.job_id, p_flow.scheduled_for, p_flow.slot, run.attempt, p_flow.started_at, bellringer.now(),
          p_flow.tenant_id, run.revision, outcome_of(p_state), p_state, error, result);
  if p_flow.parent is not null then                      -- a node of another workflow run, which `advance` handles
    return true;
  end if;

  if p_state = 'dead' then
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error,
                              fingerprint)
    values (p_flow.job_id, p_flow.scheduled_for, p_flow.slot, p_flow.tenant_id, run.task_id, run.attempt,
            bellringer.now(),
            error ->> 'reason', error,
            substr(md5('NodesFailed ' || p_flow.top_job || array_to_string(p_failed_names, ' ')), 1, 16))
    on conflict do nothing;
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    values (bellringer.now(), p_flow.tenant_id, 'dead', p_flow.job_id, p_flow.scheduled_for, p_flow.slot, run.attempt,
            jsonb_build_object('reason', error ->> 'reason', 'error', error ->> 'type'))
    on conflict do nothing;
  end if;
  if exists (select from jobs where job_id = p_flow.job_id and deleted_at is null
             and (pause_after_failures is not null or spec ? 'keep_result')) then
    perform record_outcomes(array[row(p_flow.job_id, p_flow.tenant_id, p_flow.scheduled_for, p_flow.slot, run.attempt,
                                      run.cause, p_state, 0, result::text)::job_ending]);
  end if;
  if run.rearms then
    perform rearm(p_flow.job_id);
  end if;
  perform unblock_next(
    array[p_flow.job_id], case when run.cause not in ('catchup', 'backfill') then array[p_flow.job_id] else '{}' end);
  if exists (select from job_followers) then
    perform start_followers(array[p_flow.job_id], array[p_flow.scheduled_for], array[p_flow.slot],
                            array[p_state::text]);
  end if;
  return true;
end $$;

-- The error of a workflow run that failed: what stopped it, or the names of its failed nodes with the error of the
-- first one (of a map: of its first failed element).
create or replace function workflow_error(p_flow flows, p_failed_names text[]) returns jsonb
language plpgsql stable set search_path = bellringer, pg_temp as $$
declare
  is_one  boolean := cardinality(p_failed_names) = 1;
  message text := coalesce(p_flow.stopped,
                           case when is_one then 'node ' || p_failed_names[1] || ' failed'
                                else 'nodes ' || array_to_string(p_failed_names[:5], ', ') || ' failed' end);
  root    record;
begin
  if p_flow.stopped is null then
    select root_cause.* from first_failure(p_flow, p_failed_names[1]) root_cause into root;
    message := case when root.error is null then message
                    when is_one then 'node ' || root.name || ' failed: ' || root.error
                    else message || '; ' || root.name || ': ' || root.error end;
  end if;
  return jsonb_build_object(
    'type', case when p_flow.stopped is not null then 'Stopped' else 'NodesFailed' end,
    'nodes', to_jsonb(p_failed_names), 'reason', message, 'message', message);
end $$;

-- A failed node of a workflow run with its error in one line; of a map, the first failed element. No row if no
-- error of it is known.
create or replace function first_failure(p_flow flows, p_name text) returns table (name text, error text)
language sql stable set search_path = bellringer, pg_temp as $$
  select graph_node.name || coalesce('[' || failed.place || ']', ''), coalesce(failure.error, failed.reason)
  from graph_nodes graph_node
  cross join lateral (
    select node.node, node.size, node.first from flow_nodes node
    where node.flow_id = p_flow.flow_id and node.node = graph_node.node offset 0) whole
  cross join lateral (
    select node.node, node.place, node.reason from flow_nodes node
    where node.flow_id = p_flow.flow_id and node.state in ('dead', 'cancelled')
      and (node.node = whole.node or node.node between whole.first and whole.first + whole.size - 1) offset 0) failed
  left join lateral (
    select nullif(left(concat_ws(': ', attempt.error ->> 'type',
                                 coalesce(attempt.error ->> 'message', attempt.error ->> 'reason')),
                       300), '') as error
    from attempts attempt
    where attempt.job_id = p_flow.flow_id and attempt.scheduled_for = p_flow.scheduled_for
      and attempt.slot = failed.node and attempt.error is not null
    order by attempt.attempt desc limit 1) failure on true
  where graph_node.graph_id = p_flow.graph_id and graph_node.name = p_name
    and coalesce(failure.error, failed.reason) is not null
  order by failed.place, failed.node limit 1
$$;
