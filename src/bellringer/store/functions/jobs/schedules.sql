-- Pruning of interned schedules. Jobs and revisions hold ids of schedules, and processes cache them. A schedule loses
-- its last reference only when a job is removed with its revisions (forget_jobs), or never has one, because the request
-- that interned it failed. Only such schedules are checked, so a prune costs nothing where nothing was removed.
--
-- A registration locks its schedules `for key share` and fails with BR006 if one is missing (lock_schedules); the
-- process then interns them again. A prune locks a schedule `for update` before it looks for references the last time.
-- So it skips a schedule that a registration holds, and a later registration finds the schedule deleted.

-- Marks schedules for the next call of forget_schedules. The update is not restricted to rows without a mark: it must
-- wait for a check in progress, which may still see the reference that the caller removes.
create or replace function check_schedules(p_schedules integer[]) returns void
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  if p_schedules = '{}' then return; end if;
  perform 1 from schedules where schedule_id = any (p_schedules) order by schedule_id for no key update;
  update schedules set check_at = bellringer.now() where schedule_id = any (p_schedules);
end $$;

-- Holds schedules until the end of the transaction. Raises BR006 if one of them does not exist.
create or replace function lock_schedules(p_schedules integer[]) returns void
language plpgsql set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan
PLAN_BY_KEY as $$
declare n integer;
begin
  perform 1 from schedules where schedule_id = any (p_schedules) order by schedule_id for key share;
  get diagnostics n = row_count;
  if n < cardinality(p_schedules) then
    raise exception 'a schedule was pruned' using errcode = 'BR006';
  end if;
end $$;

-- Whether an active job (a member of a cohort), another job, or an earlier revision of a job has a schedule.
create or replace function is_in_use(p_schedule integer) returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select exists (select 1 from leases l cross join lateral (
           select 1 from members m where m.shard = l.shard and m.schedule_id = p_schedule limit 1) m)
      or exists (select 1 from jobs j where j.schedule_ids @> array[p_schedule] and j.schedule_ids <> '{}'
           and (j.paused_at is not null or not j.enabled or j.done_at is not null or j.deleted_at is not null))
      or exists (select 1 from job_revisions r where r.dropped_schedules @> array[p_schedule]
           and r.dropped_schedules is not null)
$$;

-- Checks at most p_most marked schedules, and deletes those that nothing refers to. One that only an empty cohort has
-- is checked again after an hour; the cohort is deleted before.
--
-- Returns  The number of checked schedules.
-- Locks    The rows of the schedules; rows that are locked are skipped. Registrations wait only for schedules that were
--          not in use.
create or replace function forget_schedules(p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
declare
  ids    integer[];
  unused integer[];
begin
  ids := array(
    select s.schedule_id from schedules s where s.check_at <= bellringer.now() and s.check_at is not null
    order by s.check_at limit p_most for no key update skip locked);
  if ids = '{}' then return 0; end if;
  unused := array(select u.id from unnest(ids) u (id) where not is_in_use(u.id));
  update schedules set check_at = null where schedule_id = any (ids) and schedule_id <> all (unused);
  unused := array(
    select s.schedule_id from schedules s where s.schedule_id = any (unused) order by 1 for update skip locked);
  -- a new statement: it sees every registration that committed before the locks above
  unused := array(select u.id from unnest(unused) u (id) where not is_in_use(u.id));
  update schedules s set check_at = bellringer.now() + interval '1 hour' where s.schedule_id = any (unused)
    and exists (select 1 from leases l cross join lateral (
      select 1 from cohorts c where c.shard = l.shard and c.schedule_id = s.schedule_id offset 0) c);
  delete from schedules where schedule_id = any (unused) and check_at <= bellringer.now();
  return cardinality(ids);
end $$;
