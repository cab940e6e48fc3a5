-- Values at run time. The result of a node is that of its last attempt; the result of a map is the list of its
-- elements' results.
create or replace function result_of(p_flow uuid, p_at timestamptz, p_node integer) returns jsonb
language plpgsql stable as $$
declare flow_node flow_nodes;
begin
  select * into flow_node from flow_nodes where flow_id = p_flow and node = p_node;
  if flow_node.size is not null then
    return (
      select coalesce(jsonb_agg(attempt.result order by node.place), '[]') from flow_nodes node
      left join lateral (
        select attempt.result from attempts attempt
        where node.state = 'succeeded' and attempt.job_id = p_flow and attempt.scheduled_for = p_at
          and attempt.slot = node.node and attempt.ends_as = 'succeeded'
        order by attempt.attempt desc limit 1) attempt on true
      where node.flow_id = p_flow and node.node between flow_node.first and flow_node.first + flow_node.size - 1);
  end if;
  return (
    select attempt.result from attempts attempt
    where flow_node.state = 'succeeded' and attempt.job_id = p_flow and attempt.scheduled_for = p_at
      and attempt.slot = p_node and attempt.ends_as = 'succeeded'
    order by attempt.attempt desc limit 1);
end $$;

-- The public id of a run, as `runs.encode_id` writes it.
create or replace function run_id(p_job uuid, p_at timestamptz, p_slot bigint) returns text
language plpgsql immutable parallel safe as $$
declare
  number numeric := 0;
  signs  text := '';
begin
  for place in 0 .. 15 loop number := number * 256 + get_byte(uuid_send(p_job), place); end loop;
  number := number * 18446744073709551616 + (extract(epoch from p_at) * 1000000)::bigint + 4611686018427387904;
  if p_slot <> 0 then number := number * 18446744073709551616 + p_slot; end if;
  for place in 1 .. case when p_slot = 0 then 33 else 44 end loop
    signs := substr('0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', (number % 62)::integer + 1,
                    1) || signs;
    number := div(number, 62);
  end loop;
  return 'run_' || signs;
end $$;

-- The value that a reference of the graph stands for: an element, a result, a parameter, or a time of the run.
create or replace function value_of(p_flow flows, p_ref jsonb, p_item jsonb, p_place integer) returns jsonb
language plpgsql stable as $$
declare v jsonb;
begin
  v := case when p_ref ? 'item' then p_item
            when p_ref ? 'node' then result_of(p_flow.flow_id, p_flow.scheduled_for, (p_ref ->> 'node')::integer)
            when p_ref ? 'param' then p_flow.args -> (p_ref ->> 'param') when p_ref ? 'index' then to_jsonb(p_place)
            when p_ref ->> 'run' = 'date' then to_jsonb(to_char(p_flow.scheduled_for at time zone p_flow.zone,
                                                          'YYYY-MM-DD'))
            when p_ref ->> 'run' = 'scheduled_for' then to_jsonb(to_char(p_flow.scheduled_for at time zone 'UTC',
                  'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
            when p_ref ->> 'run' = 'id' then to_jsonb(run_id(p_flow.job_id, p_flow.scheduled_for, p_flow.slot))
            else p_ref -> 'value' end;
  return case when p_ref ? 'path' then v #> array(select jsonb_array_elements_text(p_ref -> 'path')) else v end;
end $$;

-- Whether a result is too large to be stored with the run that takes it; its worker then reads the result itself.
create or replace function is_large(p_flow flows, p_node integer) returns boolean language plpgsql stable as $$
declare flow_node flow_nodes;
begin
  select * into flow_node from flow_nodes where flow_id = p_flow.flow_id and node = p_node;
  return coalesce(flow_node.size > 100, false)
    or 4096 < (
      select sum(pg_column_size(attempt.result))
      from generate_series(coalesce(nullif(flow_node.first, 0), p_node),
                           coalesce(nullif(flow_node.first, 0) + flow_node.size - 1, p_node)) given (slot)
      cross join lateral (
        select attempt.result from attempts attempt
        where attempt.job_id = p_flow.flow_id and attempt.scheduled_for = p_flow.scheduled_for
          and attempt.slot = given.slot and attempt.ends_as = 'succeeded'
        order by attempt.attempt desc limit 1) attempt);
end $$;

-- The spec of a node's run: references in its arguments are replaced by values, or kept in `refs` where the value is
-- large.
create or replace function node_spec(p_flow uuid, p_node integer, p_item jsonb, p_place integer) returns jsonb
language plpgsql stable as $$
declare
  flow       flows;
  graph_node graph_nodes;
  kwargs     jsonb;
  refs       jsonb := '{}';
  r          record;
begin
  select * into flow from flows where flow_id = p_flow;
  select * into graph_node from graph_nodes where graph_id = flow.graph_id and node = p_node;
  kwargs := graph_node.spec -> 'kwargs';
  for r in select key, value from jsonb_each(graph_node.takes) loop
    if r.value ? 'node' and is_large(flow, (r.value ->> 'node')::integer)
       or r.value ? 'param' and pg_column_size(flow.args -> (r.value ->> 'param')) > 4096
       -- many small values add up
       or (r.value ? 'node' or r.value ? 'param') and pg_column_size(kwargs) > 65536 then
      refs := refs || jsonb_build_object(r.key, r.value);
    else
      kwargs := kwargs || jsonb_build_object(r.key, value_of(flow, r.value, p_item, p_place));
    end if;
  end loop;
  return graph_node.spec || jsonb_build_object('kwargs',
                                      kwargs) || case when refs = '{}' then '{}' else jsonb_build_object('refs',
                                                                                                         refs) end;
end $$;
