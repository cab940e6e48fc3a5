-- Advancing: what the end of nodes means for the nodes after them and for the whole workflow run.
--
-- Guarantees  A node begins once, when its rule is satisfied by the nodes before it; a workflow run ends once, when all
--             of its nodes have ended. Everything happens in the transaction that ends the node.
-- Locks       Rows of `flows`, inner workflow runs before the outer ones whose nodes they are. Timers, queue rows and
--             jobs are locked before, by the caller.
-- Plans       Generic plans are kept, so none may depend on the size of a table when it was made: rows are found by
--             their keys in lateral selects with `offset 0`, and updated by their ctid, which is stable while the flow
--             is locked.

-- Records that nodes have ended, and continues with the nodes after them. The arrays are parallel: workflow run, node,
-- final state.
create or replace function advance(p_flows uuid[], p_nodes bigint[], p_states text[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  now           timestamptz := bellringer.now();
  locked_flows  uuid[];
  ended_flows   uuid[];                                  -- nodes that have ended: a map ends with its last element
  ended_nodes   integer[];
  element_flows uuid[];                                  -- elements of maps whose turn it is
  element_nodes integer[];
begin
  select array_agg(flow.flow_id)
  from (select flow_id from flows where flow_id = any (p_flows) order by depth desc, flow_id for update) flow
  into locked_flows;
  if locked_flows is null then
    return;
  end if;

  with ended as (
    update flow_nodes node set state = given.state::run_state, changed_at = now
    from (
      select target.row_id, given.state from unnest(p_flows, p_nodes, p_states) given (flow_id, node, state)
      cross join lateral (
        select ctid as row_id from flow_nodes
        where flow_id = given.flow_id and node = given.node and state = 'queued' offset 0) target) given
    where node.ctid = given.row_id
    returning node.flow_id, node.node, node.of, node.place, node.state),
  ended_elements as (
    select flow_id, of, count(*)::integer as ended, (count(*) filter (where state <> 'succeeded'))::integer as failed
    from ended
    where place is not null
    group by flow_id, of),
  map_progress as (                                      -- each element that ended lets the next one begin
    select element.*, map.row_id,
           array(
             select node.node from flow_nodes node
             where node.flow_id = element.flow_id
               and node.node between map.first + map.begun and map.first + map.size - 1 and node.state = 'blocked'
               and not node.ready
             order by node.node limit element.ended) as next
    from ended_elements element
    cross join lateral (
      select ctid as row_id, first, begun, size from flow_nodes
      where flow_id = element.flow_id and node = element.of offset 0) map),
  maps as (
    update flow_nodes map
    set elements_left = map.elements_left - progress.ended, changed_at = now,
        elements_failed = map.elements_failed + progress.failed,
        begun = case when cardinality(progress.next) < progress.ended then map.size
                     else progress.next[progress.ended] - map.first + 1 end,
        state = case when map.elements_left > progress.ended then map.state
                     when map.elements_failed + progress.failed > 0 then 'dead' else 'succeeded' end
    from map_progress progress
    where map.ctid = progress.row_id
    returning map.flow_id, map.node, map.state, progress.next),
  -- waits and signals are not counted as busy; elements always are
  fewer_busy as (
    update flows flow set busy = flow.busy - freed.nodes
    from (
      select target.row_id, count(*)::integer as nodes from ended node
      cross join lateral (select ctid as row_id, graph_id from flows where flow_id = node.flow_id offset 0) target
      left join lateral (
        select element.kind from graph_nodes element
        where node.place is null and element.graph_id = target.graph_id
          and element.node = node.of offset 0) graph_node on true
      where node.place is not null or graph_node.kind in ('task', 'workflow')
      group by target.row_id) freed
    where flow.ctid = freed.row_id),
  whole_nodes as (
    select flow_id, node from ended
    where place is null
    union all
    select flow_id, node from maps
    where state <> 'queued')
  select (select array_agg(flow_id) from whole_nodes), (select array_agg(node) from whole_nodes),
         array_agg(map.flow_id), array_agg(element.node)
  from maps map
  cross join unnest(map.next) element (node) into ended_flows, ended_nodes, element_flows, element_nodes;

  perform propagate(locked_flows, ended_flows, ended_nodes, element_flows, element_nodes);
end $$;

-- Follows the edges from ended nodes until nothing changes: decides which nodes after them run or are skipped (a
-- skipped node has ended too), begins nodes that are ready, and ends workflow runs whose nodes have all ended. The
-- caller holds the locks of p_flows. p_element_flows and p_element_nodes are elements of maps that may begin.
create or replace function propagate(
  p_flows uuid[], p_ended_flows uuid[], p_ended_nodes integer[],
  p_element_flows uuid[] default null, p_element_nodes integer[] default null)
returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  all_ended_flows uuid[];                                -- one entry for each node that ended in this pass
  has_more        boolean := true;
begin
  while has_more loop
    all_ended_flows := '{}';
    while p_ended_flows is not null loop
      all_ended_flows := all_ended_flows || p_ended_flows;
      select skipped.flow_ids, skipped.nodes from decide_children(p_ended_flows, p_ended_nodes) skipped
      into p_ended_flows, p_ended_nodes;
    end loop;
    if all_ended_flows <> '{}' then
      update flows flow set unfinished = flow.unfinished - ended.nodes
      from (select flow_id,
            count(*)::integer as nodes from unnest(all_ended_flows) ended (flow_id) group by flow_id) ended
      cross join lateral (select ctid as row_id from flows where flow_id = ended.flow_id offset 0) target
      where flow.ctid = target.row_id;
    end if;
    select o_flows, o_nodes from begin_nodes(p_flows, p_element_flows, p_element_nodes)
    into p_ended_flows, p_ended_nodes;
    p_element_flows := null;
    p_element_nodes := null;
    has_more := p_ended_flows is not null;
    if not has_more then
      has_more := end_finished_flows(p_flows);
    end if;
  end loop;
end $$;

-- Updates the counters of the children of ended nodes, and decides about each child: it becomes ready, is skipped,
-- or waits for others. Returns the children that were skipped.
create or replace function decide_children(
  p_flows uuid[], p_nodes integer[], out flow_ids uuid[], out nodes integer[])
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
begin
  with reached as (
    select flow.flow_id, flow.graph_id, edge.child, count(*)::integer as parents,
           (count(*) filter (where node.state = 'succeeded'
                             and (edge.equals is null
                                  or edge.equals is not distinct from coalesce(
                                      result_of(flow.flow_id, flow.scheduled_for, node.node), 'null'))))::integer as ok,
           (count(*) filter (where node.state in ('dead', 'cancelled')
                             or node.state = 'skipped' and node.reason in ('upstream', 'stopped')))::integer as failed
    from unnest(p_flows, p_nodes) ended (flow_id, node)
    cross join lateral (select * from flows where flow_id = ended.flow_id offset 0) flow
    cross join lateral (select * from flow_nodes where flow_id = ended.flow_id and node = ended.node offset 0) node
    cross join lateral (select * from graph_edges where graph_id = flow.graph_id and parent = ended.node offset 0) edge
    group by flow.flow_id, flow.graph_id, edge.child),
  decided as (
    select reached.*, child.row_id,
           case when child.state = 'blocked' and not child.ready then node_decision(graph_node.rule, graph_node.parents,
               child.waits - reached.parents, child.ok + reached.ok, child.failed + reached.failed) end as decision
    from reached
    cross join lateral (
      select ctid as row_id, * from flow_nodes where flow_id = reached.flow_id and node = reached.child offset 0) child
    cross join lateral (
      select rule, parents from graph_nodes
      where graph_id = reached.graph_id and node = reached.child offset 0) graph_node),
  updated as (
    update flow_nodes child
    set waits = child.waits - decided.parents, ok = child.ok + decided.ok, failed = child.failed + decided.failed,
        ready = coalesce(decided.decision = 'run', child.ready),
        state = case when decided.decision <> 'run' then 'skipped' else child.state end,
        reason = case when decided.decision <> 'run' then decided.decision else child.reason end,
        changed_at = bellringer.now()
    from decided
    where child.ctid = decided.row_id
    returning child.flow_id, child.node, decided.decision)
  select array_agg(updated.flow_id), array_agg(updated.node) from updated
  where updated.decision <> 'run' into flow_ids, nodes;
end $$;

-- The decision about a node by its rule and the nodes before it: 'run'; 'upstream', it is skipped because a node
-- failed; 'condition', it is skipped because no branch leads to it; null, it waits for p_waits more nodes.
create or replace function node_decision(
  p_rule text, p_parents integer, p_waits integer, p_ok integer, p_failed integer) returns text
language sql immutable parallel safe as $$
  select case when p_rule = 'one_failed' and p_failed > 0 then 'run' when p_waits > 0 then null
              when p_rule = 'all_done' or p_parents = 0 then 'run' when p_rule = 'one_failed' then 'condition'
              when p_failed > 0 then 'upstream' when p_ok = p_parents or p_rule = 'none_failed' and p_ok > 0 then 'run'
              else 'condition' end
$$;
