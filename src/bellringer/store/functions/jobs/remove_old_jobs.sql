-- Removes the rows of jobs that were deleted or done before p_before: at most p_most of each. A job stays while it has
-- a run, a dead letter or unfinished work, so that each run finds its job; a done job also stays while it is paused.
-- The removal of a done job is audited as its deletion, because no user deleted it; the deletion of a deleted job was.
-- Schedules of the removed jobs are marked for forget_schedules.
--
-- Returns  The number of removed jobs.
-- Locks    In this order: the rows of the jobs (rows that are locked are skipped, and the condition is checked again
--          after the lock), the rows of their schedules.
create or replace function forget_jobs(p_before timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp set timezone = 'UTC' set intervalstyle = 'postgres'
PLAN_BY_INDEX as $$
declare
  ids uuid[];
  n   integer;
begin
  ids := array(
    (select job.job_id from jobs job
     where job.deleted_at is not null and job.deleted_at < p_before and not is_needed(job.job_id)
     order by job.deleted_at limit p_most)
    union all
    (select job.job_id from jobs job
     where job.done_at is not null and job.deleted_at is null and job.done_at < p_before and job.paused_at is null
       and not is_needed(job.job_id)
     order by job.done_at, job.job_id limit p_most));
  if ids = '{}' then return 0; end if;
  ids := array(
    select j.job_id from jobs j
    where j.job_id = any (ids) and (j.deleted_at is not null or (j.done_at is not null and j.paused_at is null))
    order by j.job_id for update skip locked);
  ids := array(select u.id from unnest(ids) u (id) where not is_needed(u.id));
  insert into audit (at, tenant_id, who, action, kind, target, before)
  select bellringer.now(), j.tenant_id, 'bellringer', 'job.deleted', 'job', j.job_id,
    jsonb_build_object('name', j.name, 'done_at', j.done_at)
  from jobs j where j.job_id = any (ids) and j.deleted_at is null;
  insert into job_digests (job_id, revision, digest, needed_until)
  select revision.job_id, revision.revision, revision.digest,
         coalesce(lead(revision.effective_at) over (partition by revision.job_id order by revision.revision),
                  revision.effective_at)
  from unnest(ids) given (id)
  cross join lateral (
    select revision.job_id, revision.revision, revision.effective_at,
           definition_digest(seal_document(revision.definition)) as digest
    from job_revisions revision
    where revision.job_id = given.id
    union all
    select job.job_id, job.revision, job.updated_at, definition_digest(seal_document(job)) from jobs job
    where job.job_id = given.id) revision;
  perform check_schedules(array(
    select unnest(job.schedule_ids) from jobs job where job.job_id = any (ids)
    union select unnest(revision.dropped_schedules) from job_revisions revision where revision.job_id = any (ids)));
  delete from job_revisions where job_id = any (ids);
  delete from skips where job_id = any (ids);
  delete from troubles where job_id = any (ids);
  delete from job_outcomes where job_id = any (ids);
  delete from job_followers where job_id = any (ids);    -- of done jobs; a deletion has removed the others
  delete from limits l using jobs j where j.job_id = any (ids) and l.key_id = j.key_id and l.key like 'job %';
  delete from jobs where job_id = any (ids);
  get diagnostics n = row_count;
  return n;
end $$;

-- Whether runs, dead letters (also those that can be restored) or unfinished work refer to a job.
create or replace function is_needed(p_job uuid) returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select exists (select 1 from runs run where run.job_id = p_job)
      or exists (select 1 from dead_letters dead_letter where dead_letter.job_id = p_job)
      or exists (select 1 from discarded_dead_letters discarded where discarded.job_id = p_job)
      or (select work.has_work from unfinished_work(p_job) work)
$$;
