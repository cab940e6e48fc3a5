-- The nodes of a workflow run that wait for no other node.
create or replace function first_nodes(flow flows) returns integer[] language sql stable as $$
  select array(
           select g.node from graph_nodes g where g.graph_id = flow.graph_id and g.parents = 0 and g.undoes is null)
$$;

-- Resetting: nodes of a workflow run begin again, and everything after them. Callers hold the lock of the flow.

-- Resets p_nodes and the nodes after them. o_trouble: why not ('undone': compensations have run, so only the whole
-- workflow run can begin again; 'running': one of the nodes is running). o_skipped: nodes that are skipped by the new
-- counts; the caller passes them to `propagate`. p_forced: p_nodes run whatever their rule says. p_keeps: nodes after
-- them that have succeeded stay. Of a map that failed, only the elements that failed are reset.
create or replace function reset_nodes(
  p_flow flows, p_nodes integer[], p_forced boolean, p_keeps boolean, out o_trouble text, out o_skipped integer[])
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  whole_nodes integer[];                                 -- reset as a whole; a map forgets its elements
  elements    integer[];                                 -- elements that are reset alone …
  open_maps   integer[];                                 -- … and their maps, which continue
  descendants integer[];
begin
  if exists (select from flow_nodes node
             join graph_nodes graph_node on graph_node.graph_id = p_flow.graph_id and graph_node.node = node.of
             where node.flow_id = p_flow.flow_id and graph_node.undoes is not null
               and node.state not in ('blocked', 'skipped'))
     and not first_nodes(p_flow) <@ p_nodes then
    o_trouble := 'undone';
    return;
  end if;

  -- Step 1: what is to be reset.
  elements := array(
    select node from flow_nodes where flow_id = p_flow.flow_id and place is not null and node = any (p_nodes)
    union
    select element.node from flow_nodes map
    join flow_nodes element on element.flow_id = map.flow_id and element.of = map.node and element.place is not null
    where map.flow_id = p_flow.flow_id and map.node = any (p_nodes) and map.size > 0
      and map.state in ('dead', 'cancelled') and element.state in ('dead', 'cancelled', 'skipped'));
  open_maps := array(select distinct of from flow_nodes where flow_id = p_flow.flow_id and node = any (elements));
  descendants := array(
    with recursive reached (node) as (
      select edge.child from graph_edges edge
      join flow_nodes child on child.flow_id = p_flow.flow_id and child.node = edge.child
      where edge.graph_id = p_flow.graph_id and edge.parent = any (p_nodes || open_maps)
        and not (p_keeps and child.state = 'succeeded')
      union
      select edge.child from reached
      join graph_edges edge on edge.graph_id = p_flow.graph_id and edge.parent = reached.node
      join flow_nodes child on child.flow_id = p_flow.flow_id and child.node = edge.child
      where not (p_keeps and child.state = 'succeeded'))
    select node from reached);
  whole_nodes := array(
    select node from flow_nodes
    where flow_id = p_flow.flow_id and place is null and node = any (p_nodes)
      and (node <> all (open_maps) or node = any (descendants))
    union
    select unnest(descendants));
  open_maps := array(select map from unnest(open_maps) map where map <> all (whole_nodes));
  if exists (select from flow_nodes
             where flow_id = p_flow.flow_id and state = 'queued'
               and (node = any (whole_nodes) or node = any (elements) or of = any (whole_nodes))) then
    o_trouble := 'running';
    return;
  end if;

  -- Step 2: reset the rows.
  delete from flow_nodes where flow_id = p_flow.flow_id and of = any (whole_nodes) and place is not null;
  update flow_nodes node
  set state = 'blocked', reason = null, ready = false, waits = 0, ok = 0, failed = 0, size = null, first = null,
      begun = null, elements_left = null, elements_failed = null, changed_at = bellringer.now(),
        attempt_floor = attempts_made(p_flow, node.node)
  where node.flow_id = p_flow.flow_id and node.node = any (whole_nodes);
  update flow_nodes node
  set state = 'blocked', reason = null, ready = false, changed_at = bellringer.now(),
      attempt_floor = attempts_made(p_flow, node.node)
  where node.flow_id = p_flow.flow_id and node.node = any (elements) and node.of = any (open_maps);
  update flow_nodes compensation
  set state = 'blocked', reason = null, attempt_floor = attempts_made(p_flow, compensation.node)
  from graph_nodes graph_node
  where compensation.flow_id = p_flow.flow_id and graph_node.graph_id = p_flow.graph_id
    and graph_node.node = compensation.node and graph_node.undoes is not null;

  -- Step 3: maps and nodes count again, and the workflow run is unfinished.
  perform reopen_maps(p_flow, open_maps);
  o_skipped := recount_nodes(p_flow, whole_nodes, case when p_forced then p_nodes else '{}' end);
  update flows
  set state = 'running', stopped = null, stopped_as = null, undoing = false, finished_at = null, unfinished = (
    select count(*) from flow_nodes node
    join graph_nodes graph_node
      on graph_node.graph_id = p_flow.graph_id and graph_node.node = node.of and graph_node.undoes is null
    where node.flow_id = p_flow.flow_id and node.place is null
      and (node.state in ('blocked', 'queued') or node.node = any (o_skipped)))
  where flow_id = p_flow.flow_id;
end $$;

-- Counts the elements of maps again, and makes as many of them ready as may run beside those that are running.
create or replace function reopen_maps(p_flow flows, p_maps integer[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  with counts as (
    select of, count(*) filter (where state in ('blocked', 'queued')) as elements_left,
           count(*) filter (where state = 'queued' or ready) as busy,
           count(*) filter (where state not in ('blocked', 'queued', 'succeeded')) as elements_failed
    from flow_nodes
    where flow_id = p_flow.flow_id and of = any (p_maps) and place is not null
    group by of),
  chosen as (
    select counts.of, next.node from counts
    join graph_nodes graph_node on graph_node.graph_id = p_flow.graph_id and graph_node.node = counts.of
    cross join lateral (
      select element.node from flow_nodes element
      where element.flow_id = p_flow.flow_id and element.of = counts.of and element.place is not null
        and element.state = 'blocked' and not element.ready
      order by element.node limit greatest(0, graph_node.max_concurrent - counts.busy)) next),
  made_ready as (
    update flow_nodes element set ready = true
    from chosen
    where element.flow_id = p_flow.flow_id and element.node = chosen.node)
  update flow_nodes map
  set state = 'queued', reason = null, changed_at = bellringer.now(), elements_left = counts.elements_left,
      elements_failed = counts.elements_failed,
      begun = coalesce((select max(chosen.node) from chosen where chosen.of = counts.of) - map.first + 1, 0)
  from counts
  where map.flow_id = p_flow.flow_id and map.node = counts.of;
end $$;

-- Counts the parents of nodes again and decides about each; p_forced ones run whatever their rule says. Returns the
-- skipped ones.
create or replace function recount_nodes(p_flow flows, p_nodes integer[], p_forced integer[]) returns integer[]
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  skipped integer[];
begin
  with counts as (
    select graph_node.node, graph_node.rule, graph_node.parents,
           (count(*) filter (where parent.state in ('blocked', 'queued')))::integer as waits,
           (count(*) filter (where parent.state = 'succeeded'
                             and (edge.equals is null
                                  or edge.equals is not distinct from coalesce(
                                      result_of(p_flow.flow_id, p_flow.scheduled_for, parent.node),
                                      'null'))))::integer as ok,
           (count(*) filter (where parent.state in ('dead', 'cancelled')
                             or parent.state = 'skipped'
                               and parent.reason in ('upstream', 'stopped')))::integer as failed
    from graph_nodes graph_node
    left join graph_edges edge on edge.graph_id = graph_node.graph_id and edge.child = graph_node.node
    left join flow_nodes parent on parent.flow_id = p_flow.flow_id and parent.node = edge.parent
    where graph_node.graph_id = p_flow.graph_id and graph_node.node = any (p_nodes)
    group by graph_node.node, graph_node.rule, graph_node.parents),
  decided as (
    select counts.*,
           case when counts.node = any (p_forced) then 'run'
                else node_decision(counts.rule, counts.parents, counts.waits, counts.ok, counts.failed) end as decision
    from counts),
  updated as (
    update flow_nodes node
    set waits = decided.waits, ok = decided.ok, failed = decided.failed,
        ready = coalesce(decided.decision = 'run', false),
        state = case when decided.decision <> 'run' then 'skipped' else node.state end,
        reason = case when decided.decision <> 'run' then decided.decision end
    from decided
    where node.flow_id = p_flow.flow_id and node.node = decided.node
    returning node.node, node.state)
  select coalesce(array_agg(node), '{}') from updated where state = 'skipped' into skipped;
  return skipped;
end $$;

-- Number of attempts of a node's run. A run that ended before its first attempt counts as one attempt, because its row
-- in `runs` exists.
create or replace function attempts_made(flow flows, p_node integer) returns integer language sql stable as $$
  select coalesce(max(greatest(a.attempt, 1)), 0) from attempts a
  where a.job_id = flow.flow_id and a.scheduled_for = flow.scheduled_for and a.slot = p_node
$$;

-- Nodes to retry: those that did not succeed; after a success, those without parents.
create or replace function failed_nodes(flow flows) returns integer[] language sql stable as $$
  select array(
           select node.node from flow_nodes node
           join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.node = node.of
             and graph_node.undoes is null
           where node.flow_id = flow.flow_id and node.place is null
             and (flow.state = 'succeeded' and graph_node.parents = 0 or node.state in ('dead', 'cancelled')
                  or node.state = 'skipped' and node.reason = 'stopped'))
$$;

-- Retries an inner workflow run: its failed nodes, or all of them if its arguments have changed or compensations have
-- run.
create or replace function resume_flow(p_flow uuid, p_given jsonb) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  flow  flows;
  given jsonb;
  back  record;
begin
  select * into flow from flows where flow_id = p_flow for update;
  given := args_of(flow, coalesce(p_given, '{}'));
  update flows set args = given, started_at = bellringer.now(),
    deadline_at = bellringer.now() + (deadline_at - started_at) where flow_id = p_flow;
  back := reset_nodes(flow, case when given = flow.args then failed_nodes(flow) else first_nodes(flow) end, false,
                      false);
  if back.o_trouble is not null then back := reset_nodes(flow, first_nodes(flow), false, false); end if;
  perform propagate(array[p_flow], array_fill(p_flow, array[cardinality(back.o_skipped)]), back.o_skipped);
end $$;

-- Puts the run of a workflow run that had ended back into the queue, with a new attempt, and removes its dead letter.
create or replace function reopen(flow flows) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
begin
  insert into queue (job_id, scheduled_for, slot, available_at, claimed_at, tenant_id, task_id, revision, shard,
                     pool_id, priority, attempt, cause, spec, key_id, cap, blocked)
  select run.job_id, run.scheduled_for, run.slot, bellringer.now(), bellringer.now(), run.tenant_id, run.task_id,
         run.revision, run.shard, run.pool_id, run.priority,
         coalesce((select max(attempt.attempt) from attempts attempt
                   where attempt.job_id = flow.job_id and attempt.scheduled_for = flow.scheduled_for
                     and attempt.slot = flow.slot),
                  0)
           + 1,
         run.cause, run.spec, job.key_id, job.cap, OPEN_WORKFLOW | case when job.key_id is null then 0 else LIMITED end
  from runs run
  left join jobs job on job.job_id = run.job_id
  where run.job_id = flow.job_id and run.scheduled_for = flow.scheduled_for and run.slot = flow.slot
  on conflict do nothing;
  update flows set started_at = bellringer.now(),
         deadline_at = bellringer.now() + (deadline_at - started_at) where flow_id = flow.flow_id;
  delete from dead_letters where job_id = flow.job_id and scheduled_for = flow.scheduled_for and slot = flow.slot;
  delete from discarded_dead_letters
  where job_id = flow.job_id and scheduled_for = flow.scheduled_for and slot = flow.slot;
end $$;

-- Retries nodes of a workflow run by name and place in their map; p_names null: all that did not succeed. Returns null,
-- or one word that says why nothing is retried.
create or replace function retry_nodes(
  p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_names text[], p_places integer[]) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  flow  flows;
  nodes integer[];
  back  record;
begin
  perform assert_tenant(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into flow from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant for update;
  if flow.flow_id is null then return 'unknown'; end if;
  nodes := case when p_names is null then failed_nodes(flow) else nodes_named(flow, p_names, p_places) end;
  if p_names is not null and cardinality(nodes) < cardinality(p_names) then return 'unknown_node'; end if;
  if nodes = '{}' or p_names is null and flow.state = 'succeeded' then return 'nothing'; end if;
  if flow.parent is not null and flow.finished_at is not null then return 'inner'; end if;
  if flow.finished_at is null and flow.stopped is not null then return 'stopping'; end if;
  back := reset_nodes(flow, nodes, p_names is not null, false);
  if back.o_trouble is not null then return back.o_trouble; end if;
  if flow.finished_at is not null then perform reopen(flow); end if;
  perform propagate(array[flow.flow_id], array_fill(flow.flow_id, array[cardinality(back.o_skipped)]), back.o_skipped);
  perform note(p_tenant, 'run.nodes_retried', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('nodes', (
    select jsonb_agg(w.name || coalesce('[' || w.place || ']', '')) from unnest(p_names, p_places) w (name, place))));
  return null;
end $$;

-- The numbers of the nodes with these names; for an element of a map, with its place.
create or replace function nodes_named(flow flows, p_names text[], p_places integer[]) returns integer[]
language sql stable as $$
  select array(
           select node.node from unnest(p_names, p_places) given (name, place)
           join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.name = given.name
           join flow_nodes node on node.flow_id = flow.flow_id and node.of = graph_node.node
             and node.place is not distinct from given.place)
$$;
