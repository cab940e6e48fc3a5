-- Workflows: versions of graphs, and workflow runs from inside.

-- name: intern
select bellringer.intern_graph($1, $2, $3::jsonb, $4::jsonb, $5, $6, $7::jsonb, $8::jsonb)

-- name: document
select document from graphs where graph_id = $1 and tenant_id = $2

-- name: version_of
select (spec ->> 'graph')::integer from jobs where tenant_id = $1 and name_key = lower($2) and deleted_at is null

-- name: known_tasks
-- Those that a worker, or the owner of the database, has named.
select name from tasks where name = any ($1::text[]) and named_by is null

-- name: values
select bellringer.value_of(f, u.ref::jsonb, null, null)
from unnest($1::uuid[], $2::text[]) with ordinality u (flow_id, ref, nth) join flows f on f.flow_id = u.flow_id order by u.nth

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
select distinct g.waits ->> 'signal' from flows f join graph_nodes g on g.graph_id = f.graph_id and g.kind = 'signal'
where f.flow_id = bellringer.flow_of($1, $2, $3) and f.tenant_id = $4 order by 1
