-- Beginning nodes: a node that is ready gets a run in the queue, or a timer; a map gets a node for each element.

-- Begins the nodes of these workflow runs that are ready, and the given elements of maps, as far as the workflow's
-- max_parallel allows. Returns nodes that ended at once: empty maps, waits for an invalid time, signals that had been
-- received before. The caller holds the locks of p_flows.
create or replace function begin_nodes(
  p_flows uuid[], p_element_flows uuid[], p_element_nodes integer[], out o_flows uuid[], out o_nodes integer[])
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  begun    record;
  flow     flows;
  has_more boolean := true;
  ended    boolean;
begin
  if p_element_flows is not null then
    select rest.flow_ids, rest.nodes from wait_for_room(p_element_flows, p_element_nodes) rest
    into p_element_flows, p_element_nodes;
  end if;
  while has_more loop
    has_more := false;
    for begun in select * from queue_ready_nodes(p_flows, p_element_flows, p_element_nodes) loop
      select * from flows where flow_id = begun.flow_id into flow;
      if begun.is_map then
        has_more := true;                                -- its elements are ready now
        ended := open_map(flow, begun.node);
      elsif begun.due is null then
        update flow_nodes
        set state = 'dead', reason = 'the time to wait until is not a time within a year', changed_at = bellringer.now()
        where flow_id = begun.flow_id and node = begun.node;
        ended := true;
      else
        ended := take_signal(flow, begun.node);
      end if;
      if ended then
        o_flows := o_flows || begun.flow_id;
        o_nodes := o_nodes || begun.node;
      end if;
    end loop;
    p_element_flows := null;
    p_element_nodes := null;
  end loop;
end $$;

-- Marks the elements of workflows with a max_parallel as ready, so that they wait for room with the other nodes.
-- Returns the rest.
create or replace function wait_for_room(
  p_flows uuid[], p_nodes integer[], out flow_ids uuid[], out nodes integer[])
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
begin
  flow_ids := p_flows;
  nodes := p_nodes;
  with bounded as (
    select element.flow_id, element.node from unnest(p_flows, p_nodes) element (flow_id, node)
    where exists (
      select from flows flow
      cross join lateral (select max_parallel from graphs where graph_id = flow.graph_id offset 0) graph
      where flow.flow_id = element.flow_id and graph.max_parallel is not null offset 0))
  update flow_nodes node set ready = true
  from bounded
  cross join lateral (
    select ctid as row_id from flow_nodes where flow_id = bounded.flow_id and node = bounded.node offset 0) target
  where node.ctid = target.row_id;
  if found then
    select array_agg(element.flow_id), array_agg(element.node)
    from unnest(p_flows, p_nodes) element (flow_id, node)
    where not exists (
      select from flow_nodes where flow_id = element.flow_id and node = element.node and ready offset 0)
    into flow_ids, nodes;
  end if;
end $$;

-- Gives a run to each ready node that has room, and to the given elements: in the queue, or in timers if it is due
-- later than in a minute. Returns the nodes that need more: maps, signals, and waits without a valid time (due is
-- null).
create or replace function queue_ready_nodes(p_flows uuid[], p_element_flows uuid[], p_element_nodes integer[])
returns table (flow_id uuid, node integer, kind text, is_map boolean, due timestamptz)
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
#variable_conflict use_column
declare
  now timestamptz := bellringer.now();
begin
  return query
  with picked as materialized (
    select flow.*, ready.node, ready.row_id from unnest(p_flows) given (flow_id)
    cross join lateral (
      select * from flows where flow_id = given.flow_id and (stopped is null or undoing) offset 0) flow
    cross join lateral (select max_parallel, nodes from graphs where graph_id = flow.graph_id offset 0) graph
    cross join lateral (
      (select node.node, node.ctid as row_id from flow_nodes node  -- waits, signals and whole maps need no room
       cross join lateral (
         select from graph_nodes graph_node
         where graph_node.graph_id = flow.graph_id and graph_node.node = node.node
           and (graph_node.kind in ('wait', 'signal') or graph_node.over is not null) offset 0) roomless
       where node.flow_id = given.flow_id and node.ready and node.node <= graph.nodes)
      union all
      (select node.node, node.ctid as row_id from flow_nodes node
       where node.flow_id = given.flow_id and node.ready
         and (node.node > graph.nodes
              or not exists (
                select from graph_nodes graph_node
                where graph_node.graph_id = flow.graph_id and graph_node.node = node.node
                  and (graph_node.kind in ('wait', 'signal') or graph_node.over is not null) offset 0))
       order by node.node limit greatest(0, coalesce(graph.max_parallel, 2147483647) - flow.busy))) ready
    union all
    select flow.*, element.node, target.row_id from unnest(p_element_flows, p_element_nodes) element (flow_id, node)
    cross join lateral (
      select * from flows where flow_id = element.flow_id and (stopped is null or undoing) offset 0) flow
    cross join lateral (
      select ctid as row_id from flow_nodes where flow_id = element.flow_id and node = element.node offset 0) target),
  begun as (
    update flow_nodes node set ready = false, state = 'queued', changed_at = now
    from picked
    where node.ctid = picked.row_id
    returning picked.flow_id, picked.node, picked.scheduled_for, picked.tenant_id, picked.shard, picked.pool_id,
      picked.priority, picked.graph_id, picked.top_job, picked.trace, node.of, node.place, node.item,
        node.attempt_floor),
  unplaced as (
    select begun.flow_id, begun.node, begun.scheduled_for, begun.tenant_id, begun.shard, begun.attempt_floor,
           begun.trace, graph_node.kind, graph_node.task_id, coalesce(graph_node.pool_id, begun.pool_id) as pool_id,
           graph_node.over is not null and begun.place is null as is_map,
           coalesce(graph_node.priority - case when begun.priority < 0 then 10 else 0 end, begun.priority) as priority,
           (select job.paused_at is not null from jobs job where job.job_id = begun.top_job) as is_paused,
           case when graph_node.over is not null and begun.place is null then null
                when graph_node.takes = '{}' then graph_node.spec
                when graph_node.item is not null then graph_node.spec
                  || jsonb_build_object('kwargs',
                                        (graph_node.spec -> 'kwargs')
                                          || jsonb_build_object(graph_node.item, begun.item))
                else node_spec(begun.flow_id, begun.of, begun.item, begun.place) end as own_spec,
           case when graph_node.kind in ('wait', 'signal') then wait_ends_at(begun.flow_id, graph_node.waits)
                else now end as due
    from begun
    cross join lateral (
      select * from graph_nodes where graph_id = begun.graph_id and node = begun.of offset 0) graph_node),
  prepared as materialized (
    select unplaced.*,
           case when trace is null then own_spec else own_spec || jsonb_build_object('trace', trace) end as spec
    from unplaced),
  runs_created as (                                      -- a run with a timer is created when it is due
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                      initial_state, spec)
    select flow_id, scheduled_for, node, now, 0, tenant_id, task_id, shard, pool_id, priority, 'workflow', 'queued',
           spec
    from prepared
    where not is_map and (due < now + interval '60 seconds' or due = 'infinity')
    on conflict do nothing),
  queued as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt,
                       attempt_floor, cause, spec, blocked)
    select flow_id, scheduled_for, node, due, tenant_id, task_id, shard, pool_id, priority, attempt_floor,
           attempt_floor, 'workflow', spec, case when is_paused then PAUSED else 0 end
    from prepared
    where not is_map and due < now + interval '60 seconds' on conflict do nothing),
  timed as (
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, attempt, attempt_floor,
                        tenant_id, task_id, cause, spec)
    select flow_id, scheduled_for, node, due, shard, pool_id, priority, attempt_floor, attempt_floor, tenant_id,
           task_id, 'workflow', spec
    from prepared
    where not is_map and due >= now + interval '60 seconds' and due < 'infinity'
    on conflict do nothing),
  more_busy as (
    update flows flow set busy = flow.busy + begun.nodes
    from (
      select flow_id, count(*)::integer as nodes from prepared
      where not is_map and kind in ('task', 'workflow')
      group by flow_id) begun
    cross join lateral (select ctid as row_id from flows where flow_id = begun.flow_id offset 0) target
    where flow.ctid = target.row_id)
  select flow_id, node, kind, is_map, due from prepared where is_map or kind = 'signal' or due is null;
end $$;

-- Creates a node for each element of a map. Returns true if the map has ended already: it is empty, or its list is not
-- valid.
create or replace function open_map(p_flow flows, p_node integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  graph_node graph_nodes;
  items      jsonb;
  elements   integer;                                    -- null: not a list
  first_node integer;
begin
  select * from graph_nodes where graph_id = p_flow.graph_id and node = p_node into graph_node;
  items := value_of(p_flow, graph_node.over, null, null);
  elements := case when jsonb_typeof(items) = 'array' then jsonb_array_length(items) end;
  if elements is null or elements = 0 or elements > graph_node.most then
    update flow_nodes
    set state = case when elements = 0 then 'succeeded' else 'dead' end::run_state,
        size = case when elements = 0 then 0 end, first = 0, begun = 0, elements_left = 0, elements_failed = 0,
        changed_at = bellringer.now(),
        reason = case when elements is null then 'the value to map over is not a list'
                      when elements > graph_node.most then format('%s elements, more than %s', elements,
                                                                  graph_node.most) end
    where flow_id = p_flow.flow_id and node = p_node;
    return true;
  end if;
  update flows set next_node = next_node + elements where flow_id = p_flow.flow_id
  returning next_node - elements into first_node;
  update flow_nodes
  set size = elements, first = first_node, begun = least(elements, graph_node.max_concurrent),
      elements_left = elements, elements_failed = 0
  where flow_id = p_flow.flow_id and node = p_node;
  insert into flow_nodes (flow_id, node, of, place, item, ready, changed_at)
  select p_flow.flow_id, first_node + element.nth::integer - 1, p_node, element.nth - 1, element.item,
         element.nth <= graph_node.max_concurrent, bellringer.now()
  from jsonb_array_elements(items) with ordinality element (item, nth);
  return false;
end $$;

-- Ends a signal node whose signal has been received before. Returns whether there was one.
create or replace function take_signal(p_flow flows, p_node integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  signal signals;
begin
  delete from signals where flow_id = p_flow.flow_id and name = (
    select waits ->> 'signal' from graph_nodes where graph_id = p_flow.graph_id and node = p_node)
  returning * into signal;
  if signal.flow_id is null then
    return false;
  end if;
  perform end_node(p_flow, p_node, 'succeeded', signal.payload, null);
  update flow_nodes set state = 'succeeded', changed_at = bellringer.now()
  where flow_id = p_flow.flow_id and node = p_node;
  return true;
end $$;

-- When a wait ends, or a signal times out: infinity: never; null: the time to wait until is not a time within a year.
create or replace function wait_ends_at(p_flow uuid, p_waits jsonb) returns timestamptz language plpgsql stable as $$
declare
  until timestamptz;
begin
  if p_waits ->> 'seconds' is not null then
    return bellringer.now() + (p_waits ->> 'seconds')::float8 * interval '1 second';
  end if;
  if p_waits ? 'signal' then
    return 'infinity';
  end if;
  until := (value_of((select flow from flows flow where flow.flow_id = p_flow), p_waits -> 'until', null, null)
            #>> '{}')::timestamptz;
  return case when until <= bellringer.now() + interval '366 days' then greatest(bellringer.now(), until) end;
exception when data_exception then
  return null;
end $$;
