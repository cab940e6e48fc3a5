-- Runs that people and programs ask for, stop and revive. Each is one call.
set local search_path to bellringer;

-- A send has no job: what to run travels with the run. With a key, a second send within the key's time answers the first run.
create function send(p_tenant integer, p_job uuid, p_shard smallint, p_task integer, p_pool smallint, p_priority smallint,
                     p_at timestamptz, p_spec jsonb, p_key text, p_cause cause,
                     out o_job_id uuid, out o_scheduled_for timestamptz, out o_slot bigint, out o_created boolean)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare t timestamptz := bellringer.now();
begin
  perform own(p_tenant);
  if p_spec is null or exists (select 1 from jobs where job_id = p_job) then    -- it would run, and block, somebody's job
    raise exception 'a send has no job' using errcode = 'BR004';
  end if;
  o_job_id := p_job; o_scheduled_for := coalesce(p_at, t); o_slot := 0; o_created := true;
  if p_key is not null then
    delete from send_keys where tenant_id = p_tenant and task_id = p_task and key = p_key and expires_at <= t;
    insert into send_keys (tenant_id, task_id, key, job_id, scheduled_for, slot, expires_at)
    values (p_tenant, p_task, p_key, o_job_id, o_scheduled_for, 0, greatest(o_scheduled_for, t) + interval '1 day')
    on conflict do nothing;
    if not found then
      select s.job_id, s.scheduled_for, s.slot, false into o_job_id, o_scheduled_for, o_slot, o_created
      from send_keys s where s.tenant_id = p_tenant and s.task_id = p_task and s.key = p_key;
      return;
    end if;
  end if;
  perform note(p_tenant, 'run.sent', 'run', run_target(o_job_id, o_scheduled_for, 0), null);     -- a run does not say who sent it
  if o_scheduled_for > t + interval '2 seconds' then           -- nearer ones go straight to the queue, for their time
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, spec)
    values (o_job_id, o_scheduled_for, 0, o_scheduled_for, p_shard, p_pool, p_priority, p_tenant, p_task, p_cause, p_spec);
    return;
  end if;
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, born_as, spec)
  values (o_job_id, o_scheduled_for, 0, t, 0, p_tenant, p_task, p_shard, p_pool, p_priority, p_cause, 'queued', p_spec);
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
  values (o_job_id, o_scheduled_for, 0, o_scheduled_for, p_tenant, p_task, p_shard, p_pool, p_priority, p_cause, p_spec);
end $$;

-- A run of a job, now, by hand. The schedule's own occurrences live in slot 0; this takes the next free one.
create function trigger_job(p_job uuid, p_tenant integer, p_spec jsonb, out o_scheduled_for timestamptz, out o_slot bigint)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare t timestamptz := bellringer.now();
begin
  perform own(p_tenant);
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for share;
  if not found then return; end if;
  o_scheduled_for := t; o_slot := 0;
  loop
    o_slot := o_slot + 1;
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as, spec)
    select job_id, t, o_slot, t, 0, tenant_id, task_id, revision, shard, pool_id, priority, 'manual', 'queued', p_spec
    from jobs where job_id = p_job on conflict do nothing;
    exit when found;
  end loop;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause, spec,
                     key_id, cap, blocked)
  select job_id, t, o_slot, t, tenant_id, task_id, revision, shard, pool_id, priority, 'manual', p_spec,
         key_id, cap, case when key_id is null then 0 else 32 end from jobs where job_id = p_job;
  perform note(p_tenant, 'run.triggered', 'run', run_target(p_job, t, o_slot), null);
end $$;

-- Cancel: what waits ends at once, what runs is asked to stop. Answers what the run is now, or null if there is none.
create function cancel(p_job uuid, p_at timestamptz, p_slot bigint, p_tenant integer, p_reason text) returns text
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  q queue;
  m timers;
begin
  perform own(p_tenant);
  perform lock_tops(array[p_job]) where exists (select 1 from flows f where f.flow_id = p_job);
  for look in 1..2 loop          -- twice, because a timer that rings meanwhile is in the queue afterwards
    -- Locked first, then judged: a settle may be bringing the row back right now.
    select * into q from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant for update;
    exit when q.job_id is not null;
    delete from timers where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant returning * into m;
    exit when m.job_id is not null;
  end loop;
  if q.worker_id is not null or q.blocked & 128 = 128 then     -- the nodes of a workflow run are stopped by whoever asked, or by the sweep
    update queue set cancel_requested = true where job_id = p_job and scheduled_for = p_at and slot = p_slot;
    perform note(p_tenant, 'run.cancelled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('reason', p_reason, 'state', 'running'));
    return 'running';
  end if;
  if q.job_id is not null then
    delete from queue where job_id = p_job and scheduled_for = p_at and slot = p_slot;
    delete from signals where flow_id = flow_of(p_job, p_at, p_slot);    -- of a workflow run that was not opened
  else
    if m.job_id is null then return null; end if;
    perform ensure_days(array[day_of(m.scheduled_for)]);
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as, reason, spec)
    select m.job_id, m.scheduled_for, m.slot, bellringer.now(), 0, m.tenant_id, m.task_id, m.revision, m.shard, m.pool_id, m.priority,
           m.cause, 'cancelled', p_reason, m.spec
    on conflict do nothing;
  end if;
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as, error)
  values (p_job, p_at, p_slot, 0, bellringer.now(), p_tenant, coalesce(q.revision, m.revision), 'cancelled', 'cancelled',
          jsonb_build_object('reason', p_reason))
  on conflict do nothing;
  if coalesce(q.rearms, m.rearms) then perform rearm(p_job); end if;
  perform free(array[p_job], case when coalesce(q.cause, m.cause) not in ('catchup', 'backfill', 'workflow') then array[p_job] else '{}' end);
  if coalesce(q.cause, m.cause) = 'workflow' then perform advance(array[p_job], array[p_slot], array['cancelled']); end if;
  perform note(p_tenant, 'run.cancelled', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('reason', p_reason, 'state', 'cancelled'));
  return 'cancelled';
end $$;

-- Redrive: the same runs, the same keys, attempts count on, with a full budget again.
create function redrive(p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[]) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  jobs   uuid[];                                         -- of this tenant
  n      integer;
  f      record;
  opened integer := 0;
begin
  perform own(p_tenant);
  for f in                                               -- of a workflow run, the nodes that did not go well
    select w.* from unnest(e_job, e_at, e_slot) e (job_id, at, slot) join flows w on w.flow_id = flow_of(e.job_id, e.at, e.slot)
    join dead_letters d on d.job_id = e.job_id and d.scheduled_for = e.at and d.slot = e.slot
    where w.tenant_id = p_tenant and d.tenant_id = p_tenant order by w.flow_id
  loop
    opened := opened + (retry_nodes(p_tenant, f.job_id, f.scheduled_for, f.slot, null, null) is null)::integer;
  end loop;
  jobs := array(select distinct d.job_id from unnest(e_job, e_at, e_slot) e (job_id, at, slot) join dead_letters d
                on d.job_id = e.job_id and d.scheduled_for = e.at and d.slot = e.slot where d.tenant_id = p_tenant);
  perform lock_shards_shared(jobs, '{}');                -- a tick, a pause or a deletion comes before or after, not between
  with revived as (
    delete from dead_letters d using unnest(e_job, e_at, e_slot) e (job_id, at, slot)
    where d.job_id = e.job_id and d.scheduled_for = e.at and d.slot = e.slot and d.tenant_id = p_tenant
      and not exists (select 1 from flows w where w.flow_id = flow_of(e.job_id, e.at, e.slot)) returning d.*),
  noted as (
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
    select bellringer.now(), p_tenant, a.who, a.origin, a.request_id, 'run.redriven', 'run', run_target(v.job_id, v.scheduled_for, v.slot),
           jsonb_build_object('attempt', v.attempt)
    from revived v cross join actor() a where a.who is not null)
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, attempt,
                     attempt_floor, cause, spec, key_id, cap, blocked)
  select r.job_id, r.scheduled_for, r.slot, bellringer.now(), r.tenant_id,
         coalesce(case when r.spec is null then j.task_id end, r.task_id), r.revision, r.shard, r.pool_id, r.priority,
         v.attempt, v.attempt, r.cause, r.spec, j.key_id, j.cap,
         case when j.key_id is null then 0 else 32 end | case when j.paused_at is null then 0 else 1 end
           | case when j.overlap <> 'allow' and (row_number() over (partition by r.job_id order by r.scheduled_for, r.slot) > 1
                    or exists (select 1 from queue q where q.job_id = r.job_id)) then 2 else 0 end
  from revived v join runs r on r.job_id = v.job_id and r.scheduled_for = v.scheduled_for and r.slot = v.slot
  left join jobs j on j.job_id = r.job_id
  on conflict do nothing;
  get diagnostics n = row_count;
  perform free(jobs, '{}');                              -- what it was to wait for may have ended meanwhile
  return n + opened;
end $$;

-- Discard: the runs stay dead, and nobody is to look after them any more.
create function discard(p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[]) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare n integer;
begin
  perform own(p_tenant);
  with gone as (
    delete from dead_letters d using unnest(e_job, e_at, e_slot) e (job_id, at, slot)
    where d.job_id = e.job_id and d.scheduled_for = e.at and d.slot = e.slot and d.tenant_id = p_tenant returning d.*),
  noted as (
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, before)
    select bellringer.now(), p_tenant, a.who, a.origin, a.request_id, 'run.discarded', 'run', run_target(g.job_id, g.scheduled_for, g.slot),
           jsonb_build_object('reason', g.reason, 'died_at', g.died_at)
    from gone g cross join actor() a where a.who is not null)
  select count(*) into n from gone;
  return n;
end $$;

-- A retry that waits for its backoff is made available now.
create function hasten(p_tenant integer, p_job uuid, p_at timestamptz, p_slot bigint) returns boolean
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  perform own(p_tenant);
  update queue set available_at = bellringer.now()
  where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant and worker_id is null
    and attempt > 0 and available_at > bellringer.now();
  if not found then
    update timers set due_at = bellringer.now()
    where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id = p_tenant and attempt > 0;
    if not found then return false; end if;
  end if;
  perform note(p_tenant, 'run.retried', 'run', run_target(p_job, p_at, p_slot), null);
  return true;
end $$;
