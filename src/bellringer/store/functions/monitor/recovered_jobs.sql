-- Records new troubles of jobs from the events, and writes a `recovered` event for each job that has had a successful
-- run since. Only jobs in `troubles` are checked, those with the oldest looked_at first. Locks troubles_read, so that
-- calls run one after the other.
create or replace function recover(p_most integer, out checked integer, out recorded integer, out recovered integer)
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_KEY as $$
declare
  t timestamptz := bellringer.now();
  r troubles_read;
begin
  select * into r from troubles_read for update;
  with fresh as materialized (
    select event.tx, event.event_id, event.job_id, event.tenant_id, event.kind, event.scheduled_for, event.at
    from events event
    where (event.tx, event.event_id) > (r.tx, r.event_id) and event.tx < commit_horizon()
      and event.kind in ('dead', 'late', 'missed', 'skipping')
    order by event.tx, event.event_id limit p_most),
  latest as (
    select distinct on (fresh.job_id) fresh.*, min(fresh.at) over (partition by fresh.job_id) as began_at from fresh
    join jobs job on job.job_id = fresh.job_id and job.deleted_at is null
    order by fresh.job_id, fresh.tx desc, fresh.event_id desc),
  kept as (
    insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at, began_at)
    select job_id, tenant_id, kind, scheduled_for, at, '-infinity', began_at from latest
    on conflict (job_id) do update
    set kind = excluded.kind, scheduled_for = excluded.scheduled_for, since = excluded.since
    returning 1),
  moved as (
    update troubles_read set tx = newest.tx, event_id = newest.event_id
    from (select tx, event_id from fresh order by tx desc, event_id desc limit 1) newest)
  select (select count(*) from fresh), count(*) from kept into checked, recorded;

  with picks as materialized (
    select trouble.job_id, trouble.tenant_id, trouble.kind, trouble.scheduled_for, trouble.since from troubles trouble
    order by trouble.looked_at limit p_most for update),
  succeeded_since as materialized (
    select picks.job_id, picks.tenant_id, picks.kind, picks.since, attempt.scheduled_for, attempt.slot, attempt.attempt,
           attempt.finished_at
    from picks
    cross join lateral (
      select attempt.scheduled_for, attempt.slot, attempt.attempt, attempt.finished_at from attempts attempt
      where attempt.job_id = picks.job_id and attempt.scheduled_for >= picks.scheduled_for
        and attempt.ends_as = 'succeeded' and attempt.finished_at >= picks.since
      order by attempt.scheduled_for desc, attempt.slot desc limit 1) attempt
    where picks.kind <> 'unknown_task'),                 -- report_unknown_tasks reports these by task
  unparked as materialized (
    select picks.job_id from picks
    where picks.kind = 'unknown_task'
      and not exists (
        select 1 from queue run where run.job_id = picks.job_id and run.blocked & TASK_UNKNOWN = TASK_UNKNOWN)),
  written as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select t, tenant_id, 'recovered', job_id, scheduled_for, slot, attempt,
           jsonb_build_object('after', kind, 'since', since)
    from succeeded_since
    order by job_id on conflict do nothing
    returning 1),
  deleted as (
    delete from troubles trouble
    where trouble.job_id in (select job_id from succeeded_since) or trouble.job_id in (select job_id from unparked)
      or (trouble.job_id in (select job_id from picks)
          and not exists (select 1 from jobs job where job.job_id = trouble.job_id and job.deleted_at is null))),
  checked as (
    update troubles trouble set looked_at = t
    where trouble.job_id in (select job_id from picks) and trouble.job_id not in (select job_id from succeeded_since)
      and trouble.job_id not in (select job_id from unparked)
      and exists (select 1 from jobs job where job.job_id = trouble.job_id and job.deleted_at is null))
  select count(*) from written into recovered;
end $$;
