-- Workflow graphs, and the nodes of workflow runs.

-- name: intern
select bellringer.intern_graph($1, $2, $3::jsonb, $4::jsonb, $5, $6, $7::jsonb, $8::jsonb, $9)

-- name: document
select document from graphs where graph_id = $1 and tenant_id = $2

-- name: version_of
select (spec ->> 'graph')::integer from jobs where tenant_id = $1 and name_key = lower($2) and deleted_at is null

-- name: known_tasks
-- Tasks that a worker or the owner of the database has named.
select name from tasks where name = any ($1::text[]) and named_by is null

-- name: values
select bellringer.value_of(flow, given.ref::jsonb, null, null) from unnest($1::uuid[], $2::text[])
with ordinality given (flow_id, ref, nth)
join flows flow on flow.flow_id = given.flow_id
order by given.nth

-- name: upstream_result
select result from attempts where job_id = $1 and scheduled_for = $2 and slot = $3 and ends_as = 'succeeded'
order by attempt desc limit 1

-- name: forget_graphs
select bellringer.forget_graphs($1)

-- name: to_stop
select flow_id, reason, ends_as::text as ends_as from bellringer.flows_to_stop($1)

-- name: stop
select bellringer.stop_flow($1, $2, $3::text::run_state)

-- name: retry
select bellringer.retry_nodes($1, $2, $3, $4, $5, $6)

-- name: mark
select bellringer.mark_node($1, $2, $3, $4, $5, $6, $7::text::run_state, $8::jsonb, $9)

-- name: signal
select bellringer.signal_flow($1, $2, $3, $4, $5, $6::jsonb)

-- name: forget
select bellringer.forget_flows($1, $2)

-- name: signals
select distinct graph_node.waits ->> 'signal' from flows flow
join graph_nodes graph_node on graph_node.graph_id = flow.graph_id and graph_node.kind = 'signal'
where flow.flow_id = bellringer.flow_of($1, $2, $3) and flow.tenant_id = $4
order by 1

-- name: workflows
-- Jobs that are workflows, by name.
select job_id, name_key from jobs
where tenant_id = $1 and deleted_at is null and spec ? 'graph' and ($2::text is null or name_key > $2)
  and ($3::text is null or strpos(name_key, $3) > 0)
order by name_key limit $4

-- name: versions
-- The revision that first used each graph version, among the newest $2 revisions.
select first_use.version, first_use.revision, revision.effective_at, revision.who
from (
  select listed.version, min(listed.revision) as revision
  from (
    select (revision.definition #>> '{spec,graph}')::integer as version, revision.revision
    from revisions_of($1) revision
    order by revision.revision desc limit $2) listed
  where listed.version is not null
  group by listed.version) first_use
join revisions_of($1) revision on revision.revision = first_use.revision
order by first_use.revision desc

-- name: graph
select graph_id, document, output, max_parallel from graphs where graph_id = $1 and tenant_id = $2

-- name: graph_nodes
select node, name, kind, task, pool, is_map, most, max_concurrent, rule, undoes, signal
from bellringer.nodes_of_graph($1, $2)

-- name: graph_edges
select parent, child, equals from bellringer.edges_of_graph($1, $2)

-- name: flow
select flow.flow_id, flow.job_id, flow.scheduled_for, flow.slot, flow.top_job, job.name as job, flow.graph_id,
       flow.started_at, flow.finished_at, flow.undoing, flow.stopped
from flows flow
left join jobs job on job.job_id = flow.top_job
where flow.flow_id = bellringer.flow_of($1, $2, $3) and flow.tenant_id = $4

-- name: flow_nodes
select node, of, state, reason, place, item, size, has_run, attempt, started_at, finished_at, due_at
from bellringer.nodes_of_flow($1, $2, $3, $4, $5, $6)

-- name: counts
select of, state, count from bellringer.counts_of_flow($1, $2)

-- name: elements
-- The node numbers of a map's elements.
select first, size from flow_nodes where flow_id = $1 and node = $2

-- name: node_of
-- The workflow runs and nodes that these runs belong to, by flow and slot.
select key.flow_id, key.slot as node, flow.job_id, flow.scheduled_for, flow.slot, flow.top_job, job.name as job,
       graph_node.name, node.place
from unnest($1::uuid[], $2::bigint[]) key (flow_id, slot)
cross join lateral (select * from flows flow where flow.flow_id = key.flow_id offset 0) flow
left join lateral (
  select node.of, node.place from flow_nodes node
  where node.flow_id = key.flow_id and node.node = key.slot offset 0) node on true
left join lateral (
  select graph_node.name from graph_nodes graph_node
  where graph_node.graph_id = flow.graph_id and graph_node.node = node.of offset 0) graph_node on true
left join lateral (select job.name from jobs job where job.job_id = flow.top_job offset 0) job on true
where flow.tenant_id = $3

-- name: maps
-- Opened maps: the number of elements, of those that have not ended, and of those that did not succeed.
select n.node, n.size, n.elements_left, n.elements_failed from flow_nodes n
join graphs v on v.graph_id = $2
where n.flow_id = $1 and n.node <= v.nodes and n.size is not null

-- name: readiness
-- Whether a node is ready and waits for capacity, and how many nodes of its workflow run are running.
select n.ready, f.busy from flows f
join flow_nodes n on n.flow_id = f.flow_id and n.node = $2
where f.flow_id = $1 and f.tenant_id = $3

-- name: conditions_met
-- Parents of a node whose result equals the value that the edge requires.
select edge.parent from flows flow
join graph_edges edge on edge.graph_id = flow.graph_id and edge.child = $2 and edge.equals is not null
where flow.flow_id = $1 and flow.tenant_id = $3
  and edge.equals is not distinct from coalesce(bellringer.result_of(flow.flow_id, flow.scheduled_for, edge.parent),
                                                'null')
