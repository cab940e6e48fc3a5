-- The nodes of a graph version, in the order of their numbers.
create or replace function nodes_of_graph(p_tenant integer, p_graph integer)
returns table (node integer, name text, kind text, task text, pool text, is_map boolean, most integer,
               max_concurrent integer, rule text, undoes integer, signal text)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
begin
  perform assert_tenant(p_tenant);
  return query
  select graph_node.node, graph_node.name, graph_node.kind, task.name, pool.name, graph_node.over is not null,
         graph_node.most, graph_node.max_concurrent, graph_node.rule, graph_node.undoes, graph_node.waits ->> 'signal'
  from graphs graph
  join graph_nodes graph_node on graph_node.graph_id = graph.graph_id
  left join tasks task on task.task_id = graph_node.task_id and graph_node.kind = 'task'
  left join pools pool on pool.pool_id = graph_node.pool_id
  where graph.graph_id = p_graph and graph.tenant_id = p_tenant
  order by graph_node.node;
end $$;

-- The edges of a graph version.
create or replace function edges_of_graph(p_tenant integer, p_graph integer)
returns table (parent integer, child integer, equals jsonb)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
begin
  perform assert_tenant(p_tenant);
  return query
  select e.parent, e.child, e.equals from graphs v join graph_edges e on e.graph_id = v.graph_id
  where v.graph_id = p_graph and v.tenant_id = p_tenant order by e.child, e.parent;
end $$;

-- The nodes of a flow with numbers from p_from to p_upto, at most p_most of those in a state. A map starts when its
-- first element starts. Attempts before a node was last reset are not counted.
create or replace function nodes_of_flow(
  p_tenant integer, p_flow uuid, p_from integer, p_upto integer, p_state text, p_most integer)
returns table (node integer, of integer, place integer, state text, reason text, item text, size integer,
               has_run boolean, attempt integer, started_at timestamptz, finished_at timestamptz, due_at timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp PLAN_KEPT
PLAN_BY_INDEX as $$
#variable_conflict use_column
declare
  flow flows;
  kept run_state[] := case when p_state in ('succeeded', 'dead', 'cancelled', 'skipped') then array[p_state::run_state]
                           when p_state in ('queued', 'blocked') then '{blocked,queued}' else '{queued}' end;
begin
  perform assert_tenant(p_tenant);
  select * into flow from flows where flow_id = p_flow and tenant_id = p_tenant;
  return query
  select node.node, node.of, node.place, node.state, coalesce(node.reason, failure.message),
         left(node.item::text, 1024), node.size, run.found is not null or node.timer_at is not null,
         case when node.size is null then coalesce(node.attempt, tried.attempt, 0) else 0 end,
         coalesce(tried.started_at, case when node.state = 'running' then node.claimed_at end),
         case when node.state in ('succeeded', 'dead', 'cancelled') then coalesce(
             case when node.size is null then tried.finished_at end, node.changed_at) end,
         case when node.state = 'waiting' then coalesce(node.timer_at, node.available_at) end
  from (
    select node.node, node.of, node.place, derived.state, node.reason, node.item, node.size, node.attempt_floor,
           node.changed_at, shown.slot, queued.available_at, timer.due_at as timer_at,
           coalesce(queued.claimed_at, first_element.claimed_at) as claimed_at,
           coalesce(queued.attempt, timer.attempt) as attempt
    from flow_nodes node
    cross join lateral (
      select graph_node.kind from graph_nodes graph_node
      where graph_node.graph_id = flow.graph_id and graph_node.node = node.of offset 0) graph_node
    cross join lateral (select case when node.size is null then node.node else node.first end as slot) shown
    left join lateral (
      select queued.available_at, queued.claimed_at, queued.attempt, queued.worker_id, queued.blocked from queue queued
      where node.state = 'queued' and node.size is null and queued.job_id = p_flow
        and queued.scheduled_for = flow.scheduled_for and queued.slot = node.node offset 0) queued on true
    left join lateral (
      select queued.claimed_at from queue queued
      where node.state = 'queued' and node.size > 0 and queued.job_id = p_flow
        and queued.scheduled_for = flow.scheduled_for and queued.slot = node.first offset 0) first_element on true
    left join lateral (
      select timer.due_at, timer.attempt from timers timer
      where node.state = 'queued' and timer.job_id = p_flow and timer.scheduled_for = flow.scheduled_for
        and timer.slot = node.node offset 0) timer on true
    cross join lateral (
      select case when node.state = 'blocked' then case when node.ready then 'queued' else 'blocked' end
                  when node.state <> 'queued' then node.state::text when node.size is not null then 'running'
                  when graph_node.kind in ('wait', 'signal') then 'waiting'
                  when queued.worker_id is not null or queued.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then 'running'
                  when coalesce(queued.attempt, timer.attempt) > node.attempt_floor then 'retrying'
                  else 'queued' end as state) derived
    where node.flow_id = flow.flow_id and node.node between p_from and p_upto
      and (p_state is null or node.state = any (kept)) and (p_state is null or derived.state = p_state)
    order by node.node limit p_most) node
  left join lateral (
    select true as found from runs run
    where run.job_id = p_flow and run.scheduled_for = flow.scheduled_for and run.slot = node.node offset 0) run on true
  left join lateral (
    select min(attempt.started_at) as started_at, max(attempt.finished_at) as finished_at,
           max(attempt.attempt) as attempt
    from attempts attempt
    where attempt.job_id = p_flow and attempt.scheduled_for = flow.scheduled_for and attempt.slot = node.slot
      and (attempt.attempt > node.attempt_floor or node.attempt_floor = 0)) tried on true
  left join lateral (
    select left(concat_ws(': ', attempt.error ->> 'type',
                          coalesce(attempt.error ->> 'message', attempt.error ->> 'reason')),
                300) as message
    from attempts attempt
    where node.state = 'dead' and node.size is null and attempt.job_id = p_flow
      and attempt.scheduled_for = flow.scheduled_for and attempt.slot = node.node
      and attempt.attempt = tried.attempt offset 0) failure on true
  order by node.node;
end $$;

-- The number of elements in each state, for each map of a flow.
create or replace function counts_of_flow(p_tenant integer, p_flow uuid)
returns table (of integer, state text, count bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
#variable_conflict use_column
declare
  flow flows;
begin
  perform assert_tenant(p_tenant);
  select * into flow from flows where flow_id = p_flow and tenant_id = p_tenant;
  return query
  select node.of, node.state::text, count(*) from flow_nodes node
  where node.flow_id = flow.flow_id
    and node.node > (select graph.nodes from graphs graph where graph.graph_id = flow.graph_id)
  group by node.of, node.state;
end $$;
