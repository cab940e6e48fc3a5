-- What reasons of nodes are found from, beside what people see of a workflow run. Every read goes by keys.

-- name: maps
-- Maps that have been opened: how many elements they have, how many have not ended, and how many did not go well.
select n.node, n.size, n.unended, n.broken from flow_nodes n join graphs v on v.graph_id = $2
where n.flow_id = $1 and n.node <= v.nodes and n.size is not null

-- name: standing
-- Where a node stands: whether its time has come and it waits for room, and how many runs of nodes are under way.
select n.ready, f.busy from flows f join flow_nodes n on n.flow_id = f.flow_id and n.node = $2 where f.flow_id = $1 and f.tenant_id = $3

-- name: met
-- Which nodes before one returned what it wants of them.
select e.parent from flows f join graph_edges e on e.graph_id = f.graph_id and e.child = $2 and e.equals is not null
where f.flow_id = $1 and f.tenant_id = $3
  and e.equals is not distinct from coalesce(bellringer.result_of(f.flow_id, f.scheduled_for, e.parent), 'null')
