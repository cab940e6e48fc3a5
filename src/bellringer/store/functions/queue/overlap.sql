-- Overlap: what happens to a run that becomes due while an earlier run of its job is unfinished.
--
-- Such a run is in the queue with the bits PREDECESSOR (it waits) and UNDECIDED (its job's overlap policy is applied
-- when it is due). `decide_overlaps` applies the policy here; `unblock_next` applies it too, when the earlier run ends
-- first. Guarantee  A policy is applied once: whoever clears UNDECIDED or deletes the row, while it holds the row's
-- lock, has decided. Locks      Queue rows, `skip locked`: a row that is locked is being settled, and `settle` unblocks
-- the next run.

-- Whether `p_other` is an unfinished run that comes before `p_run`: it waits for nothing, or it is earlier. A run that
-- a freeze holds only comes before later ones.
create or replace function is_before(p_other queue, p_run queue) returns boolean
language sql immutable parallel safe as $$
  select (p_other.scheduled_for, p_other.slot) <> (p_run.scheduled_for, p_run.slot)
     and (p_other.blocked & (PREDECESSOR | FROZEN) = 0
          or (p_other.scheduled_for, p_other.slot) < (p_run.scheduled_for, p_run.slot))
$$;

-- Applies the overlap policies to at most p_most runs that are due; returns how many it looked at. Catch-ups and
-- backfills never cause a run to be skipped, collapsed or replaced: it waits for them.
create or replace function decide_overlaps(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_INDEX as $$
declare
  run     record;
  decided integer := 0;
  skipped tid[] := '{}';
begin
  for run in
    select due.ctid as row_id, due.job_id, due.scheduled_for, due.slot, coalesce(job.overlap, 'allow') as overlap,
           earlier.has_any, earlier.has_live
    from queue due
    left join jobs job on job.job_id = due.job_id
    cross join lateral (
      select exists (select from queue other where other.job_id = due.job_id and is_before(other, due)) as has_any,
             exists (
               select from queue other
               where other.job_id = due.job_id and is_before(other, due)
                 and other.cause not in ('catchup', 'backfill')) as has_live) earlier
    where due.blocked = any (bits(UNDECIDED)) and due.blocked & HELD <> 0 and due.available_at <= bellringer.now()
      and due.worker_id is null
    order by due.available_at, due.job_id limit p_most for update of due skip locked
  loop
    decided := decided + 1;
    if run.overlap = 'skip' and run.has_live then
      skipped := skipped || run.row_id;
    elsif run.overlap = 'collapse' and run.has_live then
      perform collapse_overlapped(run.job_id, run.scheduled_for, run.slot);
    elsif run.overlap = 'replace' and run.has_live then
      perform replace_overlapped(run.job_id, run.scheduled_for, run.slot);
    elsif run.overlap <> 'allow' and run.has_any then    -- it waits for its turn
      update queue set blocked = blocked & ~UNDECIDED
      where job_id = run.job_id and scheduled_for = run.scheduled_for and slot = run.slot;
    else                                                 -- nothing is before it any more
      update queue set blocked = blocked & ~(PREDECESSOR | UNDECIDED)
      where job_id = run.job_id and scheduled_for = run.scheduled_for and slot = run.slot;
    end if;
  end loop;
  perform skip_overlapped(skipped);
  return decided;
end $$;

-- Policy `skip`: ends these runs as skipped. Each records the run that was in its way, which may have ended a moment
-- ago.
create or replace function skip_overlapped(p_rows tid[]) returns integer
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  skipped integer;
begin
  with removed as (
    delete from queue run where run.ctid = any (p_rows) and run.blocked & UNDECIDED = UNDECIDED
      and run.worker_id is null
    returning run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.revision)
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  select run.job_id, run.scheduled_for, run.slot, 0, bellringer.now(), run.tenant_id, run.revision, 'skipped',
         jsonb_build_object('reason', 'overlap', 'run', jsonb_build_object(
           'scheduled_for', coalesce(unfinished.scheduled_for, ended.scheduled_for),
           'slot', coalesce(unfinished.slot, ended.slot)))
  from removed run
  left join lateral (
    select other.scheduled_for, other.slot from queue other
    where other.job_id = run.job_id and other.cause not in ('catchup', 'backfill')
      and (other.scheduled_for, other.slot) <> (run.scheduled_for, run.slot)
      and (other.blocked & (PREDECESSOR | FROZEN) = 0
           or (other.scheduled_for, other.slot) < (run.scheduled_for, run.slot))
    order by other.blocked & PREDECESSOR, other.scheduled_for, other.slot limit 1) unfinished on true
  left join lateral (
    select attempt.scheduled_for, attempt.slot from attempts attempt
    where unfinished.slot is null and attempt.job_id = run.job_id and attempt.scheduled_for <= run.scheduled_for
      and attempt.ends_as <> 'skipped'
    order by attempt.scheduled_for desc, attempt.slot desc limit 1) ended on true
  on conflict do nothing;
  get diagnostics skipped = row_count;
  return skipped;
end $$;

-- Policy `collapse`: if an earlier run of the job waits already, this one ends as coalesced into it; otherwise it
-- waits.
create or replace function collapse_overlapped(p_job uuid, p_scheduled_for timestamptz, p_slot bigint) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  waiting queue;
  removed queue;
begin
  select * from queue run
  where run.job_id = p_job and run.blocked & PREDECESSOR = PREDECESSOR
    and (run.scheduled_for, run.slot) < (p_scheduled_for, p_slot)
  order by run.scheduled_for, run.slot limit 1
  into waiting;
  if not found then
    update queue set blocked = blocked & ~UNDECIDED
    where job_id = p_job and scheduled_for = p_scheduled_for and slot = p_slot;
    return;
  end if;
  delete from queue where job_id = p_job and scheduled_for = p_scheduled_for and slot = p_slot returning * into removed;
  if not found then                                      -- another transaction has decided meanwhile
    return;
  end if;
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  values (p_job, p_scheduled_for, p_slot, 0, bellringer.now(), removed.tenant_id, removed.revision, 'skipped',
          jsonb_build_object('reason', 'coalesced', 'run', jsonb_build_object(
            'scheduled_for', waiting.scheduled_for, 'slot', waiting.slot)))
  on conflict do nothing;
end $$;

-- Policy `replace`: ends earlier runs that wait, requests that running ones stop, and lets this run wait for those.
-- Where all earlier runs are locked, because they are being settled, it is decided again by the next pass.
create or replace function replace_overlapped(p_job uuid, p_scheduled_for timestamptz, p_slot bigint) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  earlier queue;
  seen    integer := 0;
begin
  for earlier in
    select * from queue run
    where run.job_id = p_job and (run.scheduled_for, run.slot) <> (p_scheduled_for, p_slot)
      and (run.blocked & (PREDECESSOR | FROZEN) = 0 or (run.scheduled_for, run.slot) < (p_scheduled_for, p_slot))
      and run.cause not in ('catchup', 'backfill')
    order by run.scheduled_for, run.slot for update skip locked
  loop
    seen := seen + 1;
    if earlier.worker_id is not null or earlier.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW then
      update queue set cancel_requested = true
      where job_id = p_job and scheduled_for = earlier.scheduled_for and slot = earlier.slot and not cancel_requested;
    else
      delete from queue where job_id = p_job and scheduled_for = earlier.scheduled_for and slot = earlier.slot;
      insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as,
                            error)
      values (p_job, earlier.scheduled_for, earlier.slot, 0, bellringer.now(), earlier.tenant_id, earlier.revision,
              'cancelled', 'cancelled', jsonb_build_object('reason', 'replaced', 'run', jsonb_build_object(
                'scheduled_for', p_scheduled_for, 'slot', p_slot)))
      on conflict do nothing;
    end if;
  end loop;
  update queue run
  set blocked = case when exists (
                       select from queue other
                       where other.job_id = p_job
                         and other.blocked & (PREDECESSOR | FROZEN) = 0) then run.blocked & ~UNDECIDED
                     else run.blocked & ~(PREDECESSOR | UNDECIDED) end
  where run.job_id = p_job and run.scheduled_for = p_scheduled_for and run.slot = p_slot and seen > 0;
end $$;
