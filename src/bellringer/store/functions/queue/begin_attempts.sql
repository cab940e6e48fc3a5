-- Records that attempts begin, so that it is known of a lost attempt whether its handler was called. Returns the
-- positions of the attempts that the worker still holds; it must not start the others.
create or replace function begin_attempts(
  p_worker integer, p_jobs uuid[], p_times timestamptz[], p_slots bigint[], p_attempts integer[]) returns integer[]
language plpgsql set search_path = bellringer, pg_temp PLAN_KEPT PLAN_BY_KEY as $$
declare
  begun integer[];
begin
  perform require_live(p_worker);
  with held as materialized (
    select run.ctid as row_id, given.position
    from unnest(p_jobs, p_times, p_slots, p_attempts) with ordinality
      given (job_id, scheduled_for, slot, attempt, position)
    join queue run on run.job_id = given.job_id and run.scheduled_for = given.scheduled_for and run.slot = given.slot
    where run.worker_id + 0 = p_worker and run.attempt = given.attempt
    order by run.job_id, run.scheduled_for, run.slot for update of run),
  marked as (
    update queue set started_at = bellringer.now() where ctid = any (array(select row_id from held)))
  select coalesce(array_agg(position), '{}') from held into begun;
  return begun;
end $$;
