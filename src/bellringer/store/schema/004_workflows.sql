-- Workflows: runs that have nodes. A graph is interned, so equal graphs are one version. A workflow run is opened as a
-- flow; each node of the flow is a run, with the id of the flow as its job and the number of the node as its slot.
--
-- The run of an open flow stays in the queue, held by no worker (bit 128 of `blocked`), until its nodes have ended:
-- statements that look for unfinished runs of the job find it there. All changes of a flow happen under the lock of its
-- row, in the transaction that ends the node. Locks are taken in this order: jobs, timers and queue rows, flows (inner
-- flows before outer ones), the queue row of the flow's own run.
set local search_path to bellringer;

create table graphs (
  graph_id     integer generated always as identity primary key,
  tenant_id    integer not null,
  digest       text not null,
  document     jsonb not null,                  -- as the user wrote it
  nodes        integer not null,
  params       jsonb not null,                  -- name → default; null: the parameter is required
  output       integer,                         -- the node whose result is the result of the workflow
  max_parallel integer,
  undoes       boolean not null,                -- it has nodes that compensate others
  made_at      timestamptz not null,
  unique (tenant_id, digest)
);

create table graph_nodes (
  graph_id       integer not null,
  node           integer not null,              -- parents have smaller numbers
  name           text not null,
  kind           text not null check (kind in ('task', 'workflow', 'wait', 'signal')),
  task_id        integer not null,
  pool_id        smallint,                      -- null: that of the workflow run
  priority       smallint,                      -- null: that of the workflow run
  spec           jsonb not null,
  takes          jsonb not null,                -- arguments from other nodes: name → reference
  -- of a map: the argument that gets the element, if there is no other argument
  item           text,
  over           jsonb,                         -- of a map: the list; each element gets a run
  most           integer not null,              -- of a map: maximum number of elements
  max_concurrent integer not null,              -- of a map: maximum number of concurrent runs
  rule           text not null check (rule in ('all_success', 'all_done', 'one_failed', 'none_failed')),
  parents        integer not null,
  undoes         integer,
  waits          jsonb,                         -- of a wait: seconds, or until; of a signal: signal, seconds, default
  primary key (graph_id, node)
);

create table graph_edges (
  graph_id integer not null,
  parent   integer not null,
  child    integer not null,
  equals   jsonb,                               -- the edge counts only if the parent's result equals this
  primary key (graph_id, parent, child)
);

create table flows (
  flow_id       uuid primary key,
  job_id        uuid not null,                  -- with scheduled_for and slot: the workflow run
  scheduled_for timestamptz not null,
  slot          bigint not null,
  tenant_id     integer not null,
  shard         smallint not null,
  top_job       uuid not null,                  -- the outermost job: pausing it holds all inner runs
  parent        uuid,                           -- the outer flow, if the workflow run is a node
  depth         integer not null,               -- the number of outer flows
  graph_id      integer not null,
  pool_id       smallint not null,
  priority      smallint not null,
  args          jsonb not null,
  zone          text not null,
  state         run_state not null default 'running',
  stopped       text,                           -- why no further node starts
  stopped_as    run_state,                      -- the state in which the run then ends
  undoing       boolean not null default false,
  -- running nodes; waits and signals do not count
  busy          integer not null default 0,
  unfinished    integer not null,               -- nodes that have not ended; a map counts as one
  next_node     integer not null,               -- the number of the next element of a map
  deadline_at   timestamptz,
  started_at    timestamptz not null,
  finished_at   timestamptz
) with (fillfactor = 70);
create index flows_under_way on flows (top_job) where finished_at is null;
create index flows_deadline on flows (deadline_at) where finished_at is null and deadline_at is not null;
create index flows_day on flows (scheduled_for);

-- state: blocked (waiting), queued (begun), or the final state. `state` is not indexed, so that its updates stay on the
-- page (HOT).
create table flow_nodes (
  flow_id         uuid not null,
  node            integer not null,
  of              integer not null,             -- the node of the graph; of an element, its map
  place           integer,                      -- of an element
  item            jsonb,
  state           run_state not null default 'blocked',
  reason          text,
  ready           boolean not null default false, -- it may begin, and waits for capacity
  waits           integer not null default 0,   -- nodes before it that have not ended
  ok              integer not null default 0,   -- parents that succeeded …
  failed          integer not null default 0,   -- … and that failed
  attempt_floor   integer not null default 0,   -- attempts before it was last reset
  size            integer,                      -- of a map: the number of elements …
  first           integer,                      -- … the number of the first …
  begun           integer,                      -- … the place of the first that has not begun …
  elements_left   integer,                      -- … how many have not ended …
  elements_failed integer,                      -- … and how many did not succeed
  changed_at      timestamptz not null,
  primary key (flow_id, node)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0);
create index flow_nodes_ready on flow_nodes (flow_id, node) where ready;

-- Signals that arrived before a node waited for them.
create table signals (
  flow_id     uuid not null,
  name        text not null,
  payload     jsonb,
  received_at timestamptz not null,
  primary key (flow_id, name)
);
