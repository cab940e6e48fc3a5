-- Seconds for which a run is kept: the rule of its job, its tenant or the installation that names its state,
-- or all runs.
create or replace function kept_seconds(p_state text, p_job jsonb, p_tenant jsonb, p_all bigint) returns bigint
language sql immutable parallel safe as $$
  select coalesce((p_job ->> p_state)::bigint, (p_job ->> 'runs')::bigint,
                  (p_tenant ->> p_state)::bigint, (p_tenant ->> 'runs')::bigint, p_all)
$$;

-- Deletes runs of a day whose own retention has passed, with their attempts and logs, among the next p_most runs in key
-- order after a position. With p_archives they are moved to the batch of the pass. Runs that have not ended, and runs
-- with a dead letter, stay. Returns the next position; o_read is less than p_most at the end of the day.
create or replace function trim_day(
  p_day date, p_now timestamptz, p_all bigint, p_batch bigint, p_job uuid, p_at timestamptz, p_slot bigint,
  p_most integer, out o_job uuid, out o_at timestamptz, out o_slot bigint, out o_read integer, out o_deleted integer)
language plpgsql security definer set search_path = bellringer, pg_temp PLAN_BY_INDEX as $$
declare
  jobs_  uuid[];
  times  timestamptz[];
  slots  bigint[];
  ends   timestamptz := start_of(p_day + 1);
begin
  with page as materialized (
    select run.job_id, run.scheduled_for, run.slot, run.tenant_id from runs run
    where run.scheduled_for >= start_of(p_day) and run.scheduled_for < ends
      and (p_job is null or (run.job_id, run.scheduled_for, run.slot) > (p_job, p_at, p_slot))
    order by run.job_id, run.scheduled_for, run.slot limit p_most),
  expired as (
    select page.* from page
    join tenants tenant on tenant.tenant_id = page.tenant_id
    left join jobs job on job.job_id = page.job_id
    cross join lateral (
      select attempt.ends_as from attempts attempt
      where attempt.job_id = page.job_id and attempt.scheduled_for = page.scheduled_for and attempt.slot = page.slot
        and attempt.ends_as is not null
      order by attempt.finished_at desc, attempt.attempt desc limit 1) ended
    where ends + make_interval(secs => kept_seconds(ended.ends_as::text, tenant.retention -> 'jobs' -> job.name,
                                                    tenant.retention, p_all)) <= p_now
      and not exists (
        select 1 from queue run
        where run.job_id = page.job_id and run.scheduled_for = page.scheduled_for and run.slot = page.slot)
      and not exists (
        select 1 from timers timer
        where timer.job_id = page.job_id and timer.scheduled_for = page.scheduled_for and timer.slot = page.slot)
      and not exists (
        select 1 from dead_letters letter
        where letter.job_id = page.job_id and letter.scheduled_for = page.scheduled_for and letter.slot = page.slot)
      and not exists (
        select 1 from discarded_dead_letters discarded
        where discarded.job_id = page.job_id and discarded.scheduled_for = page.scheduled_for
          and discarded.slot = page.slot)),
  last as (select * from page order by job_id desc, scheduled_for desc, slot desc limit 1)
  select (select array_agg(expired.job_id) from expired), (select array_agg(expired.scheduled_for) from expired),
         (select array_agg(expired.slot) from expired), (select count(*) from page),
         (select last.job_id from last), (select last.scheduled_for from last), (select last.slot from last)
  into jobs_, times, slots, o_read, o_job, o_at, o_slot;
  o_deleted := coalesce(cardinality(jobs_), 0);
  if o_deleted = 0 then return; end if;
  if p_batch is not null then
    execute format('insert into %I select run.* from unnest($1, $2, $3) key (job_id, scheduled_for, slot)'
      ' join runs run using (job_id, scheduled_for, slot)', 'expired_runs_' || p_batch) using jobs_, times, slots;
    execute format('insert into %I select attempt.* from unnest($1, $2, $3) key (job_id, scheduled_for, slot)'
      ' join attempts attempt using (job_id, scheduled_for, slot)', 'expired_attempts_' || p_batch)
      using jobs_, times, slots;
  end if;
  delete from logs line using unnest(jobs_, times, slots) key (job_id, scheduled_for, slot)
  where line.job_id = key.job_id and line.scheduled_for = key.scheduled_for and line.slot = key.slot;
  delete from attempts attempt using unnest(jobs_, times, slots) key (job_id, scheduled_for, slot)
  where attempt.job_id = key.job_id and attempt.scheduled_for = key.scheduled_for and attempt.slot = key.slot;
  delete from runs run using unnest(jobs_, times, slots) key (job_id, scheduled_for, slot)
  where run.job_id = key.job_id and run.scheduled_for = key.scheduled_for and run.slot = key.slot;
end $$;

-- Opens a batch for the runs that a pass over a day takes out; it is archived when the pass has ended.
create or replace function open_trim_batch(p_day date) returns bigint
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  reader text := service_role('scheduler');
  parent text;
  made   bigint;
begin
  insert into archive_batches (day, opened_at, state) values (p_day, clock_timestamp(), 'filling')
  returning batch_id into made;
  foreach parent in array array['runs', 'attempts'] loop
    execute format('create table %I (like %I including defaults including indexes)',
                   'expired_' || parent || '_' || made, parent);
    if to_regrole(reader) is not null then
      execute format('grant select on %I to %I', 'expired_' || parent || '_' || made, reader);
    end if;
  end loop;
  return made;
end $$;
