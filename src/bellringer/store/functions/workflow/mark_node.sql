-- Ends a node with the state that an operator chooses, and continues with the nodes after it. Returns null, or one word
-- that says why the node cannot be marked.
create or replace function mark_node(
  p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_place integer, p_state run_state,
  p_result jsonb, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  flow      flows;
  flow_node flow_nodes;
  held      queue;
  trouble   text;
begin
  perform assert_tenant(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into flow from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant;
  if flow.flow_id is null then return 'unknown'; end if;
  select m.* into flow_node from flow_nodes m where m.flow_id = flow.flow_id
         and m.node = (nodes_named(flow, array[p_name], array[p_place]))[1];
  if flow_node.flow_id is null then return 'unknown_node'; end if;
  select * into held from queue where job_id = flow.flow_id and scheduled_for = flow.scheduled_for
         and slot = flow_node.node for update;
  if held.worker_id is not null or held.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then return 'running'; end if;
  select * into flow from flows where flow_id = flow.flow_id for update;
  select * into flow_node from flow_nodes where flow_id = flow.flow_id and node = flow_node.node;
  if flow_node.flow_id is null then return 'unknown_node'; end if;      -- its map was reset meanwhile
  if exists (
    select 1 from queue run
    where run.job_id = flow.flow_id and run.scheduled_for = flow.scheduled_for and run.slot = flow_node.node
      and (run.worker_id is not null or run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW)) then
    return 'running';                                    -- it was claimed meanwhile
  end if;
  if flow_node.size > 0 then return 'map'; end if;
  if flow.parent is not null and flow.finished_at is not null then return 'inner'; end if;
  if flow.finished_at is null and flow.stopped is not null then return 'stopping'; end if;
  if flow_node.state = 'queued' then                             -- it has begun, and no worker has claimed it
    perform end_node(flow, flow_node.node, p_state, p_result, jsonb_build_object('type', 'Marked', 'reason', p_reason));
  else
    trouble := (reset_nodes(flow, array[flow_node.node], true, true)).o_trouble;
    if trouble is not null then return trouble; end if;
    perform end_node(flow, flow_node.node, p_state, p_result, jsonb_build_object('type', 'Marked', 'reason', p_reason));
    update flow_nodes set state = 'queued', ready = false where flow_id = flow.flow_id and node = flow_node.node;
    update flows set busy = busy + 1
    where flow_id = flow.flow_id
      and exists (
        select 1 from graph_nodes graph_node
        where graph_node.graph_id = flow.graph_id and graph_node.node = flow_node.of
          and graph_node.kind in ('task', 'workflow'));
    if flow.finished_at is not null then perform reopen(flow); end if;
  end if;
  perform note(p_tenant, 'run.node_marked', 'run', run_target(p_job, p_at, p_slot),
               jsonb_build_object('node', p_name, 'place', p_place, 'state', p_state, 'reason', p_reason));
  perform advance(array[flow.flow_id], array[flow_node.node::bigint], array[p_state::text]);
  return null;
end $$;
