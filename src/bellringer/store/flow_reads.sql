-- What people see of workflows.

-- name: workflows
-- Jobs that are workflows, by their names.
select job_id, name_key from jobs
where tenant_id = $1 and deleted_at is null and spec ? 'graph' and ($2::text is null or name_key > $2)
  and ($3::text is null or strpos(name_key, $3) > 0)
order by name_key limit $4

-- name: versions
-- The first revision that brought each of them, among the newest $2.
select v.version, v.revision, o.effective_at, o.who
from (select n.version, min(n.revision) as revision from (
        select (o.definition #>> '{spec,graph}')::integer as version, o.revision from revisions_of($1) o
        order by o.revision desc limit $2) n
      where n.version is not null group by n.version) v
join revisions_of($1) o on o.revision = v.revision
order by v.revision desc

-- name: graph
select graph_id, document, output, max_parallel from graphs where graph_id = $1 and tenant_id = $2

-- name: graph_nodes
select node, name, kind, task, pool, is_map, most, abreast, rule, undoes, signal from bellringer.nodes_of_graph($1, $2)

-- name: graph_edges
select parent, child, equals from bellringer.edges_of_graph($1, $2)

-- name: flow
select f.flow_id, f.job_id, f.scheduled_for, f.slot, f.top_job, j.name as job, f.graph_id, f.started_at, f.finished_at, f.undoing, f.stopped
from flows f left join jobs j on j.job_id = f.top_job where f.flow_id = bellringer.flow_of($1, $2, $3) and f.tenant_id = $4

-- name: flow_nodes
select node, of, state, reason, place, item, size, has_run, attempt, started_at, finished_at, due_at
from bellringer.nodes_of_flow($1, $2, $3, $4, $5, $6)

-- name: counts
select of, state, count from bellringer.counts_of_flow($1, $2)

-- name: elements
-- Where the elements of a map are among the nodes.
select first, size from flow_nodes where flow_id = $1 and node = $2

-- name: node_of
-- Which nodes of which workflow runs these runs are, by their flows and slots.
select k.flow_id, k.slot as node, f.job_id, f.scheduled_for, f.slot, f.top_job, j.name as job, g.name, n.place
from unnest($1::uuid[], $2::bigint[]) k (flow_id, slot)
cross join lateral (select * from flows f where f.flow_id = k.flow_id offset 0) f
left join lateral (select n.of, n.place from flow_nodes n where n.flow_id = k.flow_id and n.node = k.slot offset 0) n on true
left join lateral (select g.name from graph_nodes g where g.graph_id = f.graph_id and g.node = n.of offset 0) g on true
left join lateral (select j.name from jobs j where j.job_id = f.top_job offset 0) j on true
where f.tenant_id = $3
