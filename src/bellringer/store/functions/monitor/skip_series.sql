-- Writes a `skipping` event for each job that has skipped at least p_series occurrences because one of its runs has not
-- ended, at most once a day for a job. The search starts from the claimed runs, which are as many as workers have
-- slots, and from the ready runs that wait longest for a worker: of each pool 20 * p_most are read. If there are more
-- than p_most of either, each call checks a random sample.
create or replace function report_skips(p_now timestamptz, p_series integer, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
declare n integer;
begin
  with held as materialized (
    (select run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.claimed_at as since, true as is_running
     from queue run
     where (run.worker_id is not null) and run.revision is not null
       and run.claimed_at < p_now - p_series * interval '1 second'
     order by random() limit p_most)
    union all
    (select run.job_id, run.scheduled_for, run.slot, run.tenant_id, run.available_at, false
     from pools pool
     cross join lateral (
       select * from queue ready
       where ready.pool_id = pool.pool_id and ready.worker_id is null and ready.blocked = 0
         and ready.available_at < p_now - p_series * interval '1 second'
       limit 20 * p_most) run
     where run.revision is not null
     order by random() limit p_most)),
  skipping as materialized (
    select held.* from held
    cross join lateral (select 1 from jobs job where job.job_id = held.job_id and job.overlap = 'skip' offset 0) job
    cross join lateral (
      select count(*) as many
      from (
        select 1 from attempts attempt
        where attempt.job_id = held.job_id and attempt.scheduled_for > held.scheduled_for
          and attempt.ends_as = 'skipped' and attempt.error ->> 'reason' = 'overlap' limit p_series) attempt) skipped
    where skipped.many = p_series
      and not exists (
        select 1 from events event
        where event.job_id = held.job_id and event.kind = 'skipping' and event.at > p_now - interval '1 day'))
  insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, data)
  select p_now, tenant_id, 'skipping', job_id, scheduled_for, slot,
         jsonb_build_object('skipped', p_series, case when is_running then 'running_for' else 'waiting_for' end,
                            extract(epoch from p_now - since))
  from skipping
  order by job_id, scheduled_for, slot on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;
