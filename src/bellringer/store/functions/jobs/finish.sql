-- Whether a job has a run that has not ended, or a backfill or catch-up that will create one. It returns a table of one
-- row so that the planner inlines it; a scalar function would be planned again for each job.
create or replace function unfinished_work(p_job uuid) returns table (has_work boolean) language sql stable as $$
  select exists (select 1 from bellringer.timers t where t.job_id = p_job)
      or exists (select 1 from bellringer.queue q where q.job_id = p_job)
      or exists (select 1 from bellringer.backfills b where b.job_id = p_job and b.state in ('running', 'paused'))
$$;

-- Whether a job has nothing left to fire or to finish. A cohort counts as past the end of the job only when its next
-- fire time has moved there, so that skipped occurrences have been recorded.
create or replace function can_be_done(job jobs) returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select job.enabled and job.paused_at is null and job.deleted_at is null and job.done_at is null
           and (job.after is null or job.ends_at < bellringer.now())      -- its upstream job may run at any time
           and (job.once_at is not null or job.ends_at < bellringer.now()
                or (job.delay is null and job.schedule_ids <> '{}'))
           and not exists (
             select 1 from unnest(job.schedule_ids) schedule (schedule_id)
             cross join lateral (
               select cohort.next_at from cohorts cohort
               where cohort.shard = job.shard and cohort.schedule_id = schedule.schedule_id offset 0) cohort
             where cohort.next_at < end_of_time() and (job.ends_at is null or cohort.next_at <= job.ends_at))
           and not (select work.has_work from unfinished_work(job.job_id) work)
$$;

-- Marks jobs as done: their schedules have nothing more to fire, all their runs have ended, and no catch-up is open. A
-- done job leaves its cohorts and no longer counts against the quota; a change or a resume makes it active again. A
-- manual run, a replay, a redrive or a backfill does not: it is no occurrence of a schedule.
--
-- Candidates  Jobs whose one-shot time or ends_at has passed, after (p_time, p_job), and members of cohorts that have
--             ended, after (p_shard, p_schedule, p_member): at most p_most of each.
-- Returns     The number of jobs that were marked, and the positions for the next call; null means from the beginning.
-- Locks       The rows of the jobs (rows that are locked are skipped), then their shards, shared and in order, as
--             register does. The condition is checked again after the locks.
create or replace function finish_jobs(
  p_time timestamptz, p_job uuid, p_shard smallint, p_schedule integer, p_member uuid, p_most integer,
  out finished integer, out next_time timestamptz, out next_job uuid, out next_shard smallint,
  out next_schedule integer, out next_member uuid)
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
declare
  timed uuid[];
  ended uuid[];
  ids   uuid[];
  s     smallint;
begin
  finished := 0;
  with seen as materialized (
    select coalesce(job.once_at, job.ends_at) as at, job.job_id from jobs job
    where (job.once_at is not null or job.ends_at is not null) and job.enabled and job.paused_at is null
      and job.deleted_at is null and job.done_at is null
      and (coalesce(job.once_at, job.ends_at), job.job_id) > (p_time, p_job)
        and coalesce(job.once_at, job.ends_at) < bellringer.now()
    order by coalesce(job.once_at, job.ends_at), job.job_id limit p_most)
  select array_agg(job_id order by at, job_id), case when count(*) = p_most then max(at) end into timed, next_time
    from seen;
  next_job := case when next_time is not null then timed[p_most] end;

  with seen as materialized (
    select member.shard, member.schedule_id, member.job_id from leases lease
    cross join lateral (
      select cohort.shard, cohort.schedule_id from cohorts cohort
      where cohort.shard = lease.shard and cohort.next_at = end_of_time()
      order by cohort.schedule_id) cohort
    cross join lateral (
      select member.shard, member.schedule_id, member.job_id from members member
      where member.shard = cohort.shard and member.schedule_id = cohort.schedule_id
        and (member.shard, member.schedule_id, member.job_id) > (p_shard, p_schedule, p_member)
      order by member.job_id limit p_most) member
    where lease.shard >= p_shard
    order by member.shard, member.schedule_id, member.job_id limit p_most)
  select array_agg(seen.job_id order by seen.shard, seen.schedule_id, seen.job_id),
         (array_agg(seen.shard order by seen.shard, seen.schedule_id, seen.job_id))[p_most],
         (array_agg(seen.schedule_id order by seen.shard, seen.schedule_id, seen.job_id))[p_most]
  into ended, next_shard, next_schedule
  from seen;
  next_member := case when next_shard is not null then ended[p_most] end;

  ids := array(
    select job.job_id from (select distinct given.id from unnest(timed || ended) given (id)) given
    cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
    where can_be_done(job) order by job.job_id);
  if ids = '{}' then return; end if;
  ids := array(select j.job_id from jobs j where j.job_id = any (ids) order by j.job_id for update skip locked);
  for s in select distinct j.shard from jobs j where j.job_id = any (ids) order by 1 loop
    perform pg_advisory_xact_lock_shared(LOCK_SHARD, s);
  end loop;
  ids := array(
    select j.job_id from unnest(ids) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
      where can_be_done(j));

  delete from members
  where ctid = any (array(
                    select member.ctid from unnest(ids) given (id)
                    cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
                    cross join unnest(job.schedule_ids) schedule (schedule_id)
                    cross join lateral (
                      select member.ctid from members member
                      where member.shard = job.shard and member.schedule_id = schedule.schedule_id
                        and member.job_id = job.job_id offset 0) member));
  update jobs set done_at = bellringer.now() where job_id = any (ids);
  get diagnostics finished = row_count;
end $$;

-- Deletes jobs that are done and have after_completion = 'delete', as `delete_job` does. A job stays while it is
-- paused, while a run of it is unfinished, and while it has a dead letter, which someone may want to redrive.
--
-- Candidates  Done jobs with that option after (p_time, p_job), in the order of done_at: at most p_most.
-- Returns     The number of jobs that were deleted, and the position for the next call; null means from the beginning.
-- Locks       As finish_jobs does, and the queue rows of the jobs (there are none). The condition is checked again
--             after the locks: trigger_job, replay and redrive lock the row of the job before they create work for it.
create or replace function delete_done_jobs(
  p_time timestamptz, p_job uuid, p_most integer,
  out deleted integer, out next_time timestamptz, out next_job uuid)
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
declare
  ids uuid[];
  s   smallint;
begin
  deleted := 0;
  with seen as materialized (
    select j.done_at, j.job_id from jobs j
    where j.done_at is not null and j.deleted_at is null and j.after_completion = 'delete'
      and (j.done_at, j.job_id) > (p_time, p_job)
    order by j.done_at, j.job_id limit p_most)
  select array_agg(job_id order by done_at, job_id), case when count(*) = p_most then max(done_at) end
  into ids, next_time from seen;
  if ids is null then return; end if;
  next_job := case when next_time is not null then ids[p_most] end;

  ids := array(
    select j.job_id from unnest(ids) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
    where can_be_deleted(j));
  if ids = '{}' then return; end if;
  ids := array(select j.job_id from jobs j where j.job_id = any (ids) order by j.job_id for update skip locked);
  for s in select distinct j.shard from jobs j where j.job_id = any (ids) order by 1 loop
    perform pg_advisory_xact_lock_shared(LOCK_SHARD, s);
  end loop;
  ids := array(
    select j.job_id from unnest(ids) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
    where can_be_deleted(j));
  if ids = '{}' then return; end if;
  perform delete_locked_jobs(ids, bellringer.clock(), 'bellringer', 'the job was done');
  deleted := cardinality(ids);
end $$;

-- Whether a job is done, is to be deleted then, and has no unfinished work and no dead letter.
create or replace function can_be_deleted(j jobs) returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select j.done_at is not null and j.deleted_at is null and j.paused_at is null and j.after_completion = 'delete'
     and not (select w.has_work from unfinished_work(j.job_id) w)
     and not exists (select 1 from dead_letters d where d.job_id = j.job_id)
$$;
