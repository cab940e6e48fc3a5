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

-- Deletes dead letters; the runs stay dead. Returns the number of dead letters.
create or replace function discard(p_tenant integer, e_job uuid[], e_at timestamptz[], e_slot bigint[]) returns integer
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
