-- compatible from 014
-- The trace context of workflow runs; see docs/decisions/030-trace-context-travels-in-the-spec.md.
set local search_path to bellringer;

-- The `trace` of the spec that the nodes get; null: their trace id is the id of the flow.
alter table flows add column trace jsonb;
alter table flows alter trace set statistics 0;
