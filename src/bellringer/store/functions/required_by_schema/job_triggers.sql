-- Copies the previous revision of a changed job to job_revisions. `dropped_schedules` makes the last revision with a
-- schedule findable by that schedule; later revisions with it, if any, are found by their own last one or by the job.
create or replace function keep_revision() returns trigger language plpgsql security definer
  set search_path = bellringer, pg_temp
set timezone = 'UTC' set intervalstyle = 'postgres' as $$              -- the text must not depend on the session
begin
  insert into job_revisions (job_id, revision, effective_at, what, who, why, definition, dropped_schedules)
  values (old.job_id, old.revision, old.updated_at, old.what, old.who, old.why, definition_of(old),
          case when old.schedule_ids <> new.schedule_ids then nullif(array(
            select unnest(old.schedule_ids) except select unnest(new.schedule_ids)), '{}') end);
  return null;
end $$;

-- Updates the job counts of tenants after a statement has changed jobs (see count_jobs).
create or replace function count_changed_jobs() returns trigger
language plpgsql security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
  perform count_jobs(s.grown) from (select array(
    select row(k.tenant_id, k.shard, sum(k.jobs), sum(k.active * f.fires))::job_growth
    from (select tenant_id, shard, schedule_ids, delay, sum(sign) as jobs,
                 coalesce(sum(sign) filter (where paused_at is null and enabled), 0) as active
          from (select tenant_id, shard, schedule_ids, delay, deleted_at, done_at, paused_at, enabled, 1 as sign
            from after
                union all
                select tenant_id, shard, schedule_ids, delay, deleted_at, done_at, paused_at, enabled, -1 from before) j
          where deleted_at is null and done_at is null group by tenant_id, shard, schedule_ids, delay) k
    cross join lateral fires_of(k.schedule_ids, k.delay) f
    where k.jobs <> 0 or k.active <> 0 group by k.tenant_id, k.shard) as grown) s
  where cardinality(s.grown) > 0;
  return null;
end $$;
