-- What ended runs leave to their job: the latest result (keep_result), and the number of dead runs in a row, which
-- pauses the job when it reaches pause_after_failures. Backfills neither count nor reset; skipped and cancelled runs
-- change nothing.
--
-- Guarantees  Each run counts once: callers pass runs that they have ended in the same transaction. The row of the job
--             in job_outcomes is locked while it is counted, so two transactions never reach the same number.
-- Locks       Rows of job_outcomes in the order of job_id; for a pause also the job, its shard (shared) and its waiting
--             runs. `settle` and `expire_runs` lock the jobs first.
create or replace function record_outcomes(p_runs job_ending[]) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  ended record;
  total integer;
begin
  for ended in
    select run.job_id, run.tenant_id, job.spec ? 'keep_result' as keeps_result, job.pause_after_failures,
           count(*) filter (where run.is_counted and run.ends_as = 'dead'
                            and (run.success_ago is null or run.ended_ago < run.success_ago)) as failures,
           count(run.success_ago) > 0 as has_success
    from (select given.*, given.cause <> 'backfill' as is_counted,
                 min(given.ended_ago) filter (where given.ends_as = 'succeeded' and given.cause <> 'backfill')
                   over (partition by given.job_id) as success_ago
          from unnest(p_runs) given) run
    cross join lateral (select * from jobs job where job.job_id = run.job_id offset 0) job
    group by 1, 2, 3, 4 order by run.job_id
  loop
    if ended.keeps_result then
      insert into job_outcomes as kept (job_id, tenant_id, scheduled_for, slot, result)
      select run.job_id, run.tenant_id, run.scheduled_for, run.slot, run.result::jsonb from unnest(p_runs) run
      where run.job_id = ended.job_id and run.ends_as = 'succeeded'
      order by run.scheduled_for desc, run.slot desc limit 1
      on conflict (job_id) do update set scheduled_for = excluded.scheduled_for, slot = excluded.slot,
                                         result = excluded.result
      where kept.scheduled_for is null or (kept.scheduled_for, kept.slot) <= (excluded.scheduled_for, excluded.slot);
    end if;
    continue when ended.pause_after_failures is null;
    if ended.has_success then
      update job_outcomes set failures = 0 where job_id = ended.job_id and failures > 0;
    end if;
    continue when ended.failures = 0;
    insert into job_outcomes as kept (job_id, tenant_id, failures)
    values (ended.job_id, ended.tenant_id, ended.failures)
    on conflict (job_id) do update set failures = kept.failures + excluded.failures
    returning kept.failures into total;
    if total >= ended.pause_after_failures then
      perform pause_failing_job(ended.job_id, total, p_runs);
    end if;
  end loop;
end $$;

-- Pauses a job whose last runs all died, unless it is paused already, and writes the event `paused` about the last one.
create or replace function pause_failing_job(p_job uuid, p_failures integer, p_runs job_ending[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  job    jobs;
  reason text := 'the last ' || case p_failures when 1 then 'run' else p_failures || ' runs' end || ' died';
begin
  select * from jobs where job_id = p_job and paused_at is null and deleted_at is null for update into job;
  if not found then
    return;
  end if;
  perform pause(p_job, job.tenant_id, 'system', reason, null);
  insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
  select bellringer.now(), job.tenant_id, 'paused', p_job, run.scheduled_for, run.slot, run.attempt,
         jsonb_build_object('reason', reason, 'failures', p_failures, 'by', 'system')
  from unnest(p_runs) run where run.job_id = p_job and run.ends_as = 'dead'
  order by run.ended_ago, run.scheduled_for desc limit 1
  on conflict do nothing;
end $$;
