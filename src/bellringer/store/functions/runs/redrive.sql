-- Queues dead runs again under the same keys. Attempt numbers continue, with the full number of retries. Of a workflow
-- run, the nodes that did not succeed are retried. Returns the number of runs. Locks, in this order: workflow runs, the
-- rows of jobs, their shards (shared), dead letters.
create or replace function redrive(p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[]) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  jobs   uuid[];                                         -- jobs of this tenant that have one of the runs
  n      integer;
  f      record;
  opened integer := 0;
begin
  perform assert_tenant(p_tenant);
  for f in                                               -- workflow runs
    select flow.* from unnest(e_job, e_at, e_slot) given (job_id, at, slot)
    join flows flow on flow.flow_id = flow_of(given.job_id, given.at, given.slot)
    join dead_letters dead_letter on dead_letter.job_id = given.job_id and dead_letter.scheduled_for = given.at
      and dead_letter.slot = given.slot
    where flow.tenant_id = p_tenant and dead_letter.tenant_id = p_tenant
    order by flow.flow_id
  loop
    opened := opened + (retry_nodes(p_tenant, f.job_id, f.scheduled_for, f.slot, null, null) is null)::integer;
  end loop;
  jobs := array(select distinct d.job_id from unnest(e_job, e_at, e_slot) e (job_id, at, slot) join dead_letters d
                on d.job_id = e.job_id and d.scheduled_for = e.at and d.slot = e.slot where d.tenant_id = p_tenant);
  -- a tick, a pause or a deletion happens before or after this transaction, not in between
  perform lock_shards_shared(jobs, '{}');
  with redriven as (
    delete from dead_letters dead_letter
    using unnest(e_job, e_at, e_slot) given (job_id, at, slot)
    where dead_letter.job_id = given.job_id and dead_letter.scheduled_for = given.at and dead_letter.slot = given.slot
      and dead_letter.tenant_id = p_tenant
      and not exists (select 1 from flows flow where flow.flow_id = flow_of(given.job_id, given.at, given.slot))
    returning dead_letter.*),
  audited as (
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
    select bellringer.now(), p_tenant, actor.who, actor.origin, actor.request_id, 'run.redriven', 'run',
           run_target(redriven.job_id, redriven.scheduled_for, redriven.slot),
           jsonb_build_object('attempt', redriven.attempt)
    from redriven
    cross join actor() actor
    where actor.who is not null)
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                     attempt, attempt_floor, cause, spec, key_id, cap, resume_from, blocked)
  select run.job_id, run.scheduled_for, run.slot, bellringer.now(), run.tenant_id,
         coalesce(case when run.spec is null then job.task_id end, run.task_id), run.revision, run.shard, run.pool_id,
         run.priority, redriven.attempt, redriven.attempt, run.cause, run.spec, job.key_id, job.cap,
         redriven.resume_from,
         case when job.key_id is null then 0 else LIMITED end | case when job.paused_at is null then 0
              else PAUSED end | case
              when job.overlap <> 'allow'
                and (row_number() over (partition by run.job_id order by run.scheduled_for, run.slot) > 1
                     or exists (select 1 from queue queued where queued.job_id = run.job_id)) then PREDECESSOR
              else 0 end
  from redriven
  join runs run on run.job_id = redriven.job_id and run.scheduled_for = redriven.scheduled_for
    and run.slot = redriven.slot
  left join jobs job on job.job_id = run.job_id
  on conflict do nothing;
  get diagnostics n = row_count;
  perform unblock_next(jobs, '{}');                              -- the runs before them may have ended meanwhile
  return n + opened;
end $$;

-- Takes runs out of the dead letters; they stay dead. For a day, `restore_discarded` can put them back. p_operation:
-- the operation that discards them. Returns the number of dead letters.
create or replace function discard(
  p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[], p_operation bigint default null) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare n integer;
begin
  perform assert_tenant(p_tenant);
  with discarded as (
    delete from dead_letters dead_letter
    using unnest(e_job, e_at, e_slot) given (job_id, at, slot)
    where dead_letter.job_id = given.job_id and dead_letter.scheduled_for = given.at and dead_letter.slot = given.slot
      and dead_letter.tenant_id = p_tenant
    returning dead_letter.*),
  kept as (
    insert into discarded_dead_letters (
      job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error, fingerprint, resume_from,
      discarded_at, discarded_by, operation_id)
    select discarded.job_id, discarded.scheduled_for, discarded.slot, discarded.tenant_id, discarded.task_id,
           discarded.attempt, discarded.died_at, discarded.reason, discarded.error, discarded.fingerprint,
           discarded.resume_from, bellringer.now(), actor.who, p_operation
    from discarded
    cross join actor() actor
    on conflict (job_id, scheduled_for, slot) do update
    set task_id = excluded.task_id, attempt = excluded.attempt, died_at = excluded.died_at, reason = excluded.reason,
        error = excluded.error, fingerprint = excluded.fingerprint, resume_from = excluded.resume_from,
        discarded_at = excluded.discarded_at, discarded_by = excluded.discarded_by,
        operation_id = excluded.operation_id),
  audited as (
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, before)
    select bellringer.now(), p_tenant, actor.who, actor.origin, actor.request_id, 'run.discarded', 'run',
           run_target(discarded.job_id, discarded.scheduled_for, discarded.slot),
           jsonb_build_object('reason', discarded.reason, 'died_at', discarded.died_at)
    from discarded
    cross join actor() actor
    where actor.who is not null)
  select count(*) into n from discarded;
  return n;
end $$;

-- Puts dead letters back that were discarded after p_since. A run that is gone from the history, or that was started
-- again since, has no discarded dead letter any more or is left out. Returns the number of dead letters; a second call
-- for the same runs returns 0. Locks, in this order: workflow runs, discarded dead letters by key.
create or replace function restore_discarded(
  p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[], p_since timestamptz) returns integer
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare n integer;
begin
  perform assert_tenant(p_tenant);
  -- a workflow run whose nodes are retried meanwhile is not restored
  perform 1 from flows flow
  where flow.flow_id in (
      select flow_of(given.job_id, given.at, given.slot) from unnest(e_job, e_at, e_slot) given (job_id, at, slot))
    and flow.tenant_id = p_tenant
  order by flow.flow_id for update;
  with locked as materialized (
    select discarded.job_id, discarded.scheduled_for, discarded.slot
    from unnest(e_job, e_at, e_slot) given (job_id, at, slot)
    join discarded_dead_letters discarded on discarded.job_id = given.job_id and discarded.scheduled_for = given.at
      and discarded.slot = given.slot
    where discarded.tenant_id = p_tenant and discarded.discarded_at > p_since
    order by discarded.job_id, discarded.scheduled_for, discarded.slot for update of discarded),
  taken as (
    delete from discarded_dead_letters discarded using locked
    where discarded.job_id = locked.job_id and discarded.scheduled_for = locked.scheduled_for
      and discarded.slot = locked.slot
    returning discarded.*),
  restored as (
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error,
                              fingerprint, resume_from)
    select taken.job_id, taken.scheduled_for, taken.slot, taken.tenant_id, taken.task_id, taken.attempt, taken.died_at,
           taken.reason, taken.error, taken.fingerprint, taken.resume_from
    from taken
    join runs run on run.job_id = taken.job_id and run.scheduled_for = taken.scheduled_for and run.slot = taken.slot
    where not exists (
      select 1 from queue queued
      where queued.job_id = taken.job_id and queued.scheduled_for = taken.scheduled_for and queued.slot = taken.slot)
    on conflict do nothing
    returning dead_letters.*),
  audited as (
    insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, after)
    select bellringer.now(), p_tenant, actor.who, actor.origin, actor.request_id, 'run.restored', 'run',
           run_target(restored.job_id, restored.scheduled_for, restored.slot),
           jsonb_build_object('reason', restored.reason, 'died_at', restored.died_at)
    from restored
    cross join actor() actor
    where actor.who is not null)
  select count(*) into n from restored;
  return n;
end $$;
