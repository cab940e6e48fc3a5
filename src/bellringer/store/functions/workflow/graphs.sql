-- The id of the flow of a workflow run, computed from the key of the run.
create or replace function flow_of(p_job uuid, p_at timestamptz, p_slot bigint) returns uuid
language sql immutable parallel safe as
$$ select md5(p_job || ' ' || (extract(epoch from p_at) * 1000000)::bigint || ' ' || p_slot)::uuid $$;

-- Stores a version of a graph, once for each digest, and returns its id. The caller has resolved task and pool ids.
-- p_keep_until is given for a graph that is sent without a job.
create or replace function intern_graph(
  p_tenant integer, p_digest text, p_document jsonb, p_params jsonb, p_output integer, p_parallel integer,
  p_nodes jsonb, p_edges jsonb, p_keep_until timestamptz default null) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare id integer;
begin
  perform assert_tenant(p_tenant);
  select graph_id into id from graphs where tenant_id = p_tenant and digest = p_digest;
  if id is not null then
    if p_keep_until is null or keep_graph(p_tenant, id, bellringer.now()) then return id; end if;
  end if;
  insert into graphs (tenant_id, digest, document, nodes, params, output, max_parallel, undoes, made_at,
                      keep_until)
  values (p_tenant, p_digest, p_document, jsonb_array_length(p_nodes), p_params, p_output, p_parallel,
          jsonb_path_exists(p_nodes, '$[*].undoes ? (@ != null)'), bellringer.now(), p_keep_until)
  on conflict do nothing returning graph_id into id;
  if id is null then                            -- another transaction has stored it meanwhile
    select graph_id into id from graphs where tenant_id = p_tenant and digest = p_digest;
    return id;
  end if;
  insert into graph_nodes (graph_id, node, name, kind, task_id, pool_id, priority, spec, takes, item, over, most,
                           max_concurrent, rule, parents, undoes, waits)
  select id, node.node, node.name, node.kind, node.task_id, node.pool_id, node.priority,
         node.spec || jsonb_build_object('kwargs', coalesce(node.spec -> 'kwargs', '{}')), node.takes,
         (select max(argument.key) from jsonb_each(node.takes) argument
          having count(*) = 1 and bool_and(argument.value = '{"item": true}')),
         nullif(node.over, 'null'), node.most, node.max_concurrent, node.rule, node.parents, node.undoes,
         nullif(node.waits, 'null')
  from jsonb_to_recordset(p_nodes) node (node integer, name text, kind text, task_id integer, pool_id smallint,
                                         priority smallint, spec jsonb, takes jsonb, over jsonb, most integer,
                                         max_concurrent integer, rule text, parents integer, undoes integer,
                                         waits jsonb);
  insert into graph_edges (graph_id, parent, child, equals)
  select id, e.parent, e.child,
         e.equals::jsonb from jsonb_to_recordset(p_edges) e (parent integer, child integer, equals text);
  return id;
end $$;

-- The params of a workflow run: the given values, and the defaults of the others.
create or replace function args_of(flow flows, p_given jsonb) returns jsonb language sql stable as $$
  select coalesce(jsonb_object_agg(param.key,
                                   case when p_given ? param.key then p_given -> param.key
                                        else value_of(flow, param.value, null, null) end),
                  '{}')
  from graphs graph
  cross join lateral jsonb_each(graph.params) param
  where graph.graph_id = flow.graph_id
$$;

-- Makes sure that a graph is kept for a run that is due at p_due; returns false if there is no such graph. A graph that
-- is sent often is updated once in GRAPH_KEPT.
create or replace function keep_graph(p_tenant integer, p_graph integer, p_due timestamptz) returns boolean
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  until_at timestamptz;
begin
  select keep_until into until_at from graphs where graph_id = p_graph and tenant_id = p_tenant;
  if not found then return false; end if;
  if until_at < p_due + GRAPH_KEPT then
    update graphs set keep_until = greatest(keep_until, p_due + 2 * GRAPH_KEPT)
    where graph_id = p_graph and tenant_id = p_tenant;
    return found;                                -- a prune may have deleted it meanwhile
  end if;
  return true;
end $$;

-- Deletes graphs of runs without a job whose time has passed and that no run uses; returns how many. Every send moves
-- that time at least GRAPH_KEPT beyond its run. The tables are read as a whole, but only if there are such graphs.
create or replace function forget_graphs(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  gone integer[];
begin
  gone := array(
    select graph_id from graphs where keep_until < bellringer.now() order by keep_until limit p_most
    for update skip locked);
  if gone = '{}' then return 0; end if;
  gone := array(select unnest(gone) except select graph_id from flows);
  gone := array(select unnest(gone) except select (spec ->> 'graph')::integer from queue where spec ? 'graph');
  gone := array(select unnest(gone) except select (spec ->> 'graph')::integer from timers where spec ? 'graph');
  delete from graph_edges where graph_id = any (gone);
  delete from graph_nodes where graph_id = any (gone);
  delete from graphs where graph_id = any (gone);
  return cardinality(gone);
end $$;
