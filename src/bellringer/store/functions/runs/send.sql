-- Sends: runs without a job. The task and the arguments are stored with the run.
--
-- Guarantees  A run is created once. With a key, a second send of the task before the key expires creates nothing and
--             returns the first run. A repeated call (p_repeated: the caller got no response to an earlier call with
--             the same ids, which may have committed) returns the runs of the earlier call. The clock of the database
--             decides: a send without a time is due now. Runs that are due within SEND_AHEAD go to the queue, later
--             ones to timers.
-- Locks       In this order: LOCK_SEND of the first id, so that a repeated call waits for the earlier one to end; the
--             rows of send_keys, in the order of the items.
-- Raises      BR004 for the id of a job, check_violation if the partition of a day is missing; send also raises BR007
--             for a time in the past or more than ten years ahead (detail: the clock).
-- Caller      Checks the times of send_many. Schedulers create partitions ahead; after a check_violation, call
--             ensure_days and repeat the call. With p_notify, the function notifies workers of runs in the queue and
--             schedulers of timers that are due within SEND_NOTICE; without it, the caller does (NOTIFY takes a
--             server-wide lock at the commit).
-- Plans       Generic: planning the statements would take longer than running them. Each looks up rows by whole keys,
--             item by item, so its plan is right for tables of any size.

-- Notifies workers and schedulers of new runs with these times, which are distinct.
create or replace function notify_sent(p_now timestamptz, p_due timestamptz[]) returns void
language sql set search_path = bellringer, pg_temp as $$
  select pg_notify(
    case when due > p_now + SEND_AHEAD then 'bellringer_cohorts' else 'bellringer_work' end,
    case when due > p_now and due <= p_now + SEND_AHEAD then due::text else '' end)
  from unnest(p_due) due where due <= p_now + SEND_NOTICE order by due limit 20
$$;

-- Sends one run. Returns its key, whether this call created it, and the time of the database.
create or replace function send(
  p_tenant integer, p_id uuid, p_shard smallint, p_task integer, p_pool smallint, p_priority smallint,
  p_at timestamptz, p_delay interval, p_spec jsonb, p_key text, p_cause cause, p_repeated boolean, p_notify boolean,
  out o_job_id uuid, out o_scheduled_for timestamptz, out o_slot bigint, out o_created boolean, out o_now timestamptz)
language plpgsql security definer set search_path = bellringer, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  o_now := bellringer.now();
  o_job_id := p_id; o_scheduled_for := coalesce(p_at, o_now + p_delay, o_now); o_slot := 0; o_created := true;
  -- one expression without a query: each statement would add 5 µs
  if not assert_tenant(p_tenant) or pg_advisory_xact_lock(LOCK_SEND, uuid_hash(p_id)) is null or p_spec is null then
    raise exception 'a send has a spec' using errcode = 'BR004';
  end if;
  if o_scheduled_for < o_now - interval '1 minute' or o_scheduled_for > o_now + interval '3653 days' then
    raise exception 'a send cannot have this time' using errcode = 'BR007', detail = o_now::text;
  end if;
  if p_repeated then
    select scheduled_for into p_at from sent_before(o_now, array[p_id], o_scheduled_for);
    if p_at is not null then
      o_scheduled_for := p_at;
      return;
    end if;
  end if;
  if p_key is not null then
    delete from send_keys where tenant_id = p_tenant and task_id = p_task and key = p_key and expires_at <= o_now;
    insert into send_keys (tenant_id, task_id, key, job_id, scheduled_for, slot, expires_at)
    values (p_tenant, p_task, p_key, p_id, o_scheduled_for, 0, greatest(o_scheduled_for, o_now) + interval '1 day')
    on conflict do nothing;
    if not found then
      select first.job_id, first.scheduled_for, first.slot, false into o_job_id, o_scheduled_for, o_slot, o_created
      from send_keys first where first.tenant_id = p_tenant and first.task_id = p_task and first.key = p_key;
      return;
    end if;
  end if;
  if current_setting('bellringer.actor', true) <> '' then        -- the run itself does not record the sender
    perform note(p_tenant, 'run.sent', 'run', run_target(p_id, o_scheduled_for, 0), null);
  end if;
  if o_scheduled_for > o_now + SEND_AHEAD then
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, spec)
    select p_id, o_scheduled_for, 0, o_scheduled_for, p_shard, p_pool, p_priority, p_tenant, p_task, p_cause, p_spec
    where not exists (select 1 from jobs where job_id = p_id);
  else
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                      initial_state, spec)
    values (p_id, o_scheduled_for, 0, o_now, 0, p_tenant, p_task, p_shard, p_pool, p_priority, p_cause, 'queued',
            p_spec);
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause,
                       spec, expires_at)
    select p_id, o_scheduled_for, 0, o_scheduled_for, p_tenant, p_task, p_shard, p_pool, p_priority, p_cause, p_spec,
           o_scheduled_for + expiry_of(p_spec, null)
    where not exists (select 1 from jobs where job_id = p_id);
  end if;
  if not found then           -- with the id of a job, the send would create a run of that job and block its other runs
    raise exception 'a send has no job' using errcode = 'BR004';
  end if;
  if p_notify then perform notify_sent(o_now, array[o_scheduled_for]); end if;
end $$;

-- Many sends of one tenant, all or none; the cost is linear in their number. Item n has the nth element of each array;
-- p_at, p_delays and p_keys may be empty. The items with a key come first, ordered by task and key in every call, or
-- two calls could deadlock. Returns the clock; a new run is due at its time, or at the clock plus its delay. The items
-- for which that does not hold are listed, by position: those whose key had a run, and those of an earlier call.
create or replace function send_many(
  p_tenant integer, p_ids uuid[], p_shards smallint[], p_tasks integer[], p_pools smallint[], p_priorities smallint[],
  p_at timestamptz[], p_delays interval[], p_specs jsonb[], p_keys text[], p_repeated boolean, p_notify boolean,
  out o_now timestamptz, out o_places integer[], out o_job_ids uuid[], out o_scheduled_for timestamptz[],
  out o_slots bigint[], out o_created boolean[])
language plpgsql security definer set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_KEY as $$
declare
  creates  boolean[];                                            -- by position; null: all are
  least_id uuid := (select id from unnest(p_ids) id order by id limit 1);
  most_id  uuid := (select id from unnest(p_ids) id order by id desc limit 1);
begin
  o_now := bellringer.now();
  -- ids contain the time, so no job was created between them as a rule; `offset 0` keeps the range the only condition
  if not assert_tenant(p_tenant) or array_position(p_specs, null) is not null
     or exists (select 1 from (select job_id from jobs where job_id between least_id and most_id offset 0) job
                where job_id = any (p_ids)) then
    raise exception 'a send has no job' using errcode = 'BR004';
  end if;
  perform pg_advisory_xact_lock(LOCK_SEND, uuid_hash(p_ids[1]));
  if p_repeated then
    select array_agg(scheduled_for is null order by place),
           array_agg(place) filter (where scheduled_for is not null),
           array_agg(job_id) filter (where scheduled_for is not null),
           array_agg(scheduled_for) filter (where scheduled_for is not null),
           array_agg(0::bigint) filter (where scheduled_for is not null),
           array_agg(true) filter (where scheduled_for is not null)
    into creates, o_places, o_job_ids, o_scheduled_for, o_slots, o_created
    from sent_before(o_now, p_ids, (
      select max(coalesce(at, o_now + delay, o_now)) from unnest(p_ids, p_at, p_delays) item (id, at, delay)));
  end if;
  if cardinality(p_keys) > 0 then             -- lateral: a join could begin with send_keys and read all items per row
    delete from send_keys where ctid = any (array(
      select old.ctid from unnest(p_tasks, p_keys) item (task, key) cross join lateral (
        select first.ctid from send_keys first
        where first.tenant_id = p_tenant and first.task_id = item.task and first.key = item.key
          and first.expires_at <= o_now for update) old));
    insert into send_keys (tenant_id, task_id, key, job_id, scheduled_for, slot, expires_at)
    select p_tenant, task, key, id, due, 0, greatest(due, o_now) + interval '1 day'
    from (select item.*, coalesce(at, o_now + delay, o_now) as due
          from unnest(p_ids, p_tasks, p_keys, p_at, p_delays, creates)
               with ordinality item (id, task, key, at, delay, is_new, place)) item
    where key is not null and coalesce(is_new, true) order by place on conflict do nothing;
    with item as materialized (
      select item.place::integer, coalesce(item.is_new, true) as is_new, first.*,
             coalesce(item.is_new, true) and first.job_id <> item.id as is_taken
      from unnest(p_ids, p_tasks, p_keys, creates) with ordinality item (id, task, key, is_new, place)
      left join lateral (
        select first.job_id, first.scheduled_for, first.slot from send_keys first
        where first.tenant_id = p_tenant and first.task_id = item.task and first.key = item.key offset 0) first on true)
    select array_agg(item.is_new and item.is_taken is not true order by place),
           o_places || array_agg(place) filter (where is_taken),
           o_job_ids || array_agg(job_id) filter (where is_taken),
           o_scheduled_for || array_agg(scheduled_for) filter (where is_taken),
           o_slots || array_agg(slot) filter (where is_taken),
           o_created || array_agg(false) filter (where is_taken)
    into creates, o_places, o_job_ids, o_scheduled_for, o_slots, o_created from item;
  end if;
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                    initial_state, spec)
  select id, coalesce(at, o_now + delay, o_now), 0, o_now, 0, p_tenant, task, shard, pool, priority, 'send', 'queued',
         spec
  from unnest(p_ids, p_shards, p_tasks, p_pools, p_priorities, p_at, p_delays, p_specs, creates)
    item (id, shard, task, pool, priority, at, delay, spec, is_new)
  where coalesce(is_new, true) and coalesce(at, o_now + delay, o_now) <= o_now + SEND_AHEAD;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause,
                     spec, expires_at)
  select id, coalesce(at, o_now + delay, o_now), 0, coalesce(at, o_now + delay, o_now), p_tenant, task, shard, pool,
         priority, 'send', spec, coalesce(at, o_now + delay, o_now) + expiry_of(spec, null)
  from unnest(p_ids, p_shards, p_tasks, p_pools, p_priorities, p_at, p_delays, p_specs, creates)
    item (id, shard, task, pool, priority, at, delay, spec, is_new)
  where coalesce(is_new, true) and coalesce(at, o_now + delay, o_now) <= o_now + SEND_AHEAD;
  if cardinality(p_at) > 0 or cardinality(p_delays) > 0 then
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, spec)
    select id, coalesce(at, o_now + delay), 0, coalesce(at, o_now + delay), shard, pool, priority, p_tenant, task,
           'send', spec
    from unnest(p_ids, p_shards, p_tasks, p_pools, p_priorities, p_at, p_delays, p_specs, creates)
      item (id, shard, task, pool, priority, at, delay, spec, is_new)
    where coalesce(is_new, true) and coalesce(at, o_now + delay) > o_now + SEND_AHEAD;
  end if;
  if current_setting('bellringer.actor', true) <> '' then
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target)
    select o_now, p_tenant, actor.who, actor.origin, actor.request_id, 'run.sent', 'run',
           run_target(id, coalesce(item.at, o_now + delay, o_now), 0)
    from actor() actor cross join unnest(p_ids, p_at, p_delays, creates) item (id, at, delay, is_new)
    where coalesce(is_new, true);
  end if;
  if p_notify then
    perform notify_sent(o_now, array(
      select distinct coalesce(at, o_now + delay, o_now) from unnest(p_ids, p_at, p_delays) item (id, at, delay)));
  end if;
end $$;

-- The time of the run that an earlier call of send or send_many created under each of these ids; null if that call did
-- not commit. p_until is the latest time that a run can have.
create or replace function sent_before(p_now timestamptz, p_ids uuid[], p_until timestamptz)
returns table (place integer, job_id uuid, scheduled_for timestamptz)
language sql stable set search_path = bellringer, pg_temp set enable_bitmapscan = off PLAN_BY_KEY as $$
  select item.place::integer, item.id, found.scheduled_for
  from unnest(p_ids) with ordinality item (id, place) left join lateral (
    select timer.scheduled_for from timers timer where timer.job_id = item.id
    union all
    select run.scheduled_for from runs run where run.job_id = item.id
      and run.scheduled_for between p_now - interval '1 hour' and greatest(p_now + SEND_AHEAD, p_until)
    limit 1) found on true
$$;

-- Sends a workflow run without a job: as `send`, and keeps its graph for as long as the run may need it. Raises BR009
-- if the graph was pruned after the caller had read its id; the caller stores it again and repeats the call.
create or replace function send_workflow(
  p_tenant integer, p_id uuid, p_shard smallint, p_task integer, p_pool smallint, p_priority smallint,
  p_at timestamptz, p_delay interval, p_spec jsonb, p_key text, p_cause cause, p_repeated boolean, p_notify boolean,
  out o_job_id uuid, out o_scheduled_for timestamptz, out o_slot bigint, out o_created boolean, out o_now timestamptz)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  perform assert_tenant(p_tenant);
  if not keep_graph(p_tenant, (p_spec ->> 'graph')::integer,
                    coalesce(p_at, bellringer.now() + p_delay, bellringer.now())) then
    raise exception 'the graph is gone' using errcode = 'BR009';
  end if;
  select sent.o_job_id, sent.o_scheduled_for, sent.o_slot, sent.o_created, sent.o_now
  from send(p_tenant, p_id, p_shard, p_task, p_pool, p_priority, p_at, p_delay, p_spec, p_key, p_cause, p_repeated,
            p_notify) sent
  into o_job_id, o_scheduled_for, o_slot, o_created, o_now;
end $$;
