-- Unblocking: what follows when a run ends. Callers have ended a run of the job in the same transaction, in an earlier
-- statement.

-- Unblocks the next run of each job that waits for an earlier one; returns how many. p_live are the jobs of ended runs
-- that were neither catch-up nor backfill: their runs that became due meanwhile are first skipped or collapsed by the
-- overlap policy, so that the result does not depend on whether `decide_overlaps` has seen them yet.
create or replace function unblock_next(p_jobs uuid[], p_live uuid[]) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_INDEX as $$
declare
  run       record;
  unblocked integer;
begin
  if not exists (select from queue where blocked & PREDECESSOR = PREDECESSOR) then
    return 0;
  end if;
  for run in
    select due.ctid as row_id, due.job_id, due.scheduled_for, due.slot, job.overlap
    from queue due join jobs job on job.job_id = due.job_id
    where cardinality(p_live) > 0 and due.job_id = any (p_live)
      and due.blocked & (PREDECESSOR | UNDECIDED) = (PREDECESSOR | UNDECIDED) and due.available_at <= bellringer.now()
      and job.overlap in ('skip', 'collapse')
    order by due.job_id, due.scheduled_for, due.slot
  loop
    if run.overlap = 'skip' then
      perform skip_overlapped(array[run.row_id]);
    else
      perform collapse_overlapped(run.job_id, run.scheduled_for, run.slot);
    end if;
  end loop;
  update queue set blocked = blocked & ~(PREDECESSOR | UNDECIDED)
  where blocked & PREDECESSOR = PREDECESSOR and ctid = any (array(
    select first.ctid
    from (select distinct unnest(p_jobs) as job_id) job
    cross join lateral (
      select waiting.ctid, waiting.scheduled_for, waiting.slot from queue waiting
      where waiting.job_id = job.job_id and waiting.blocked & PREDECESSOR = PREDECESSOR
      order by waiting.scheduled_for, waiting.slot limit 1) first
    where not exists (                                   -- a run that a freeze holds only comes before later ones
      select from queue other
      where other.job_id = job.job_id and other.blocked & PREDECESSOR = 0
        and (other.blocked & FROZEN = 0 or (other.scheduled_for, other.slot) < (first.scheduled_for, first.slot)))));
  get diagnostics unblocked = row_count;
  return unblocked;
end $$;

-- Unblocks runs that wait although no earlier run is left: two runs that ended at the same time may each have seen the
-- other. Looks at most at p_most waiting runs after the given position; returns the new position, nulls at the end.
create or replace function unblock_orphans(
  p_available_at timestamptz, p_job uuid, p_most integer, out o_at timestamptz, out o_job uuid)
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_INDEX as $$
declare
  job_ids uuid[];
  times   timestamptz[];
begin
  select array_agg(job_id), array_agg(available_at)
  from (
    select job_id, available_at from queue
    where blocked & PREDECESSOR = PREDECESSOR and (available_at, job_id) > (p_available_at, p_job)
      and available_at <= bellringer.now()
    order by available_at, job_id limit p_most) waiting
  into job_ids, times;
  if job_ids is not null then
    perform unblock_next(job_ids, '{}');
  end if;
  if cardinality(job_ids) = p_most then
    o_at := times[p_most];
    o_job := job_ids[p_most];
  end if;
end $$;

-- Arms the next run of a job with a fixed delay.
create or replace function rearm(p_job uuid) returns void
language sql set search_path = bellringer, pg_temp as $$
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision,
                      cause, rearms)
  select job_id, bellringer.now() + delay, 0, bellringer.now() + delay, shard, pool_id, priority, tenant_id, task_id,
         revision, 'schedule', true
  from jobs
  where job_id = p_job and delay is not null and enabled and paused_at is null and deleted_at is null
    and (ends_at is null or ends_at >= bellringer.now() + delay)
  on conflict do nothing
$$;

-- All values of queue.blocked that have a bit: an index on `blocked` is searched with them.
create or replace function bits(p_bit integer) returns smallint[] language sql immutable parallel safe as $$
  select array_agg(value::smallint) from generate_series(0, 127) value where value & p_bit = p_bit
$$;
