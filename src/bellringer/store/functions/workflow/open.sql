-- Workflow runs. A graph is stored once for equal definitions. A workflow run opens into a row of `flows`, and each of
-- its nodes has a run: its job_id is the flow's id, its slot the number of the node.
--
-- While its nodes run, the workflow run itself stays in the queue with the bit OPEN_WORKFLOW and without a worker, so
-- every query that looks for unfinished runs of the job finds it. All changes of a flow happen under the lock of its
-- row, in the transaction that ends a node. Locks  In this order: jobs, timers, queue rows, flows (inner ones first),
-- the queue row of the workflow run.

-- Opens workflow runs that a worker has claimed: the worker gives up their queue rows, and their nodes begin. Returns
-- how many rows the worker held.
create or replace function open_flows(
  p_worker integer, p_jobs uuid[], p_times timestamptz[], p_slots bigint[], p_attempts integer[]) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  opened     uuid[];
  held_flows uuid[];
  held_specs jsonb[];
  reopened   record;
  held_rows  integer;
begin
  -- Step 1: give up the queue rows, and create the flows.
  with held as (
    update queue run set worker_id = null, blocked = run.blocked | OPEN_WORKFLOW, expires_at = null
    from unnest(p_jobs, p_times, p_slots, p_attempts) given (job_id, scheduled_for, slot, attempt)
    where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
      and run.worker_id + 0 = p_worker and run.attempt = given.attempt
    returning run.*),
  created as (
    insert into flows (flow_id, job_id, scheduled_for, slot, tenant_id, shard, top_job, parent, depth, graph_id,
                       pool_id, priority, args, zone, unfinished, next_node, deadline_at, started_at, trace)
    select flow_of(run.job_id, run.scheduled_for, run.slot), run.job_id, run.scheduled_for, run.slot, run.tenant_id,
           run.shard, coalesce(outer_flow.top_job, run.job_id), outer_flow.flow_id, coalesce(outer_flow.depth + 1, 0),
           graph.graph_id, run.pool_id, run.priority, coalesce(effective.spec -> 'kwargs', '{}'),
           coalesce(outer_flow.zone, job.schedules #>> '{0,tz}', 'UTC'),
           graph.nodes - (select count(*) from graph_nodes compensation
                          where compensation.graph_id = graph.graph_id and compensation.undoes is not null),
           graph.nodes + 1, bellringer.now() + (effective.spec ->> 'timeout')::float8 * interval '1 second',
             bellringer.now(),
           case when effective.spec #> '{trace,linked}' is not null
                then trace_of_flow(flow_of(run.job_id, run.scheduled_for, run.slot))
                when effective.spec ? 'trace' then effective.spec -> 'trace'
                when outer_flow.flow_id is not null then trace_of_flow(outer_flow.flow_id) end
    from held run
    left join jobs job on job.job_id = run.job_id
    left join flows outer_flow on outer_flow.flow_id = run.job_id
    cross join lateral (select coalesce(run.spec, job.spec) as spec) effective
    join graphs graph on graph.graph_id = (effective.spec ->> 'graph')::integer
    on conflict do nothing
    returning flow_id)
  select (select array_agg(flow_id) from created), (select count(*) from held),
         (select array_agg(flow_of(job_id, scheduled_for, slot)) from held), (select array_agg(spec) from held)
  into opened, held_rows, held_flows, held_specs;

  -- Step 2: create the nodes, and begin those without parents.
  if opened is not null then
    update flows flow set args = args_of(flow, flow.args) where flow.flow_id = any (opened);
    insert into flow_nodes (flow_id, node, of, ready, waits, changed_at)
    select flow.flow_id, graph_node.node, graph_node.node, graph_node.parents = 0 and graph_node.undoes is null,
           graph_node.parents, bellringer.now()
    from flows flow join graph_nodes graph_node on graph_node.graph_id = flow.graph_id
    where flow.flow_id = any (opened);
    perform propagate(opened, null, null);
  end if;

  -- Step 3: flows that exist already belong to inner workflow runs that are retried.
  for reopened in
    select held.flow_id, held.spec -> 'kwargs' as kwargs from unnest(held_flows, held_specs) held (flow_id, spec)
    where held.flow_id <> all (coalesce(opened, '{}')) order by 1
  loop
    perform resume_flow(reopened.flow_id, reopened.kwargs);
  end loop;

  -- Step 4: early signals of runs that were cancelled before they could be opened.
  delete from signals signal using unnest(p_jobs, p_times, p_slots) given (job_id, scheduled_for, slot)
  where signal.flow_id = flow_of(given.job_id, given.scheduled_for, given.slot)
    and not exists (select from flows flow where flow.flow_id = signal.flow_id)
    and not exists (select from queue run where run.job_id = given.job_id and run.scheduled_for = given.scheduled_for
                      and run.slot = given.slot);
  return held_rows;
end $$;

-- The trace context of nodes whose trace id is the id of a flow.
create or replace function trace_of_flow(p_flow uuid) returns jsonb language sql immutable parallel safe as
$$ select jsonb_build_object('id', replace(p_flow::text, '-', '')) $$;

-- Whether the job at the top of a workflow run is paused.
create or replace function is_paused(p_flow uuid) returns boolean language sql stable as $$
  select exists (
    select from flows flow join jobs job on job.job_id = flow.top_job
    where flow.flow_id = p_flow and job.paused_at is not null)
$$;

-- Locks the jobs at the top, so that a pause or a deletion happens before or after this transaction, and the jobs that
-- start after them. Called before any queue row is locked.
create or replace function lock_tops(p_jobs uuid[]) returns void language plpgsql as $$
declare
  tops      uuid[] := array(select top_job from flows where flow_id = any (p_jobs));
  followers uuid[] := '{}';
begin
  if tops <> '{}' and exists (select from job_followers) then
    followers := followers_of(tops);
  end if;
  if followers <> '{}' then
    perform lock_followers(followers, p_jobs || tops);
  else
    perform from jobs where job_id = any (p_jobs || tops) order by job_id for key share;
  end if;
end $$;
