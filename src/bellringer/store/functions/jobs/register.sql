-- Creates and changes jobs in one call in autocommit mode, so a client that stops in the middle holds no lock.
--
-- Without the shard locks, a job that commits while its cohort fires would be seen by neither transaction. The tick
-- takes the lock of a shard exclusively; register, pause, resume and delete take it shared. Each function reads in a
-- new statement after it has the lock: under READ COMMITTED the snapshot of a statement that waited is older than the
-- commit that it waited for.

-- The numbers that `members` stores for the policies.
create or replace function misfire_number(p_misfire text) returns smallint language sql immutable parallel safe as $$
  select case p_misfire when 'fire_once' then MISFIRE_FIRE_ONCE when 'skip' then MISFIRE_SKIP
                        when 'fire_all' then MISFIRE_FIRE_ALL end::smallint
$$;

-- The number of an overlap policy in members.
create or replace function overlap_number(p_overlap text) returns smallint language sql immutable parallel safe as $$
  select case p_overlap when 'allow' then OVERLAP_ALLOW when 'skip' then OVERLAP_SKIP when 'queue' then OVERLAP_QUEUE
                        when 'collapse' then OVERLAP_COLLAPSE when 'replace' then OVERLAP_REPLACE end::smallint
$$;

-- An interval in whole milliseconds.
create or replace function milliseconds(p_length interval) returns integer language sql immutable parallel safe as
$$ select (extract(epoch from p_length) * 1000)::integer $$;

-- The batches of a bulk request, from JSON: common columns, and the jobs that have them.
create or replace function job_batches(p_jobs jsonb) returns job_batch[]
language sql stable set search_path = bellringer, pg_temp as $$
  select array_agg(row(jsonb_populate_record(null::jobs, batch), batch -> 'jobs', (batch ->> 'expected')::integer,
                       (batch ->> 'key_most')::integer)::job_batch)
  from jsonb_array_elements(p_jobs) batch
$$;

-- The jobs of a batch, from JSON.
create or replace function batch_jobs(p_jobs jsonb)
returns table (job_id uuid, shard smallint, name text, spec jsonb) language sql stable as $$
  select (job ->> 0)::uuid, (job ->> 1)::smallint, job ->> 2, job -> 3 from jsonb_array_elements(p_jobs) job
$$;

-- Guarantees  Creates and changes all jobs of p_jobs, or none. Returns the time from which the definitions apply.
-- Raises      BR001 if the fire times are stale (the caller computes them again and retries), BR002 if a job has
--             another revision than expected, BR003 if a quota is exceeded, BR004 if a limit belongs to another tenant,
--             BR006 if a schedule was pruned (the caller interns it again and retries), BR008 if a job would start
--             after itself; a unique violation if a name is taken.
-- Locks       In this order: the schedules (shared), the rows of changed jobs and of the followers of renamed ones,
--             their shards and p_shards (shared), the queue rows of changed jobs.
-- Caller      p_shards has the shards of all jobs. h_* has the first fire time of each schedule after p_asof, k_* all
--             fire times of the following seconds (see join_cohorts). p_actors is given if the new jobs are those of
--             several requests: the actor of each job, by its id, in place of p_who and of the session's actor.
-- Plans       A generic plan is forced: planning the 30 statements at every call would take three times as long as
--             running them.
create or replace function register(
  p_jobs jsonb, p_shards smallint[], p_asof timestamptz, p_who text, h_schedule integer[], h_next timestamptz[],
  k_schedule integer[], k_at timestamptz[], p_why text default null, p_actors jsonb default null) returns timestamptz
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s'
set plan_cache_mode = force_generic_plan
PLAN_BY_KEY as $$
declare
  batches     job_batch[] := job_batches(p_jobs);
  job_count   integer;
  changed_ids uuid[];
  schedule_ids_given integer[];
  has_limits  boolean;
  has_timers  boolean;                                   -- a one-shot or a fixed delay
  has_after   boolean;                                   -- it starts after another job
  renamed     jsonb;
  t           timestamptz;
  inserted    integer;
  updated     integer := 0;
begin
  select sum(jsonb_array_length(batch.jobs)), bool_or((batch.template).key_id is not null),
         bool_or((batch.template).once_at is not null or (batch.template).delay is not null),
         bool_or((batch.template).after is not null)
  into job_count, has_limits, has_timers, has_after
  from unnest(batches) batch where assert_tenant((batch.template).tenant_id);
  select array_agg(job.job_id) into changed_ids
  from unnest(batches) batch cross join lateral batch_jobs(batch.jobs) job where batch.expected > 0;
  if has_limits and exists (
    select 1 from unnest(batches) batch join limits job_limit on job_limit.key_id = (batch.template).key_id
    where job_limit.tenant_id <> (batch.template).tenant_id)
  then
    raise exception 'that is another tenant''s' using errcode = 'BR004';
  end if;
  schedule_ids_given := array(select distinct unnest((batch.template).schedule_ids) from unnest(batches) batch);
  if schedule_ids_given <> '{}' then
    perform lock_schedules(schedule_ids_given);
  end if;
  if changed_ids is not null then                        -- a name that changes before the lock fails by the revision
    renamed := renamed_upstreams(batches);
  end if;
  perform lock_shards_shared(
    case when renamed is null then coalesce(changed_ids, '{}') else changed_ids || followers_of_renamed(renamed) end,
    p_shards);
  perform check_fresh(p_asof);
  t := bellringer.clock();
  if p_actors is not null then
    perform set_config('bellringer.actors', p_actors::text, true);
  end if;

  insert into jobs (job_id, shard, name, spec, tenant_id, task_id, pool_id, schedules, schedule_ids, once_at, delay,
                    misfire, catchup, overlap, key_id, cap, jitter_by, JOB_FIELDS, revision, created_at, updated_at,
                    who, why)
  select job.job_id, job.shard, job.name, job.spec, tenant_id, task_id, pool_id, schedules, schedule_ids, once_at,
         delay, misfire, catchup, overlap, key_id, cap, jitter_by, JOB_FIELDS, 1, t, t,
         coalesce(p_actors -> job.job_id::text ->> 'who', p_who), p_why
  -- `offset 0`: the columns of the template are read once, not once for each job
  from (select (batch.template).*, batch.jobs from unnest(batches) batch where batch.expected = 0 offset 0) template
  cross join lateral batch_jobs(template.jobs) job order by job.job_id;
  get diagnostics inserted = row_count;
  perform count_new_jobs(batches);

  if changed_ids is not null then
    perform leave_cohorts(changed_ids, t, 'edited', true);
    update jobs job set
      name = change.name, spec = change.spec, task_id = (change.template).task_id,
      schedules = (change.template).schedules, schedule_ids = (change.template).schedule_ids,
      once_at = (change.template).once_at, delay = (change.template).delay,
      pool_id = case when change.keeps_pool then job.pool_id else (change.template).pool_id end,
      misfire = (change.template).misfire, catchup = (change.template).catchup, overlap = (change.template).overlap,
      key_id = (change.template).key_id, cap = (change.template).cap, jitter_by = (change.template).jitter_by,
      (JOB_FIELDS) = (select JOB_FIELDS from (select (change.template).*) template),
      revision = change.expected + 1, updated_at = t, what = 'changed', who = p_who, why = p_why,
      learned_at = case when change.keeps_pool then job.learned_at end, done_at = null
    from (select batch.template, batch.expected, given.name, given.spec, stored.place,
                 -- If neither definition names a pool, the pool chosen from the durations of the runs stays.
                 (batch.template).routed and stored.routed
                   and (batch.template).expected_duration is null and stored.expected_duration is null as keeps_pool
          from unnest(batches) batch cross join lateral batch_jobs(batch.jobs) given
          cross join lateral (select stored.ctid as place, stored.tenant_id, stored.revision, stored.deleted_at,
                                     stored.routed, stored.expected_duration
                              from jobs stored where stored.job_id = given.job_id offset 0) stored
          where batch.expected > 0 and stored.revision = batch.expected
            and stored.tenant_id = (batch.template).tenant_id and stored.deleted_at is null) change
    where job.ctid = change.place;                       -- the row is locked, so its ctid has not changed
    get diagnostics updated = row_count;
  end if;
  if inserted + updated < job_count then
    raise exception 'a job was changed by someone else' using errcode = 'BR002';
  end if;
  if has_limits then
    update limits job_limit set most = given.key_most
    from (select distinct on ((batch.template).key_id) (batch.template).key_id, batch.key_most
          from unnest(batches) batch where (batch.template).key_id is not null order by 1, 2) given
    where job_limit.key_id = given.key_id and job_limit.most <> given.key_most;
  end if;

  if changed_ids is not null then                        -- waiting runs follow the change: task, arguments and limit
    perform 1 from queue run where run.job_id = any (changed_ids)
    order by run.job_id, run.scheduled_for, run.slot for update;
    update queue run set task_id = job.task_id, revision = job.revision, pool_id = job.pool_id,
           priority = case when run.priority < 0 then job.priority - 10 else job.priority end,
           blocked = run.blocked & case when job.overlap = 'allow' then ~(PREDECESSOR | UNDECIDED | SENT) else ~SENT end
    from jobs job
    where run.job_id = any (changed_ids) and job.job_id = run.job_id and run.spec is null and run.worker_id is null
      and run.blocked & OPEN_WORKFLOW = 0;
    update queue run set key_id = job.key_id, cap = job.cap,   -- a limit applies to running attempts too
           blocked = run.blocked & ~LIMITED | case when job.key_id is null then 0 else LIMITED end
    from jobs job
    where run.job_id = any (changed_ids) and job.job_id = run.job_id
      and (run.key_id, run.cap) is distinct from (job.key_id, job.cap);
  end if;

  perform join_cohorts(changed_ids, batches, t, interval '1 minute', h_schedule, h_next, k_schedule, k_at, has_timers);
  if has_after or changed_ids is not null then
    perform register_followers(batches, changed_ids, renamed, t, p_who);
  end if;
  return t;
end $$;
