-- Dispatch through a broker. The queue row is the outbox: `claim` without a worker marks it as sent, and a message
-- tells a worker which run to take. A message names the attempt that it was sent for, and the first worker that takes
-- the run gets it, so a message that arrives twice, late or never causes a delay at most: runs that no worker has taken
-- are sent again.

-- Gives the runs of received messages to a worker, as far as they are still waiting to be taken. Returns the current
-- revision of each job: a worker whose message has an older one reads the run from the database.
create or replace function take(
  p_worker integer, p_pool smallint, p_jobs uuid[], p_times timestamptz[], p_slots bigint[], p_attempts integer[])
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, claimed_at timestamptz,
               revision integer)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform require_live(p_worker);
  if exists (select from pools where pool_id = p_pool and paused_at is not null) then
    return;
  end if;
  return query
  with available as materialized (
    select run.ctid as row_id
    from unnest(p_jobs, p_times, p_slots, p_attempts) message (job_id, scheduled_for, slot, attempt)
    join queue run on run.job_id = message.job_id and run.scheduled_for = message.scheduled_for
      and run.slot = message.slot
    where run.worker_id is null and run.blocked & ~LIMITED = SENT and run.attempt = message.attempt
      and run.pool_id + 0 = p_pool
      and not exists (
        select from tenants tenant where tenant.tenant_id = run.tenant_id and tenant.suspended_at is not null)
      and not exists (
        select from task_pauses pause
        where pause.tenant_id = run.tenant_id and pause.task_id = run.task_id and pause.resumed_at is null
          and (pause.until_at is null or pause.until_at > bellringer.now()))
    order by run.job_id, run.scheduled_for, run.slot for update of run),
  taken as (
    update queue run
    set worker_id = p_worker, attempt = run.attempt + 1, claimed_at = bellringer.now(), blocked = run.blocked & ~SENT,
        sent_at = null, started_at = null
    where run.ctid = any (array(select row_id from available))
    returning run.job_id, run.scheduled_for, run.slot, run.attempt, run.claimed_at)
  select run.job_id, run.scheduled_for, run.slot, run.attempt, run.claimed_at, job.revision
  from taken run left join jobs job on job.job_id = run.job_id;
end $$;

-- Returns runs that were sent more than p_after ago and that no worker has taken, oldest first, to be sent again. The
-- number of sent runs of a pool is bounded, so all of them may be read. Runs that no worker can take (the pool is
-- paused, the tenant is suspended, there is no consumer) are withdrawn by `unsend` instead.
create or replace function resend(p_pool smallint, p_after interval, p_limit integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer,
               task_id integer, tenant_id integer, claimed_at timestamptz, name text, spec jsonb, background boolean,
               available_at timestamptz, revision integer)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  with overdue as materialized (
    select run.ctid as row_id from queue run
    where run.pool_id = p_pool and run.worker_id is null and run.blocked & SENT = SENT
      and run.sent_at < clock_timestamp() - p_after
      and not exists (
        select from tenants tenant where tenant.tenant_id = run.tenant_id and tenant.suspended_at is not null)
    order by run.sent_at limit p_limit for update of run skip locked),
  resent as (
    update queue set sent_at = clock_timestamp() where ctid = any (array(select row_id from overdue)) returning *)
  select run.job_id, run.scheduled_for, run.slot, run.attempt, run.attempt_floor, run.task_id, run.tenant_id,
         run.claimed_at, job.name, claimed_spec(coalesce(run.spec, job.spec), run.expires_at), run.priority < 0,
         run.available_at, job.revision
  from resent run left join jobs job on job.job_id = run.job_id;
end $$;

-- Withdraws sent runs: they are ready again, as if they had not been sent. p_jobs null: all runs of the pool that were
-- sent more than p_after ago. Returns how many.
create or replace function unsend(
  p_pool smallint, p_after interval, p_jobs uuid[], p_times timestamptz[], p_slots bigint[]) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' PLAN_KEPT PLAN_BY_INDEX as $$
declare
  withdrawn integer;
begin
  with overdue as materialized (
    select run.ctid as row_id from queue run
    where p_jobs is null and run.pool_id = p_pool and run.worker_id is null and run.blocked & SENT = SENT
      and run.sent_at < clock_timestamp() - p_after
    for update skip locked),
  given as materialized (
    select run.ctid as row_id
    from unnest(p_jobs, p_times, p_slots) message (job_id, scheduled_for, slot)
    join queue run on run.job_id = message.job_id and run.scheduled_for = message.scheduled_for
      and run.slot = message.slot
    where run.worker_id is null and run.blocked & SENT = SENT
    order by run.job_id, run.scheduled_for, run.slot for update of run skip locked)
  update queue set blocked = blocked & ~SENT, sent_at = null
  where ctid = any (array(select row_id from overdue union all select row_id from given));
  get diagnostics withdrawn = row_count;
  return withdrawn;
end $$;

-- The component that a scheduler is waiting for (the first word of nodes.waits_for), by the latest heartbeat; null:
-- none.
create or replace function component_waited_for() returns text
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select split_part(waits_for, ' ', 1) from nodes
  where waits_for is not null and seen_at > clock_timestamp() - interval '30 s'
  order by seen_at desc limit 1
$$;
