-- Workflows: runs that have nodes. A graph is interned, so equal ones are one version; a workflow run opens into a flow, and each
-- node of a flow is a run of its own, under the flow's id as its job and the node's number as its slot.
--
-- The run that a flow is the inside of stays in the queue, held by nobody (bit 128), until its nodes have ended: so whatever asks
-- whether a run of the job is unfinished finds it there. All that happens in a flow happens under the lock of its row, in the
-- transaction that ends the node. Locks are taken in this order: jobs, timers and rows of the queue, flows (inner ones before those that
-- they are nodes of), and the row in the queue that a flow is the inside of.
set local search_path to bellringer;

create table graphs (
  graph_id     integer generated always as identity primary key,
  tenant_id    integer not null,
  digest       text not null,
  document     jsonb not null,                  -- as its author wrote it
  nodes        integer not null,
  params       jsonb not null,                  -- the default of each: a reference, or null where it must be given
  output       integer,                         -- the node whose result is that of the whole
  max_parallel integer,
  undoes       boolean not null,                -- some nodes take back what others have done
  made_at      timestamptz not null,
  unique (tenant_id, digest)
);

create table graph_nodes (
  graph_id integer not null,
  node     integer not null,                    -- numbered so that whatever comes before it has a smaller number
  name     text not null,
  kind     text not null check (kind in ('task', 'workflow', 'wait', 'signal')),
  task_id  integer not null,
  pool_id  smallint,                            -- null: that of the workflow run
  priority smallint,                            -- null: that of the workflow run
  spec     jsonb not null,
  takes    jsonb not null,                      -- arguments that are known at run time only: name → reference
  item     text,                                -- of a map: the argument that is the element, where nothing else is taken
  over     jsonb,                               -- of a map: one run for each element of this
  most     integer not null,                    -- elements of a map
  abreast  integer not null,                    -- runs of a map that are under way at once
  rule     text not null check (rule in ('all_success', 'all_done', 'one_failed', 'none_failed')),
  parents  integer not null,
  undoes   integer,
  waits    jsonb,                               -- of a wait: seconds, or until; of a signal: signal, seconds, default
  primary key (graph_id, node)
);
create table graph_edges (
  graph_id integer not null,
  parent   integer not null,
  child    integer not null,
  equals   jsonb,                               -- it counts only if the result of the parent is this
  primary key (graph_id, parent, child)
);

create table flows (
  flow_id       uuid primary key,
  job_id        uuid not null,                  -- with scheduled_for and slot: the run that it is the inside of
  scheduled_for timestamptz not null,
  slot          bigint not null,
  tenant_id     integer not null,
  shard         smallint not null,
  top_job       uuid not null,                  -- the job at the top: to pause it holds all that is below it
  parent        uuid,                           -- the flow that its run is a node of
  depth         integer not null,               -- how many are above it
  graph_id      integer not null,
  pool_id       smallint not null,
  priority      smallint not null,
  args          jsonb not null,
  zone          text not null,
  state         run_state not null default 'running',
  stopped       text,                           -- why no further node is to start
  stopped_as    run_state,                      -- and what the run ends as therefore
  undoing       boolean not null default false,
  busy          integer not null default 0,     -- runs of nodes that have begun and not ended; waits and signals are none
  unfinished    integer not null,               -- nodes that have not ended; a map is one
  next_node     integer not null,               -- the number of the next element of a map
  deadline_at   timestamptz,
  started_at    timestamptz not null,
  finished_at   timestamptz
) with (fillfactor = 70);
create index flows_under_way on flows (top_job) where finished_at is null;
create index flows_deadline on flows (deadline_at) where finished_at is null and deadline_at is not null;
create index flows_day on flows (scheduled_for);

-- state: blocked (it waits), queued (it has begun), or how it ended. Of `state` there is no index, so that its changes stay on
-- the page.
create table flow_nodes (
  flow_id    uuid not null,
  node       integer not null,
  of         integer not null,                  -- the node of the graph; of an element, its map
  place      integer,                           -- of an element
  item       jsonb,
  state      run_state not null default 'blocked',
  reason     text,
  ready      boolean not null default false,    -- its time has come, and it waits for room
  waits      integer not null default 0,        -- nodes before it that have not ended
  ok         integer not null default 0,        -- of those that have, how many went well …
  failed     integer not null default 0,        -- … and how many failed
  tries      integer not null default 0,        -- attempts before it was last put back to its beginning
  size       integer,                           -- of a map: its elements …
  first      integer,                           -- … the number of the first …
  begun      integer,                           -- … the place from which on some have not had their time …
  unended    integer,                           -- … how many have not ended …
  broken     integer,                           -- … and how many did not go well
  changed_at timestamptz not null,
  primary key (flow_id, node)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index flow_nodes_ready on flow_nodes (flow_id, node) where ready;

-- Signals that came before anybody waited for them.
create table signals (
  flow_id uuid not null,
  name    text not null,
  payload jsonb,
  came_at timestamptz not null,
  primary key (flow_id, name)
);

create index queue_to_stop on queue (job_id) where cancel_requested and blocked & 128 = 128;

create function flow_of(p_job uuid, p_at timestamptz, p_slot bigint) returns uuid language sql immutable parallel safe as
$$ select md5(p_job || ' ' || (extract(epoch from p_at) * 1000000)::bigint || ' ' || p_slot)::uuid $$;

-- A version of a graph; the same one for the same digest. Numbers of tasks and pools are looked up by the caller.
create function intern_graph(p_tenant integer, p_digest text, p_document jsonb, p_params jsonb, p_output integer, p_parallel integer,
                             p_nodes jsonb, p_edges jsonb) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare id integer;
begin
  perform own(p_tenant);
  select graph_id into id from graphs where tenant_id = p_tenant and digest = p_digest;
  if id is not null then return id; end if;
  insert into graphs (tenant_id, digest, document, nodes, params, output, max_parallel, undoes, made_at)
  values (p_tenant, p_digest, p_document, jsonb_array_length(p_nodes), p_params, p_output, p_parallel,
          jsonb_path_exists(p_nodes, '$[*].undoes ? (@ != null)'), bellringer.now())
  on conflict do nothing returning graph_id into id;
  if id is null then                            -- somebody else has made it this very moment
    select graph_id into id from graphs where tenant_id = p_tenant and digest = p_digest;
    return id;
  end if;
  insert into graph_nodes (graph_id, node, name, kind, task_id, pool_id, priority, spec, takes, item, over, most, abreast, rule, parents,
                           undoes, waits)
  select id, n.node, n.name, n.kind, n.task_id, n.pool_id, n.priority, n.spec || jsonb_build_object('kwargs', coalesce(n.spec -> 'kwargs', '{}')), n.takes,
         (select max(t.key) from jsonb_each(n.takes) t having count(*) = 1 and bool_and(t.value = '{"item": true}')), nullif(n.over, 'null'), n.most, n.abreast, n.rule,
         n.parents, n.undoes, nullif(n.waits, 'null')
  from jsonb_to_recordset(p_nodes) n (node integer, name text, kind text, task_id integer, pool_id smallint, priority smallint, spec jsonb,
       takes jsonb, over jsonb, most integer, abreast integer, rule text, parents integer, undoes integer, waits jsonb);
  insert into graph_edges (graph_id, parent, child, equals)
  select id, e.parent, e.child, e.equals::jsonb from jsonb_to_recordset(p_edges) e (parent integer, child integer, equals text);
  return id;
end $$;

-- Values at run time. What a node has returned is in its last attempt; of a map it is the list of what its elements have.
create function result_of(p_flow uuid, p_at timestamptz, p_node integer) returns jsonb language plpgsql stable as $$
declare n flow_nodes;
begin
  select * into n from flow_nodes where flow_id = p_flow and node = p_node;
  if n.size is not null then
    return (select coalesce(jsonb_agg(r.result order by i.place), '[]') from flow_nodes i
            left join lateral (
              select a.result from attempts a
              where i.state = 'succeeded' and a.job_id = p_flow and a.scheduled_for = p_at and a.slot = i.node and a.ends_as = 'succeeded'
              order by a.attempt desc limit 1) r on true
            where i.flow_id = p_flow and i.node between n.first and n.first + n.size - 1);
  end if;
  return (select a.result from attempts a
          where n.state = 'succeeded' and a.job_id = p_flow and a.scheduled_for = p_at and a.slot = p_node and a.ends_as = 'succeeded'
          order by a.attempt desc limit 1);
end $$;

-- The public id of a run, as `runs.encode_id` writes it.
create function run_id(p_job uuid, p_at timestamptz, p_slot bigint) returns text language plpgsql immutable parallel safe as $$
declare
  number numeric := 0;
  signs  text := '';
begin
  for place in 0 .. 15 loop number := number * 256 + get_byte(uuid_send(p_job), place); end loop;
  number := number * 18446744073709551616 + (extract(epoch from p_at) * 1000000)::bigint + 4611686018427387904;
  if p_slot <> 0 then number := number * 18446744073709551616 + p_slot; end if;
  for place in 1 .. case when p_slot = 0 then 33 else 44 end loop
    signs := substr('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', (number % 62)::integer + 1, 1) || signs;
    number := div(number, 62);
  end loop;
  return 'run_' || signs;
end $$;

create function value_of(p_flow flows, p_ref jsonb, p_item jsonb, p_place integer) returns jsonb language plpgsql stable as $$
declare v jsonb;
begin
  v := case
    when p_ref ? 'item' then p_item
    when p_ref ? 'node' then result_of(p_flow.flow_id, p_flow.scheduled_for, (p_ref ->> 'node')::integer)
    when p_ref ? 'param' then p_flow.args -> (p_ref ->> 'param')
    when p_ref ? 'index' then to_jsonb(p_place)
    when p_ref ->> 'run' = 'date' then to_jsonb(to_char(p_flow.scheduled_for at time zone p_flow.zone, 'YYYY-MM-DD'))
    when p_ref ->> 'run' = 'scheduled_for' then to_jsonb(to_char(p_flow.scheduled_for at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    when p_ref ->> 'run' = 'id' then to_jsonb(run_id(p_flow.job_id, p_flow.scheduled_for, p_flow.slot))
    else p_ref -> 'value' end;
  return case when p_ref ? 'path' then v #> array(select jsonb_array_elements_text(p_ref -> 'path')) else v end;
end $$;

-- What is too large to travel with the run, its worker reads by itself.
create function is_large(p_flow flows, p_node integer) returns boolean language plpgsql stable as $$
declare n flow_nodes;
begin
  select * into n from flow_nodes where flow_id = p_flow.flow_id and node = p_node;
  return coalesce(n.size > 100, false) or 4096 < (
    select sum(pg_column_size(a.result)) from generate_series(coalesce(nullif(n.first, 0), p_node), coalesce(nullif(n.first, 0) + n.size - 1, p_node)) s (slot)
    cross join lateral (
      select a.result from attempts a where a.job_id = p_flow.flow_id and a.scheduled_for = p_flow.scheduled_for and a.slot = s.slot
        and a.ends_as = 'succeeded' order by a.attempt desc limit 1) a);
end $$;

-- The spec of a node's run: its arguments are filled in, or named where they are large.
create function composed(p_flow uuid, p_node integer, p_item jsonb, p_place integer) returns jsonb language plpgsql stable as $$
declare
  f      flows;
  g      graph_nodes;
  kwargs jsonb;
  refs   jsonb := '{}';
  r      record;
begin
  select * into f from flows where flow_id = p_flow;
  select * into g from graph_nodes where graph_id = f.graph_id and node = p_node;
  kwargs := g.spec -> 'kwargs';
  for r in select key, value from jsonb_each(g.takes) loop
    if r.value ? 'node' and is_large(f, (r.value ->> 'node')::integer)
       or r.value ? 'param' and pg_column_size(f.args -> (r.value ->> 'param')) > 4096
       or (r.value ? 'node' or r.value ? 'param') and pg_column_size(kwargs) > 65536 then     -- small ones add up, too
      refs := refs || jsonb_build_object(r.key, r.value);
    else
      kwargs := kwargs || jsonb_build_object(r.key, value_of(f, r.value, p_item, p_place));
    end if;
  end loop;
  return g.spec || jsonb_build_object('kwargs', kwargs) || case when refs = '{}' then '{}' else jsonb_build_object('refs', refs) end;
end $$;

create function is_paused(p_flow uuid) returns boolean language sql stable as $$
  select exists (select 1 from flows f join jobs j on j.job_id = f.top_job where f.flow_id = p_flow and j.paused_at is not null)
$$;

-- A pause or a deletion of the jobs at the top comes before or after, not between. Taken before any row of the queue.
create function lock_tops(p_jobs uuid[]) returns void language plpgsql as $$
begin
  perform 1 from jobs where job_id = any (p_jobs || array(select f.top_job from flows f where f.flow_id = any (p_jobs)))
  order by job_id for key share;
end $$;

-- What is to become of a node by those before it: run, or be skipped because something failed (upstream), or because it is not
-- wanted (condition); null: it waits on.
create function verdict_of(p_rule text, p_parents integer, p_waits integer, p_ok integer, p_failed integer) returns text
language sql immutable parallel safe as $$
  select case
    when p_rule = 'one_failed' and p_failed > 0 then 'run'
    when p_waits > 0 then null
    when p_rule = 'all_done' or p_parents = 0 then 'run'
    when p_rule = 'one_failed' then 'condition'
    when p_failed > 0 then 'upstream'
    when p_ok = p_parents or p_rule = 'none_failed' and p_ok > 0 then 'run'
    else 'condition' end
$$;

-- The params of a workflow run: as given, else their defaults.
create function args_of(f flows, p_given jsonb) returns jsonb language sql stable as $$
  select coalesce(jsonb_object_agg(d.key, case when p_given ? d.key then p_given -> d.key else value_of(f, d.value, null, null) end), '{}')
  from graphs g cross join lateral jsonb_each(g.params) d where g.graph_id = f.graph_id
$$;

-- A workflow run is opened by the worker that has claimed it: its row in the queue is let go, and its nodes begin.
create function open_flows(p_worker integer, e_job uuid[], e_at timestamptz[], e_slot bigint[], e_attempt integer[]) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  opened uuid[];
  h_flow uuid[];                                         -- all whose rows this worker held
  h_spec jsonb[];
  again  record;
  n      integer;
begin
  with held as (
    update queue q set worker_id = null, blocked = q.blocked | 128
    from unnest(e_job, e_at, e_slot, e_attempt) e (job_id, at, slot, attempt)
    where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
    returning q.*),
  made as (
    insert into flows (flow_id, job_id, scheduled_for, slot, tenant_id, shard, top_job, parent, depth, graph_id, pool_id, priority, args, zone,
                       unfinished, next_node, deadline_at, started_at)
    select flow_of(h.job_id, h.scheduled_for, h.slot), h.job_id, h.scheduled_for, h.slot, h.tenant_id, h.shard, coalesce(p.top_job, h.job_id),
           p.flow_id, coalesce(p.depth + 1, 0), g.graph_id, h.pool_id, h.priority, coalesce(s.spec -> 'kwargs', '{}'),
           coalesce(p.zone, j.schedules #>> '{0,tz}', 'UTC'),
           g.nodes - (select count(*) from graph_nodes u where u.graph_id = g.graph_id and u.undoes is not null), g.nodes + 1,
           bellringer.now() + (s.spec ->> 'timeout')::float8 * interval '1 second', bellringer.now()
    from held h left join jobs j on j.job_id = h.job_id left join flows p on p.flow_id = h.job_id
    cross join lateral (select coalesce(h.spec, j.spec) as spec) s
    join graphs g on g.graph_id = (s.spec ->> 'graph')::integer
    on conflict do nothing
    returning flow_id)
  select (select array_agg(flow_id) from made), (select count(*) from held),
         (select array_agg(flow_of(job_id, scheduled_for, slot)) from held), (select array_agg(spec) from held)
  into opened, n, h_flow, h_spec;
  if opened is distinct from null then
    update flows f set args = args_of(f, f.args) where f.flow_id = any (opened);
    insert into flow_nodes (flow_id, node, of, ready, waits, changed_at)
    select f.flow_id, g.node, g.node, g.parents = 0 and g.undoes is null, g.parents, bellringer.now()
    from flows f join graph_nodes g on g.graph_id = f.graph_id where f.flow_id = any (opened);
    perform spread(opened, null, null);
  end if;
  for again in                                           -- it was opened before: its run was tried once more, as a node of another
    select h.flow_id, h.spec -> 'kwargs' as kwargs from unnest(h_flow, h_spec) h (flow_id, spec)
    where h.flow_id <> all (coalesce(opened, '{}')) order by 1
  loop
    perform resume_flow(again.flow_id, again.kwargs);
  end loop;
  delete from signals s using unnest(e_job, e_at, e_slot) e (job_id, at, slot)      -- of those that were cancelled before this moment
  where s.flow_id = flow_of(e.job_id, e.at, e.slot) and not exists (select 1 from flows f where f.flow_id = s.flow_id)
    and not exists (select 1 from queue q where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot);
  return n;
end $$;

-- Nodes whose runs have ended: what that means for those after them, and for the whole.
-- Here and below, plans are kept, so none may depend on what the tables were like when it was made: rows are found by their keys in
-- lateral selects of one way only (offset 0), and changed by their ctid, which stays while the flow is locked.
create function advance(e_flow uuid[], e_node bigint[], e_state text[]) returns void
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  t       timestamptz := bellringer.now();
  touched uuid[];
  w_flow  uuid[];
  w_node  integer[];
  m_flow  uuid[];                                        -- elements of maps that have their time now
  m_node  integer[];
begin
  select array_agg(f.flow_id) from (
    select flow_id from flows where flow_id = any (e_flow) order by depth desc, flow_id for update) f into touched;
  if touched is null then return; end if;
  with ended as (
    update flow_nodes n set state = e.state::run_state, changed_at = t
    from (select o.tid, e.state from unnest(e_flow, e_node, e_state) e (flow_id, node, state)
          cross join lateral (select o.ctid as tid from flow_nodes o where o.flow_id = e.flow_id and o.node = e.node and o.state = 'queued' offset 0) o) e
    where n.ctid = e.tid
    returning n.flow_id, n.node, n.of, n.place, n.state),
  maps as (
    update flow_nodes m set unended = m.unended - k.ended, broken = m.broken + k.broken,
           begun = case when cardinality(k.next) < k.ended then m.size else k.next[k.ended] - m.first + 1 end,
           state = case when m.unended > k.ended then m.state when m.broken + k.broken > 0 then 'dead' else 'succeeded' end,
           changed_at = t
    from (select k.*, o.tid, array(select n.node from flow_nodes n
                            where n.flow_id = k.flow_id and n.node between o.first + o.begun and o.first + o.size - 1 and n.state = 'blocked' and not n.ready
                            order by n.node limit k.ended) as next
          from (select flow_id, of, count(*)::integer as ended, (count(*) filter (where state <> 'succeeded'))::integer as broken
                from ended where place is not null group by flow_id, of) k
          cross join lateral (select o.ctid as tid, o.first, o.begun, o.size from flow_nodes o where o.flow_id = k.flow_id and o.node = k.of offset 0) o) k
    where m.ctid = k.tid
    returning m.flow_id, m.node, m.state, k.next),
  less as (                                              -- an element is always one that takes a place
    update flows f set busy = f.busy - k.n from (
      select o.tid, count(*)::integer as n from ended e
      cross join lateral (select o.ctid as tid, o.graph_id from flows o where o.flow_id = e.flow_id offset 0) o
      left join lateral (select g.kind from graph_nodes g where e.place is null and g.graph_id = o.graph_id and g.node = e.of offset 0) g on true
      where e.place is not null or g.kind in ('task', 'workflow') group by o.tid) k
    where f.ctid = k.tid),
  onward as (
    select flow_id, node from ended where place is null
    union all
    select flow_id, node from maps where state <> 'queued')
  select (select array_agg(flow_id) from onward), (select array_agg(node) from onward), array_agg(m.flow_id), array_agg(e.node)
  from maps m cross join unnest(m.next) e (node) into w_flow, w_node, m_flow, m_node;
  perform spread(touched, w_flow, w_node, m_flow, m_node);
end $$;

-- From nodes that have ended to those after them, as far as it goes: what is skipped ends too. Then what is ready begins, and
-- what has come to its end is ended. Called under the flows' locks.
create function spread(p_flows uuid[], w_flow uuid[], w_node integer[], m_flow uuid[] default null, m_node integer[] default null) returns void
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  d_flow uuid[];                                         -- all that have ended
  resume boolean := true;
begin
  while resume loop
    d_flow := '{}';
    while w_flow is not null loop
      d_flow := d_flow || w_flow;
      with reached as (
        select f.flow_id, f.graph_id, c.child, count(*)::integer as n,
               (count(*) filter (where n.state = 'succeeded' and (c.equals is null or c.equals is not distinct from coalesce(
                 result_of(f.flow_id, f.scheduled_for, n.node), 'null'))))::integer as ok,
               (count(*) filter (where n.state in ('dead', 'cancelled') or n.state = 'skipped' and n.reason in ('upstream', 'stopped')))::integer as failed
        from unnest(w_flow, w_node) w (flow_id, node)
        cross join lateral (select * from flows f where f.flow_id = w.flow_id offset 0) f
        cross join lateral (select * from flow_nodes n where n.flow_id = w.flow_id and n.node = w.node offset 0) n
        cross join lateral (select * from graph_edges c where c.graph_id = f.graph_id and c.parent = w.node offset 0) c
        group by f.flow_id, f.graph_id, c.child),
      decided as (
        update flow_nodes n set waits = n.waits - d.n, ok = n.ok + d.ok, failed = n.failed + d.failed,
               ready = coalesce(d.verdict = 'run', n.ready),
               state = case when d.verdict <> 'run' then 'skipped' else n.state end,
               reason = case when d.verdict <> 'run' then d.verdict else n.reason end, changed_at = bellringer.now()
        from (select r.*, c.tid, case when c.state = 'blocked' and not c.ready
                               then verdict_of(g.rule, g.parents, c.waits - r.n, c.ok + r.ok, c.failed + r.failed) end as verdict
              from reached r
              cross join lateral (select c.ctid as tid, c.* from flow_nodes c where c.flow_id = r.flow_id and c.node = r.child offset 0) c
              cross join lateral (select g.rule, g.parents from graph_nodes g where g.graph_id = r.graph_id and g.node = r.child offset 0) g) d
        where n.ctid = d.tid
        returning n.flow_id, n.node, d.verdict)
      select array_agg(flow_id), array_agg(node) from decided where verdict <> 'run' into w_flow, w_node;
    end loop;
    if d_flow <> '{}' then
      update flows f set unfinished = f.unfinished - k.n
      from (select flow_id, count(*)::integer as n from unnest(d_flow) d (flow_id) group by flow_id) k
      cross join lateral (select o.ctid as tid from flows o where o.flow_id = k.flow_id offset 0) o where f.ctid = o.tid;
    end if;
    select o_flow, o_node into w_flow, w_node from begin_nodes(p_flows, m_flow, m_node);
    m_flow := null; m_node := null;
    resume := w_flow is not null;
    if not resume then resume := end_flows(p_flows); end if;
  end loop;
end $$;

-- When a wait is over, or nobody waits for a signal any longer; infinity: never. Null: what it waits until is no time within a year.
create function due_of(p_flow uuid, p_waits jsonb) returns timestamptz language plpgsql stable as $$
declare til timestamptz;
begin
  if p_waits ->> 'seconds' is not null then return bellringer.now() + (p_waits ->> 'seconds')::float8 * interval '1 second'; end if;
  if p_waits ? 'signal' then return 'infinity'; end if;
  til := (value_of((select f from flows f where f.flow_id = p_flow), p_waits -> 'until', null, null) #>> '{}')::timestamptz;
  return case when til <= bellringer.now() + interval '366 days' then greatest(bellringer.now(), til) end;
exception when data_exception then
  return null;
end $$;

-- What is ready begins, as far as there is room: runs are born and queued, or wait for their time; maps are opened. Answers the
-- nodes that have ended at once.
create function begin_nodes(p_flows uuid[], m_flow uuid[], m_node integer[], out o_flow uuid[], out o_node integer[])
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  t    timestamptz := bellringer.now();
  u    record;
  flow flows;
  more boolean := true;
begin
  if m_flow is not null then                             -- where there is a bound, they wait for room with the others
    with bounded as (
      select m.flow_id, m.node from unnest(m_flow, m_node) m (flow_id, node)
      where exists (select 1 from flows f cross join lateral (select g.max_parallel from graphs g where g.graph_id = f.graph_id offset 0) g
                    where f.flow_id = m.flow_id and g.max_parallel is not null offset 0))
    update flow_nodes n set ready = true from bounded b
    cross join lateral (select o.ctid as tid from flow_nodes o where o.flow_id = b.flow_id and o.node = b.node offset 0) o where n.ctid = o.tid;
    if found then
      select array_agg(m.flow_id), array_agg(m.node) into m_flow, m_node from unnest(m_flow, m_node) m (flow_id, node)
      where not exists (select 1 from flow_nodes n where n.flow_id = m.flow_id and n.node = m.node and n.ready offset 0);
    end if;
  end if;
  while more loop
    more := false;
    for u in
      with picks as materialized (
        select x.flow_id, p.node, f.scheduled_for, f.tenant_id, f.shard, f.pool_id, f.priority, f.graph_id, p.tid,
               (select j.paused_at is not null from jobs j where j.job_id = f.top_job) as paused
        from unnest(p_flows) x (flow_id)
        cross join lateral (select * from flows f where f.flow_id = x.flow_id and (f.stopped is null or f.undoing) offset 0) f
        cross join lateral (select g.max_parallel as most, g.nodes from graphs g where g.graph_id = f.graph_id offset 0) g
        cross join lateral (
          (select n.node, n.ctid as tid from flow_nodes n -- waits, signals and whole maps take no room
           cross join lateral (select 1 from graph_nodes k where k.graph_id = f.graph_id and k.node = n.node
                                 and (k.kind in ('wait', 'signal') or k.over is not null) offset 0) k
           where n.flow_id = x.flow_id and n.ready and n.node <= g.nodes)
          union all
          (select n.node, n.ctid as tid from flow_nodes n
           where n.flow_id = x.flow_id and n.ready and (n.node > g.nodes or not exists (
             select 1 from graph_nodes k where k.graph_id = f.graph_id and k.node = n.node
               and (k.kind in ('wait', 'signal') or k.over is not null) offset 0))
           order by n.node limit greatest(0, coalesce(g.most, 2147483647) - f.busy))) p
        union all
        select m.flow_id, m.node, f.scheduled_for, f.tenant_id, f.shard, f.pool_id, f.priority, f.graph_id, o.tid,
               (select j.paused_at is not null from jobs j where j.job_id = f.top_job)
        from unnest(m_flow, m_node) m (flow_id, node)
        cross join lateral (select * from flows f where f.flow_id = m.flow_id and (f.stopped is null or f.undoing) offset 0) f
        cross join lateral (select o.ctid as tid from flow_nodes o where o.flow_id = m.flow_id and o.node = m.node offset 0) o),
      began as (
        update flow_nodes n set ready = false, state = 'queued', changed_at = t
        from picks p where n.ctid = p.tid
        returning p.*, n.of, n.place, n.item, n.tries),
      what as materialized (
        select b.flow_id, b.node, b.scheduled_for, b.tenant_id, b.shard, b.paused, b.tries, g.kind, g.task_id, coalesce(g.pool_id, b.pool_id) as pool_id,
               g.over is not null and b.place is null as alone,
               coalesce(g.priority - case when b.priority < 0 then 10 else 0 end, b.priority) as priority,
               case when g.over is not null and b.place is null then null
                    when g.takes = '{}' then g.spec
                    when g.item is not null then g.spec || jsonb_build_object('kwargs', (g.spec -> 'kwargs') || jsonb_build_object(g.item, b.item))
                    else composed(b.flow_id, b.of, b.item, b.place) end as spec,
               case when g.kind in ('wait', 'signal') then due_of(b.flow_id, g.waits) else t end as due
        from began b
        cross join lateral (select * from graph_nodes g where g.graph_id = b.graph_id and g.node = b.of offset 0) g),
      born as (                                          -- what waits for its time is born when that comes
        insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, born_as, spec)
        select flow_id, scheduled_for, node, t, 0, tenant_id, task_id, shard, pool_id, priority, 'workflow', 'queued', spec
        from what where not alone and (due < t + interval '60 seconds' or due = 'infinity') on conflict do nothing),
      queued as (
        insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt, attempt_floor,
                           cause, spec, blocked)
        select flow_id, scheduled_for, node, due, tenant_id, task_id, shard, pool_id, priority, tries, tries, 'workflow', spec,
               case when paused then 1 else 0 end
        from what where not alone and due < t + interval '60 seconds' on conflict do nothing),
      later as (
        insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, attempt, attempt_floor, tenant_id, task_id,
                            cause, spec)
        select flow_id, scheduled_for, node, due, shard, pool_id, priority, tries, tries, tenant_id, task_id, 'workflow', spec
        from what where not alone and due >= t + interval '60 seconds' and due < 'infinity' on conflict do nothing),
      busier as (
        update flows f set busy = f.busy + k.n
        from (select flow_id, count(*)::integer as n from what where not alone and kind in ('task', 'workflow') group by flow_id) k
        cross join lateral (select o.ctid as tid from flows o where o.flow_id = k.flow_id offset 0) o where f.ctid = o.tid)
      select flow_id, node, kind, alone, due from what where alone or kind = 'signal' or due is null
    loop
      select * into flow from flows where flow_id = u.flow_id;
      if u.alone then
        more := true;
        if open_map(flow, u.node) then o_flow := o_flow || u.flow_id; o_node := o_node || u.node; end if;
      elsif u.due is null then
        update flow_nodes set state = 'dead', reason = 'what it waits until is no time within a year', changed_at = t
        where flow_id = u.flow_id and node = u.node;
        o_flow := o_flow || u.flow_id; o_node := o_node || u.node;
      elsif take_signal(flow, u.node) then
        o_flow := o_flow || u.flow_id; o_node := o_node || u.node;
      end if;
    end loop;
    m_flow := null; m_node := null;
  end loop;
end $$;

-- One run for each element. Answers whether it has ended already: there are none, or it cannot be done.
create function open_map(p_flow flows, p_node integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  g     graph_nodes;
  items jsonb;
  n     integer;
  low   integer;
begin
  select * into g from graph_nodes where graph_id = p_flow.graph_id and node = p_node;
  items := value_of(p_flow, g.over, null, null);
  n := case when jsonb_typeof(items) = 'array' then jsonb_array_length(items) end;
  if n is null or n = 0 or n > g.most then
    update flow_nodes set state = case when n = 0 then 'succeeded' else 'dead' end::run_state, size = case when n = 0 then 0 end, first = 0, begun = 0,
           unended = 0, broken = 0, changed_at = bellringer.now(),
           reason = case when n is null then 'what it maps over is no list' when n > g.most then format('%s elements, more than %s', n, g.most) end
    where flow_id = p_flow.flow_id and node = p_node;
    return true;
  end if;
  update flows set next_node = next_node + n where flow_id = p_flow.flow_id returning next_node - n into low;
  update flow_nodes set size = n, first = low, begun = least(n, g.abreast), unended = n, broken = 0
  where flow_id = p_flow.flow_id and node = p_node;
  insert into flow_nodes (flow_id, node, of, place, item, ready, changed_at)
  select p_flow.flow_id, low + i.nth::integer - 1, p_node, i.nth - 1, i.item, i.nth <= g.abreast, bellringer.now()
  from jsonb_array_elements(items) with ordinality i (item, nth);
  return false;
end $$;

-- A node's run ends without a worker: with a signal, or because somebody says so.
create function end_node(p_flow flows, p_node integer, p_state run_state, p_result jsonb, p_error jsonb) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare try integer;
begin
  delete from timers where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node;
  delete from queue where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node;   -- one that rang meanwhile is there
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, born_as, spec)
  select p_flow.flow_id, p_flow.scheduled_for, p_node, bellringer.now(), 0, p_flow.tenant_id, g.task_id, p_flow.shard, coalesce(g.pool_id, p_flow.pool_id),
         p_flow.priority, 'workflow', 'queued', g.spec
  from flow_nodes n join graph_nodes g on g.graph_id = p_flow.graph_id and g.node = n.of
  where n.flow_id = p_flow.flow_id and n.node = p_node on conflict do nothing;
  select coalesce(max(attempt), 0) + 1 into try from attempts
  where job_id = p_flow.flow_id and scheduled_for = p_flow.scheduled_for and slot = p_node;
  insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, outcome, ends_as, error, result)
  values (p_flow.flow_id, p_flow.scheduled_for, p_node, try, bellringer.now(), bellringer.now(), p_flow.tenant_id,
          case p_state when 'succeeded' then 'ok' when 'dead' then 'failed' else 'cancelled' end::outcome, p_state, p_error, p_result);
end $$;

-- A signal that came before its time is taken now.
create function take_signal(p_flow flows, p_node integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare s signals;
begin
  delete from signals where flow_id = p_flow.flow_id and name = (
    select g.waits ->> 'signal' from graph_nodes g where g.graph_id = p_flow.graph_id and g.node = p_node) returning * into s;
  if s.flow_id is null then return false; end if;
  perform end_node(p_flow, p_node, 'succeeded', s.payload, null);
  update flow_nodes set state = 'succeeded', changed_at = bellringer.now() where flow_id = p_flow.flow_id and node = p_node;
  return true;
end $$;

-- The nodes that have failed, and whose failure no other has dealt with.
create function failures_of(p_flow flows) returns setof flow_nodes language sql stable as $$
  select n.* from flow_nodes n
  cross join lateral (select g.undoes from graph_nodes g where g.graph_id = p_flow.graph_id and g.node = n.of offset 0) g
  where n.flow_id = p_flow.flow_id and n.place is null and n.state in ('dead', 'cancelled') and g.undoes is null
    and not exists (
      select 1 from graph_edges e
      cross join lateral (select h.rule from graph_nodes h where h.graph_id = e.graph_id and h.node = e.child offset 0) h
      cross join lateral (select d.state from flow_nodes d where d.flow_id = p_flow.flow_id and d.node = e.child offset 0) d
      where e.graph_id = p_flow.graph_id and e.parent = n.node and h.rule = 'one_failed' and d.state = 'succeeded' offset 0)
  order by n.changed_at, n.node
$$;

-- Flows whose nodes have all ended: what was done is taken back where it must be, one after another; then the run itself ends.
-- Answers whether something is to begin.
create function end_flows(p_flows uuid[]) returns boolean
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  f      flows;
  names  text[];
  as_    run_state;
  undo   integer;
  starts boolean := false;
  u_flow  uuid[];                                        -- nodes of others that have ended by it
  u_node  bigint[];
  u_state text[];
begin
  for f in
    select o.* from (select distinct flow_id from unnest(p_flows) t (flow_id)) t
    cross join lateral (select * from flows o where o.flow_id = t.flow_id offset 0) o where o.unfinished = 0 and o.finished_at is null order by 1
  loop
    names := array(select (select g.name from graph_nodes g where g.graph_id = f.graph_id and g.node = n.of) from failures_of(f) n limit 20);
    as_ := coalesce(f.stopped_as, case when names <> '{}' then 'dead' else 'succeeded' end::run_state);
    if exists (select 1 from graphs g where g.graph_id = f.graph_id and g.undoes) then
      select g.node into undo from graph_nodes g
      cross join lateral (select u.state from flow_nodes u where u.flow_id = f.flow_id and u.node = g.node offset 0) u
      cross join lateral (select d.state from flow_nodes d where d.flow_id = f.flow_id and d.node = g.undoes offset 0) d
      where g.graph_id = f.graph_id and g.undoes is not null and u.state = 'blocked' and d.state = 'succeeded' and as_ <> 'succeeded'
      order by g.undoes desc, g.node desc limit 1;
      if undo is not null then
        update flow_nodes set ready = true where flow_id = f.flow_id and node = undo;
        update flows set undoing = true, unfinished = 1 where flow_id = f.flow_id;
        starts := true;
        continue;
      end if;
      update flow_nodes u set state = 'skipped', reason = 'not needed', changed_at = bellringer.now()
      where u.flow_id = f.flow_id and u.state = 'blocked'
        and u.node = any (array(select g.node from graph_nodes g where g.graph_id = f.graph_id and g.undoes is not null));
    end if;
    if end_run(f, as_, names) and f.parent is not null then
      u_flow := u_flow || f.job_id; u_node := u_node || f.slot; u_state := u_state || as_::text;
    end if;
  end loop;
  perform advance(u_flow, u_node, u_state) where u_flow is not null;      -- all in one call: they are locked in order
  return starts;
end $$;

-- The run that a flow is the inside of ends. Answers whether it had not ended before.
create function end_run(f flows, p_state run_state, p_names text[]) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  q     queue;
  told  jsonb;
  value jsonb;
begin
  update flows set state = p_state, finished_at = bellringer.now() where flow_id = f.flow_id;
  delete from signals where flow_id = f.flow_id;
  delete from queue where job_id = f.job_id and scheduled_for = f.scheduled_for and slot = f.slot and blocked & 128 = 128 returning * into q;
  if q.job_id is null then return false; end if;
  if p_state <> 'succeeded' then
    told := jsonb_build_object(
      'type', case when f.stopped is not null then 'Stopped' else 'NodesFailed' end, 'nodes', to_jsonb(p_names),
      'reason', coalesce(f.stopped, case when cardinality(p_names) = 1 then 'its node ' || p_names[1] || ' failed'
                                         else 'its nodes ' || array_to_string(p_names[:5], ', ') || ' failed' end));
    told := told || jsonb_build_object('message', told -> 'reason');
  else
    value := (select result_of(f.flow_id, f.scheduled_for, g.output) from graphs g where g.graph_id = f.graph_id and g.output is not null);
  end if;
  insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, revision, outcome, ends_as, error, result)
  values (f.job_id, f.scheduled_for, f.slot, q.attempt, f.started_at, bellringer.now(), f.tenant_id, q.revision,
          case p_state when 'succeeded' then 'ok' when 'dead' then 'failed' else 'cancelled' end::outcome, p_state, told, value);
  if f.parent is not null then return true; end if;
  if p_state = 'dead' then
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error, fingerprint)
    values (f.job_id, f.scheduled_for, f.slot, f.tenant_id, q.task_id, q.attempt, bellringer.now(), told ->> 'reason', told,
            substr(md5('NodesFailed ' || f.top_job || array_to_string(p_names, ' ')), 1, 16))
    on conflict do nothing;
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    values (bellringer.now(), f.tenant_id, 'dead', f.job_id, f.scheduled_for, f.slot, q.attempt,
            jsonb_build_object('reason', told ->> 'reason', 'error', told ->> 'type'))
    on conflict do nothing;
  end if;
  if q.rearms then perform rearm(f.job_id); end if;
  perform free(array[f.job_id], case when q.cause not in ('catchup', 'backfill') then array[f.job_id] else '{}' end);
  return true;
end $$;

-- No further node starts: what waits ends now, what runs is asked to stop. Workflow runs among the nodes are stopped one by one
-- by whoever asked, and by the sweep: each in a transaction of its own. What is being taken back is taken back to the end.
create function stop_flow(p_flow uuid, p_reason text, p_as run_state) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  f     flows;
  gone  bigint[];
  maps  integer[];
  ended integer;
begin
  perform lock_tops(array[p_flow]);
  perform 1 from timers where job_id = p_flow order by scheduled_for, slot for update;     -- before the queue, where they ring into
  perform 1 from queue where job_id = p_flow order by scheduled_for, slot for update;
  select * into f from flows where flow_id = p_flow and finished_at is null for update;
  if f.flow_id is null or f.stopped is not null then return false; end if;
  update flows set stopped = p_reason, stopped_as = p_as where flow_id = p_flow;
  if f.undoing then return true; end if;
  update queue set cancel_requested = true where job_id = p_flow and (worker_id is not null or blocked & 128 = 128);
  with waited as (
    delete from queue where job_id = p_flow and worker_id is null and blocked & 128 = 0 returning slot),
  later as (
    delete from timers where job_id = p_flow returning slot),
  unsent as (                                            -- signals that are waited for without end
    select n.node::bigint as slot from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of and g.kind = 'signal'
    where n.flow_id = p_flow and n.state = 'queued' and g.waits ->> 'seconds' is null)
  select array_agg(slot) from (select slot from waited union select slot from later union select slot from unsent) w into gone;
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, born_as, reason, spec)
  select p_flow, f.scheduled_for, s.slot, bellringer.now(), 0, f.tenant_id, g.task_id, f.shard, coalesce(g.pool_id, f.pool_id), f.priority,
         'workflow', 'cancelled', p_reason, g.spec
  from unnest(gone) s (slot) join flow_nodes n on n.flow_id = p_flow and n.node = s.slot
  join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of on conflict do nothing;       -- what waited for its time was not born
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, outcome, ends_as, error)
  select p_flow, f.scheduled_for, s.slot, coalesce(l.attempt + 1, 0), bellringer.now(), f.tenant_id, 'cancelled', 'cancelled',
         jsonb_build_object('reason', p_reason)
  from unnest(gone) s (slot) cross join lateral (
    select max(a.attempt) as attempt from attempts a where a.job_id = p_flow and a.scheduled_for = f.scheduled_for and a.slot = s.slot) l;
  update flow_nodes n set state = 'skipped', reason = 'stopped', ready = false, changed_at = bellringer.now()
  from graph_nodes g where n.flow_id = p_flow and n.state = 'blocked' and g.graph_id = f.graph_id and g.node = n.of and g.undoes is null;
  -- Elements that are skipped now end their maps' waiting for them.
  with k as (
    select n.of, count(*)::integer as n from flow_nodes n
    where n.flow_id = p_flow and n.place is not null and n.state = 'skipped' and n.reason = 'stopped' group by n.of)
  update flow_nodes m set broken = m.broken + m.unended - u.n, unended = u.n,
         state = case when u.n = 0 then 'cancelled'::run_state else m.state end, changed_at = bellringer.now()
  from (select k.of, (select count(*)::integer from flow_nodes e where e.flow_id = p_flow and e.of = k.of and e.place is not null and e.state = 'queued') as n
        from k) u
  where m.flow_id = p_flow and m.node = u.of and m.state = 'queued';
  update flows set unfinished = (
    select count(*) from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of and g.undoes is null
    where n.flow_id = p_flow and n.place is null and n.state = 'queued') where flow_id = p_flow;
  perform advance(array_fill(p_flow, array[coalesce(cardinality(gone), 0)]), coalesce(gone, '{}'),
                  array_fill('cancelled'::text, array[coalesce(cardinality(gone), 0)]))
  where gone is not null;
  perform spread(array[p_flow], null, null);
  return true;
end $$;

-- Flows that are to stop and have not been told: their run was cancelled, or they have had their time.
create function flows_to_stop(p_most integer) returns table (flow_id uuid, reason text, ends_as run_state)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
begin
  return query
  select f.flow_id, 'it was cancelled'::text, 'cancelled'::run_state from queue q
  cross join lateral (select * from flows f where f.flow_id = flow_of(q.job_id, q.scheduled_for, q.slot) offset 0) f
  where q.cancel_requested and q.blocked & 128 = 128 and f.stopped is null and f.finished_at is null limit p_most;
  return query
  select f.flow_id, 'it has had its time: ' || extract(epoch from f.deadline_at - f.started_at) || ' s', 'dead'::run_state from flows f
  where f.deadline_at <= bellringer.now() and f.finished_at is null and f.stopped is null limit p_most;
end $$;

-- Attempts of a node's run so far. Where it ended before its first one there is a run all the same, and none is to be born again.
create function tries_of(f flows, p_node integer) returns integer language sql stable as $$
  select coalesce(max(greatest(a.attempt, 1)), 0) from attempts a
  where a.job_id = f.flow_id and a.scheduled_for = f.scheduled_for and a.slot = p_node
$$;

create function first_nodes(f flows) returns integer[] language sql stable as $$
  select array(select g.node from graph_nodes g where g.graph_id = f.graph_id and g.parents = 0 and g.undoes is null)
$$;

-- Put nodes back to their beginning, and all that comes after them. Called under the flow's lock; answers what is in the way, and
-- which of them are skipped by now, which is for the caller to spread. p_keeps: what comes after them and has succeeded stays.
-- Of a map that has been opened and is among the nodes because it failed, only the elements that failed are put back. What was taken
-- back can only begin anew as a whole.
create function put_back(f flows, p_nodes integer[], p_forced boolean, p_keeps boolean, out o_trouble text, out o_skipped integer[])
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  own   integer[];                                       -- nodes of the graph
  parts integer[];                                       -- elements of maps
  open  integer[];                                       -- their maps, which go on
  below integer[];
begin
  if exists (select 1 from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of
             where n.flow_id = f.flow_id and g.undoes is not null and n.state not in ('blocked', 'skipped'))
     and not first_nodes(f) <@ p_nodes then
    o_trouble := 'undone';
    return;
  end if;
  parts := array(
    select n.node from flow_nodes n where n.flow_id = f.flow_id and n.place is not null and n.node = any (p_nodes)
    union
    select e.node from flow_nodes m join flow_nodes e on e.flow_id = m.flow_id and e.of = m.node and e.place is not null
    where m.flow_id = f.flow_id and m.node = any (p_nodes) and m.size > 0 and m.state in ('dead', 'cancelled')
      and e.state in ('dead', 'cancelled', 'skipped'));
  open := array(select distinct n.of from flow_nodes n where n.flow_id = f.flow_id and n.node = any (parts));
  below := array(
    with recursive d (node) as (
      select c.child from graph_edges c join flow_nodes n on n.flow_id = f.flow_id and n.node = c.child
      where c.graph_id = f.graph_id and c.parent = any (p_nodes || open) and not (p_keeps and n.state = 'succeeded')
      union
      select c.child from d join graph_edges c on c.graph_id = f.graph_id and c.parent = d.node
      join flow_nodes n on n.flow_id = f.flow_id and n.node = c.child where not (p_keeps and n.state = 'succeeded'))
    select node from d);
  own := array(select node from flow_nodes n where n.flow_id = f.flow_id and n.place is null and n.node = any (p_nodes)
                 and (n.node <> all (open) or n.node = any (below)) union select unnest(below));
  open := array(select o from unnest(open) o where o <> all (own));
  if exists (select 1 from flow_nodes n where n.flow_id = f.flow_id and n.state = 'queued'
               and (n.node = any (own) or n.node = any (parts) or n.of = any (own))) then
    o_trouble := 'running';
    return;
  end if;
  delete from flow_nodes e where e.flow_id = f.flow_id and e.of = any (own) and e.place is not null;
  update flow_nodes n set state = 'blocked', reason = null, ready = false, waits = 0, ok = 0, failed = 0, size = null, first = null, begun = null,
         unended = null, broken = null, changed_at = bellringer.now(), tries = tries_of(f, n.node)
  where n.flow_id = f.flow_id and n.node = any (own);
  update flow_nodes n set state = 'blocked', reason = null, ready = false, changed_at = bellringer.now(), tries = tries_of(f, n.node)
  where n.flow_id = f.flow_id and n.node = any (parts) and n.of = any (open);
  with k as (                                            -- as many as fit beside those under way have their time now
    select e.of, count(*) filter (where e.state in ('blocked', 'queued')) as unended, count(*) filter (where e.state = 'queued' or e.ready) as busy,
           count(*) filter (where e.state not in ('blocked', 'queued', 'succeeded')) as broken
    from flow_nodes e where e.flow_id = f.flow_id and e.of = any (open) and e.place is not null group by e.of),
  chosen as (
    select k.of, c.node from k join graph_nodes g on g.graph_id = f.graph_id and g.node = k.of
    cross join lateral (
      select e.node from flow_nodes e where e.flow_id = f.flow_id and e.of = k.of and e.place is not null and e.state = 'blocked' and not e.ready
      order by e.node limit greatest(0, g.abreast - k.busy)) c),
  begun as (
    update flow_nodes e set ready = true from chosen c where e.flow_id = f.flow_id and e.node = c.node)
  update flow_nodes m set state = 'queued', reason = null, changed_at = bellringer.now(), unended = k.unended, broken = k.broken,
         begun = coalesce((select max(c.node) from chosen c where c.of = k.of) - m.first + 1, 0)
  from k where m.flow_id = f.flow_id and m.node = k.of;
  with counted as (
    update flow_nodes n set waits = k.waits, ok = k.ok, failed = k.failed, ready = coalesce(v.verdict = 'run', false),
           state = case when v.verdict <> 'run' then 'skipped' else n.state end, reason = case when v.verdict <> 'run' then v.verdict end
  from (select g.node, g.rule, g.parents,
               (count(*) filter (where p.state in ('blocked', 'queued')))::integer as waits,
               (count(*) filter (where p.state = 'succeeded' and (c.equals is null or c.equals is not distinct from coalesce(
                  result_of(f.flow_id, f.scheduled_for, p.node), 'null'))))::integer as ok,
               (count(*) filter (where p.state in ('dead', 'cancelled') or p.state = 'skipped' and p.reason in ('upstream', 'stopped')))::integer as failed
        from graph_nodes g left join graph_edges c on c.graph_id = g.graph_id and c.child = g.node
        left join flow_nodes p on p.flow_id = f.flow_id and p.node = c.parent
        where g.graph_id = f.graph_id and g.node = any (own) group by g.node, g.rule, g.parents) k
  cross join lateral (select case when p_forced and k.node = any (p_nodes) then 'run'
                                  else verdict_of(k.rule, k.parents, k.waits, k.ok, k.failed) end as verdict) v
  where n.flow_id = f.flow_id and n.node = k.node
  returning n.node, n.state)
  select coalesce(array_agg(node), '{}') from counted where state = 'skipped' into o_skipped;
  update flow_nodes u set state = 'blocked', reason = null, tries = tries_of(f, u.node) from graph_nodes g
  where u.flow_id = f.flow_id and g.graph_id = f.graph_id and g.node = u.node and g.undoes is not null;
  update flows set state = 'running', stopped = null, stopped_as = null, undoing = false, finished_at = null, unfinished = (
    select count(*) from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of and g.undoes is null
    where n.flow_id = f.flow_id and n.place is null and (n.state in ('blocked', 'queued') or n.node = any (o_skipped))) where flow_id = f.flow_id;
end $$;

-- All that did not go well; after a success, all.
create function unwell(f flows) returns integer[] language sql stable as $$
  select array(
    select n.node from flow_nodes n join graph_nodes g on g.graph_id = f.graph_id and g.node = n.of and g.undoes is null
    where n.flow_id = f.flow_id and n.place is null
      and (f.state = 'succeeded' and g.parents = 0 or n.state in ('dead', 'cancelled') or n.state = 'skipped' and n.reason = 'stopped'))
$$;

-- Its run is tried again, as a node of another flow: from its beginning if it is given something else, or was taken back.
create function resume_flow(p_flow uuid, p_given jsonb) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  f       flows;
  given   jsonb;
  back    record;
begin
  select * into f from flows where flow_id = p_flow for update;
  given := args_of(f, coalesce(p_given, '{}'));
  update flows set args = given, started_at = bellringer.now(), deadline_at = bellringer.now() + (deadline_at - started_at) where flow_id = p_flow;
  back := put_back(f, case when given = f.args then unwell(f) else first_nodes(f) end, false, false);
  if back.o_trouble is not null then back := put_back(f, first_nodes(f), false, false); end if;
  perform spread(array[p_flow], array_fill(p_flow, array[cardinality(back.o_skipped)]), back.o_skipped);
end $$;

-- The run of a flow that had ended is unfinished again: in the queue, under a new attempt, and no dead letter any more.
create function reopen(f flows) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
begin
  insert into queue (job_id, scheduled_for, slot, available_at, claimed_at, tenant_id, task_id, revision, shard, pool_id, priority, attempt,
                     cause, spec, key_id, cap, blocked)
  select r.job_id, r.scheduled_for, r.slot, bellringer.now(), bellringer.now(), r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id, r.priority,
         coalesce((select max(a.attempt) from attempts a where a.job_id = f.job_id and a.scheduled_for = f.scheduled_for and a.slot = f.slot), 0) + 1,
         r.cause, r.spec, j.key_id, j.cap, 128 | case when j.key_id is null then 0 else 32 end
  from runs r left join jobs j on j.job_id = r.job_id
  where r.job_id = f.job_id and r.scheduled_for = f.scheduled_for and r.slot = f.slot on conflict do nothing;
  update flows set started_at = bellringer.now(),
         deadline_at = bellringer.now() + (deadline_at - started_at) where flow_id = f.flow_id;
  delete from dead_letters where job_id = f.job_id and scheduled_for = f.scheduled_for and slot = f.slot;
end $$;

-- A flow by the run that it is the inside of, ready to be changed; with nodes by their names and places, or none for all that did not
-- go well. What is in the way is told in a word.
create function retry_nodes(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, n_name text[], n_place integer[]) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  f     flows;
  nodes integer[];
  back  record;
begin
  perform own(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into f from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant for update;
  if f.flow_id is null then return 'unknown'; end if;
  nodes := case when n_name is null then unwell(f) else nodes_named(f, n_name, n_place) end;
  if n_name is not null and cardinality(nodes) < cardinality(n_name) then return 'unknown_node'; end if;
  if nodes = '{}' or n_name is null and f.state = 'succeeded' then return 'nothing'; end if;
  if f.parent is not null and f.finished_at is not null then return 'inner'; end if;
  if f.finished_at is null and f.stopped is not null then return 'stopping'; end if;
  back := put_back(f, nodes, n_name is not null, false);
  if back.o_trouble is not null then return back.o_trouble; end if;
  if f.finished_at is not null then perform reopen(f); end if;
  perform spread(array[f.flow_id], array_fill(f.flow_id, array[cardinality(back.o_skipped)]), back.o_skipped);
  perform note(p_tenant, 'run.nodes_retried', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('nodes', (
    select jsonb_agg(w.name || coalesce('[' || w.place || ']', '')) from unnest(n_name, n_place) w (name, place))));
  return null;
end $$;

create function nodes_named(f flows, n_name text[], n_place integer[]) returns integer[] language sql stable as $$
  select array(
    select n.node from unnest(n_name, n_place) w (name, place)
    join graph_nodes g on g.graph_id = f.graph_id and g.name = w.name
    join flow_nodes n on n.flow_id = f.flow_id and n.of = g.node and n.place is not distinct from w.place)
$$;

-- Somebody says how a node has ended: what comes after it goes on from there.
create function mark_node(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_place integer, p_state run_state,
                          p_result jsonb, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  f       flows;
  n       flow_nodes;
  held    queue;
  trouble text;
begin
  perform own(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into f from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant;
  if f.flow_id is null then return 'unknown'; end if;
  select m.* into n from flow_nodes m where m.flow_id = f.flow_id and m.node = (nodes_named(f, array[p_name], array[p_place]))[1];
  if n.flow_id is null then return 'unknown_node'; end if;
  select * into held from queue where job_id = f.flow_id and scheduled_for = f.scheduled_for and slot = n.node for update;
  if held.worker_id is not null or held.blocked & 128 = 128 then return 'running'; end if;
  select * into f from flows where flow_id = f.flow_id for update;
  select * into n from flow_nodes where flow_id = f.flow_id and node = n.node;
  if n.flow_id is null then return 'unknown_node'; end if;      -- its map begins anew
  if exists (select 1 from queue q where q.job_id = f.flow_id and q.scheduled_for = f.scheduled_for and q.slot = n.node
               and (q.worker_id is not null or q.blocked & 128 = 128)) then
    return 'running';                                    -- since this very moment
  end if;
  if n.size > 0 then return 'map'; end if;
  if f.parent is not null and f.finished_at is not null then return 'inner'; end if;
  if f.finished_at is null and f.stopped is not null then return 'stopping'; end if;
  if n.state = 'queued' then                             -- it has begun, and nobody has claimed it
    perform end_node(f, n.node, p_state, p_result, jsonb_build_object('type', 'Marked', 'reason', p_reason));
  else
    trouble := (put_back(f, array[n.node], true, true)).o_trouble;
    if trouble is not null then return trouble; end if;
    perform end_node(f, n.node, p_state, p_result, jsonb_build_object('type', 'Marked', 'reason', p_reason));
    update flow_nodes set state = 'queued', ready = false where flow_id = f.flow_id and node = n.node;
    update flows set busy = busy + 1 where flow_id = f.flow_id and exists (
      select 1 from graph_nodes g where g.graph_id = f.graph_id and g.node = n.of and g.kind in ('task', 'workflow'));
    if f.finished_at is not null then perform reopen(f); end if;
  end if;
  perform note(p_tenant, 'run.node_marked', 'run', run_target(p_job, p_at, p_slot),
               jsonb_build_object('node', p_name, 'place', p_place, 'state', p_state, 'reason', p_reason));
  perform advance(array[f.flow_id], array[n.node::bigint], array[p_state::text]);
  return null;
end $$;

-- A signal for a workflow run that has not been opened is kept for it. Who opens it meanwhile waits for its row, and finds the
-- signal; where it has been opened since, the caller is to ask again.
create function signal_early(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_payload jsonb) returns text
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  q     queue;
  graph integer;
begin
  select * into q from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant for update;
  graph := coalesce(q.spec ->> 'graph', (select j.spec ->> 'graph' from jobs j where j.job_id = p_job and q.spec is null))::integer;
  if q.job_id is null or graph is null then return 'unknown'; end if;
  if q.blocked & 128 = 128 then return 'again'; end if;
  if not exists (select 1 from graph_nodes g where g.graph_id = graph and g.kind = 'signal' and g.waits ->> 'signal' = p_name) then
    return 'unknown_signal';
  end if;
  insert into signals (flow_id, name, payload, came_at) values (flow_of(p_job, p_at, p_slot), p_name, p_payload, bellringer.now())
  on conflict (flow_id, name) do update set payload = excluded.payload, came_at = excluded.came_at;
  perform note(p_tenant, 'run.signalled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('signal', p_name));
  return 'kept';
end $$;

-- Something from outside that nodes wait for. What nobody waits for yet is kept.
create function signal_flow(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_payload jsonb) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  f     flows;
  nodes integer[];                                       -- of this name
  n     flow_nodes;
  taken bigint[] := '{}';
  ended boolean := true;
begin
  perform own(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into f from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant;
  if f.flow_id is null then return signal_early(p_tenant, p_job, p_at, p_slot, p_name, p_payload); end if;
  nodes := array(select g.node from graph_nodes g where g.graph_id = f.graph_id and g.kind = 'signal' and g.waits ->> 'signal' = p_name);
  if nodes = '{}' then return 'unknown_signal'; end if;
  perform 1 from queue where job_id = f.flow_id and scheduled_for = f.scheduled_for and slot = any (nodes) order by slot for update;
  select * into f from flows where flow_id = f.flow_id for update;
  if f.finished_at is not null or f.stopped is not null then return 'late'; end if;
  for n in select * from flow_nodes where flow_id = f.flow_id and node = any (nodes) order by node loop
    ended := ended and n.state not in ('blocked', 'queued');
    continue when n.state <> 'queued' or exists (         -- its time is over this very moment
      select 1 from queue q where q.job_id = f.flow_id and q.scheduled_for = f.scheduled_for and q.slot = n.node and q.worker_id is not null);
    perform end_node(f, n.node, 'succeeded', p_payload, null);
    taken := taken || n.node::bigint;
  end loop;
  if ended then return 'late'; end if;
  perform note(p_tenant, 'run.signalled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('signal', p_name));
  if taken = '{}' then
    insert into signals (flow_id, name, payload, came_at) values (f.flow_id, p_name, p_payload, bellringer.now())
    on conflict (flow_id, name) do update set payload = excluded.payload, came_at = excluded.came_at;
    return 'kept';
  end if;
  perform advance(array_fill(f.flow_id, array[cardinality(taken)]), taken, array_fill('succeeded'::text, array[cardinality(taken)]));
  return null;
end $$;

-- Flows are forgotten with the days of their runs. What may still be tried again is kept: without its flow it would begin anew, and
-- meet its own attempts.
create function forget_flows(p_before timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  gone uuid[];
begin
  gone := array(
    select f.flow_id from flows f where f.scheduled_for < p_before and f.finished_at is not null
      and not exists (select 1 from queue q where q.job_id = f.top_job and q.scheduled_for = f.scheduled_for offset 0)
      and not exists (select 1 from dead_letters d where d.job_id = f.top_job and d.scheduled_for = f.scheduled_for offset 0)
    order by f.scheduled_for limit p_most);
  delete from flow_nodes where flow_id = any (gone);
  delete from flows where flow_id = any (gone);
  delete from signals s where s.came_at < p_before and not exists (select 1 from flows f where f.flow_id = s.flow_id);
  return cardinality(gone);
end $$;

-- What people see of workflows. These pass the wall, for it would look for a flow at each of ten thousand elements; so each says
-- for whom it reads. By an index of their own, for among many jobs workflows may be few.
create index jobs_workflows on jobs (tenant_id, name_key) where spec ? 'graph' and deleted_at is null;

create function nodes_of_graph(p_tenant integer, p_graph integer)
returns table (node integer, name text, kind text, task text, pool text, is_map boolean, most integer, abreast integer, rule text, undoes integer,
               signal text)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
begin
  perform own(p_tenant);
  return query
  select g.node, g.name, g.kind, t.name, p.name, g.over is not null, g.most, g.abreast, g.rule, g.undoes, g.waits ->> 'signal'
  from graphs v join graph_nodes g on g.graph_id = v.graph_id
  left join tasks t on t.task_id = g.task_id and g.kind = 'task' left join pools p on p.pool_id = g.pool_id
  where v.graph_id = p_graph and v.tenant_id = p_tenant order by g.node;
end $$;

create function edges_of_graph(p_tenant integer, p_graph integer) returns table (parent integer, child integer, equals jsonb)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
begin
  perform own(p_tenant);
  return query
  select e.parent, e.child, e.equals from graphs v join graph_edges e on e.graph_id = v.graph_id
  where v.graph_id = p_graph and v.tenant_id = p_tenant order by e.child, e.parent;
end $$;

-- The nodes of a flow from one number to another, at most p_most of those in a state. Of a map, its start is that of its first
-- element. What was tried before a node was put back to its beginning does not count.
create function nodes_of_flow(p_tenant integer, p_flow uuid, p_from integer, p_upto integer, p_state text, p_most integer)
returns table (node integer, of integer, place integer, state text, reason text, item text, size integer, has_run boolean, attempt integer,
               started_at timestamptz, finished_at timestamptz, due_at timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  f    flows;
  kept run_state[] := case when p_state in ('succeeded', 'dead', 'cancelled', 'skipped') then array[p_state::run_state]
                           when p_state in ('queued', 'blocked') then '{blocked,queued}' else '{queued}' end;
begin
  perform own(p_tenant);
  select * into f from flows where flow_id = p_flow and tenant_id = p_tenant;
  return query
  select s.node, s.of, s.place, s.state, coalesce(s.reason, e.told), left(s.item::text, 1024), s.size, r.found is not null or s.timer_at is not null,
         case when s.size is null then coalesce(s.attempt, a.attempt, 0) else 0 end,
         coalesce(a.started_at, case when s.state = 'running' then s.claimed_at end),
         case when s.state in ('succeeded', 'dead', 'cancelled') then coalesce(case when s.size is null then a.finished_at end, s.changed_at) end,
         case when s.state = 'waiting' then coalesce(s.timer_at, s.available_at) end
  from (
    select n.node, n.of, n.place, d.state, n.reason, n.item, n.size, n.tries, n.changed_at, c.slot, q.available_at, m.due_at as timer_at,
           coalesce(q.claimed_at, e.claimed_at) as claimed_at, coalesce(q.attempt, m.attempt) as attempt
    from flow_nodes n
    cross join lateral (select g.kind from graph_nodes g where g.graph_id = f.graph_id and g.node = n.of offset 0) g
    cross join lateral (select case when n.size is null then n.node else n.first end as slot) c
    left join lateral (
      select q.available_at, q.claimed_at, q.attempt, q.worker_id, q.blocked from queue q
      where n.state = 'queued' and n.size is null and q.job_id = p_flow and q.scheduled_for = f.scheduled_for and q.slot = n.node offset 0) q on true
    left join lateral (
      select q.claimed_at from queue q
      where n.state = 'queued' and n.size > 0 and q.job_id = p_flow and q.scheduled_for = f.scheduled_for and q.slot = n.first offset 0) e on true
    left join lateral (
      select m.due_at, m.attempt from timers m
      where n.state = 'queued' and m.job_id = p_flow and m.scheduled_for = f.scheduled_for and m.slot = n.node offset 0) m on true
    cross join lateral (
      select case when n.state = 'blocked' then case when n.ready then 'queued' else 'blocked' end
                  when n.state <> 'queued' then n.state::text
                  when n.size is not null then 'running'
                  when g.kind in ('wait', 'signal') then 'waiting'
                  when q.worker_id is not null or q.blocked & 128 = 128 then 'running'
                  when coalesce(q.attempt, m.attempt) > n.tries then 'retrying'
                  else 'queued' end as state) d
    where n.flow_id = f.flow_id and n.node between p_from and p_upto and (p_state is null or n.state = any (kept))
      and (p_state is null or d.state = p_state)
    order by n.node limit p_most) s
  left join lateral (
    select true as found from runs r where r.job_id = p_flow and r.scheduled_for = f.scheduled_for and r.slot = s.node offset 0) r on true
  left join lateral (
    select min(a.started_at) as started_at, max(a.finished_at) as finished_at, max(a.attempt) as attempt from attempts a
    where a.job_id = p_flow and a.scheduled_for = f.scheduled_for and a.slot = s.slot and (a.attempt > s.tries or s.tries = 0)) a on true
  left join lateral (
    select left(concat_ws(': ', e.error ->> 'type', coalesce(e.error ->> 'message', e.error ->> 'reason')), 300) as told from attempts e
    where s.state = 'dead' and s.size is null and e.job_id = p_flow and e.scheduled_for = f.scheduled_for and e.slot = s.node
      and e.attempt = a.attempt offset 0) e on true
  order by s.node;
end $$;

-- How many elements of each map of a flow are in which state: one walk over them.
create function counts_of_flow(p_tenant integer, p_flow uuid) returns table (of integer, state text, count bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
#variable_conflict use_column
declare
  f flows;
begin
  perform own(p_tenant);
  select * into f from flows where flow_id = p_flow and tenant_id = p_tenant;
  return query
  select n.of, n.state::text, count(*) from flow_nodes n
  where n.flow_id = f.flow_id and n.node > (select g.nodes from graphs g where g.graph_id = f.graph_id) group by n.of, n.state;
end $$;
