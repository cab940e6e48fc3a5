-- Writes a `late` event for each run that should have started by p_now and still waits for its first attempt. Each run
-- is checked once (late_at is cleared). `looked` is the number of checked runs: p_most means that there may be more.
-- Locks the queue rows, skipping locked rows.
create or replace function report_late_runs(
  p_now timestamptz, p_most integer, out checked integer, out reported integer)
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_KEY as $$
begin
  with picks as materialized (
    select ctid, job_id, scheduled_for, slot, tenant_id, available_at, late_at, blocked, worker_id is null
      and attempt = 0 as waits
    from queue where late_at <= p_now order by late_at limit p_most for update skip locked),
  cleared as (
    update queue run set late_at = null where run.ctid = any (array(select ctid from picks))),
  written as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
    select p_now, tenant_id, 'late', job_id, scheduled_for, slot,
           jsonb_build_object('due', available_at, 'late_after', extract(epoch from late_at - available_at), 'blocked',
             blocked)
    from picks where waits order by job_id, scheduled_for, slot
    on conflict do nothing returning 1)
  select (select count(*) from picks), (select count(*) from written) into checked, reported;
end $$;

-- Writes a `late` event for each occurrence that is late because its cohort has not fired, so that there is no run.
-- Members that a fire or a jump in progress has passed are not late. Returns the number of events.
create or replace function report_late_occurrences(p_now timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_KEY as $$
declare n integer;
begin
  with behind as materialized (
    select member.job_id, member.tenant_id, member.late_after, cohort.next_at,
           cohort.next_at + member.jitter_ms * interval '1 ms' as due_at
    from leases lease
    cross join lateral (
      select * from cohorts cohort
      where cohort.shard = lease.shard and cohort.next_at < p_now
      order by cohort.next_at limit p_most) cohort
    cross join lateral (
      select * from members member
      where member.shard = cohort.shard and member.schedule_id = cohort.schedule_id and member.late_after is not null
        and member.job_id > coalesce(greatest(cohort.cursor, cohort.gap_cursor), '00000000-0000-0000-0000-000000000000')
        and cohort.next_at + member.jitter_ms * interval '1 ms' + member.late_after <= p_now
        and member.active_since < cohort.next_at
        and (member.active_until is null or member.active_until >= cohort.next_at)
        and not exists (
          select 1 from events event
          where event.job_id = member.job_id and event.scheduled_for = cohort.next_at and event.slot = 0
            and event.attempt = 0 and event.kind = 'late')
      order by member.job_id limit p_most) member limit p_most)
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  select p_now, tenant_id, 'late', job_id, next_at,
         jsonb_build_object('due', due_at, 'late_after', extract(epoch from late_after), 'not_created', true)
  from behind
  order by job_id, next_at on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;
