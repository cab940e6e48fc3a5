-- Keeps a signal for a workflow run that has not been opened. A worker that opens it at the same time waits for the
-- lock of its queue row, and finds the signal. 'again': it has been opened meanwhile, and the caller calls
-- `signal_flow` again.
create or replace function signal_early(
  p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_payload jsonb) returns text
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  queued queue;
  graph  integer;
begin
  select * into queued from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot
         and tenant_id = p_tenant for update;
  graph := coalesce(queued.spec ->> 'graph',
                    (select j.spec ->> 'graph' from jobs j where j.job_id = p_job and queued.spec is null))::integer;
  if queued.job_id is null or graph is null then return 'unknown'; end if;
  if queued.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then return 'again'; end if;
  if not exists (select 1 from graph_nodes g where g.graph_id = graph and g.kind = 'signal'
                 and g.waits ->> 'signal' = p_name) then
    return 'unknown_signal';
  end if;
  insert into signals (flow_id, name, payload, received_at) values (flow_of(p_job, p_at, p_slot), p_name, p_payload,
                                                                bellringer.now())
  on conflict (flow_id, name) do update set payload = excluded.payload, received_at = excluded.received_at;
  perform note(p_tenant, 'run.signalled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('signal', p_name));
  return 'kept';
end $$;

-- Delivers a signal to the nodes that wait for it, or keeps it until one does. Returns null, 'kept', or one word that
-- says why it was not accepted.
create or replace function signal_flow(
  p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint, p_name text, p_payload jsonb) returns text
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  flow      flows;
  nodes     integer[];                                   -- of this name
  flow_node flow_nodes;
  taken     bigint[] := '{}';
  ended     boolean := true;
begin
  perform assert_tenant(p_tenant);
  perform lock_tops(array[p_job, flow_of(p_job, p_at, p_slot)]);
  select * into flow from flows where flow_id = flow_of(p_job, p_at, p_slot) and tenant_id = p_tenant;
  if flow.flow_id is null then return signal_early(p_tenant, p_job, p_at, p_slot, p_name, p_payload); end if;
  nodes := array(select g.node from graph_nodes g where g.graph_id = flow.graph_id and g.kind = 'signal'
                 and g.waits ->> 'signal' = p_name);
  if nodes = '{}' then return 'unknown_signal'; end if;
  perform 1 from queue where job_id = flow.flow_id and scheduled_for = flow.scheduled_for
    and slot = any (nodes) order by slot for update;
  select * into flow from flows where flow_id = flow.flow_id for update;
  if flow.finished_at is not null or flow.stopped is not null then return 'late'; end if;
  for flow_node in select * from flow_nodes where flow_id = flow.flow_id and node = any (nodes) order by node loop
    ended := ended and flow_node.state not in ('blocked', 'queued');
    continue when flow_node.state <> 'queued'
      or exists (                                        -- its timeout is being handled
        select 1 from queue run
        where run.job_id = flow.flow_id and run.scheduled_for = flow.scheduled_for and run.slot = flow_node.node
          and run.worker_id is not null);
    perform end_node(flow, flow_node.node, 'succeeded', p_payload, null);
    taken := taken || flow_node.node::bigint;
  end loop;
  if ended then return 'late'; end if;
  perform note(p_tenant, 'run.signalled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('signal', p_name));
  if taken = '{}' then
    insert into signals (flow_id, name, payload, received_at)
    values (flow.flow_id, p_name, p_payload, bellringer.now()) on conflict (flow_id, name) do update
    set payload = excluded.payload, received_at = excluded.received_at;
    return 'kept';
  end if;
  perform advance(array_fill(flow.flow_id, array[cardinality(taken)]), taken,
                  array_fill('succeeded'::text, array[cardinality(taken)]));
  return null;
end $$;
