-- Releases at most p_most runs that a freeze has held, once no freeze covers the present. Runs of a job whose runs may
-- not overlap are released one by one. A run that another freeze holds is checked again when that freeze ends. Locks
-- the queue rows, skipping locked rows.
create or replace function release_frozen(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  n             integer;
  released_jobs uuid[];
begin
  with due_runs as materialized (
    select run.ctid as tid, run.job_id, run.cause, frozen_until(run.job_id, run.tenant_id, bellringer.now()) as until_at
    from queue run
    where run.blocked = any (bits(FROZEN)) and run.blocked & HELD <> 0 and run.available_at <= bellringer.now()
    limit p_most for update skip locked),
  deferred as (
    update queue run
    set available_at = due_runs.until_at
          + coalesce((select job.jitter_by from jobs job
                      where job.job_id = due_runs.job_id and due_runs.cause = 'schedule'),
                     interval '0')
    from due_runs
    where run.ctid = due_runs.tid and due_runs.until_at is not null),
  released as (
    update queue run
    set blocked = run.blocked & ~FROZEN
          | coalesce((select case when job.overlap <> 'allow' then PREDECESSOR else 0 end from jobs job
                      where job.job_id = run.job_id),
                     0)
    where run.ctid = any (array(select tid from due_runs where until_at is null))
    returning run.job_id)
  select count(*), array_agg(distinct job_id) from released into n, released_jobs;
  perform unblock_next(released_jobs, '{}') where n > 0;
  return n;
end $$;

-- Makes the next `release_frozen` check all frozen runs of a tenant. Called after a freeze was ended early.
create or replace function recheck_frozen(p_tenant integer) returns void
language plpgsql security definer set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
begin
  perform assert_tenant(p_tenant);
  update queue run set available_at = greatest(bellringer.now(), run.scheduled_for
           + coalesce((select job.jitter_by from jobs job where job.job_id = run.job_id
             and run.cause = 'schedule'), interval '0'))
  where run.blocked = any (bits(FROZEN)) and run.blocked & HELD <> 0 and run.tenant_id + 0 = p_tenant
    and run.available_at > bellringer.now();
end $$;
