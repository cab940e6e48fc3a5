-- Jobs, and the tables that decide when they run: schedules, cohorts and members, limits, calendars, freezes and skips.
set local search_path to bellringer;

-- Wide and rarely updated; a claim reads the spec. Tenants, tasks and pools are interned and never deleted, so foreign
-- keys would guard nothing; they would cost a quarter of a bulk creation, and all creations would lock the same rows.
create table jobs (
  job_id        uuid primary key,
  tenant_id     integer not null,
  shard         smallint not null,
  name          text not null,
  -- under row-level security no index on lower(name) is used
  name_key      text not null generated always as (lower(name)) stored,
  task_id       integer not null,
  spec          jsonb not null,                 -- arguments, timeout, retry, delivery
  schedules     jsonb not null default '[]',    -- as the user wrote them
  schedule_ids  integer[] not null default '{}',-- its cohorts while it is active
  once_at       timestamptz,                    -- the time of a one-shot
  delay         interval,                       -- from the end of one run to the next
  pool_id       smallint not null,
  priority      smallint not null,
  misfire       text not null,
  catchup       jsonb not null default '{}',    -- of fire_all: most, window (seconds), rate (runs a minute)
  overlap       text not null,
  key_id        integer,                        -- the limit of its runs
  cap           smallint,                       -- maximum number of concurrent runs of this job
  jitter        interval,                       -- maximum random delay of its runs …
  jitter_by     interval not null default '0',  -- … and the fixed delay chosen for this job
  late_after    interval,                       -- a run that has not started after this time is late
  starts_at     timestamptz,
  ends_at       timestamptz,
  enabled       boolean not null default true,  -- from the definition
  paused_at     timestamptz,                    -- set by an operator
  paused_by     text,
  paused_reason text,
  paused_until  timestamptz,
  owner         text not null default 'api',
  tags          text[] not null default '{}',
  revision      integer not null default 1,
  created_at    timestamptz not null,
  updated_at    timestamptz not null,
  deleted_at    timestamptz,
  what          text not null default 'created', -- the last change: created, changed, paused, resumed, deleted …
  who           text not null default 'bellringer',
  why           text,
  expected_duration interval,                   -- from the definition
  after_completion text not null default 'keep', -- what happens to the job once it is done: keep or delete
  routed        boolean not null default false, -- no pool is named: the durations of its runs decide
  -- when the durations of its runs moved it to the pool for long runs
  learned_at    timestamptz,
  -- when finish_jobs marked it as done; not a part of the definition
  done_at       timestamptz
);
-- No statement searches documents by content, and sampling them for the planner took most of a second after each bulk.
alter table jobs alter spec set statistics 0, alter schedules set statistics 0, alter catchup set statistics 0;
create index jobs_learned on jobs (job_id) where learned_at is not null and deleted_at is null;
create unique index jobs_name on jobs (tenant_id, name_key) where deleted_at is null;
create index jobs_paused_until on jobs (paused_until) where paused_until is not null;
create index jobs_delay on jobs (job_id) where delay is not null and deleted_at is null;
create index jobs_tenant on jobs (tenant_id, job_id) where deleted_at is null;
-- Read by retention.
create index jobs_deleted on jobs (deleted_at) where deleted_at is not null;
create index jobs_done_at on jobs (done_at, job_id) where done_at is not null and deleted_at is null;
-- Done jobs that are deleted as soon as they have no dead letter.
create index jobs_done_to_delete on jobs (done_at, job_id)
  where done_at is not null and deleted_at is null and after_completion = 'delete';
-- Jobs that are in no cohort although they have schedules. A schedule is pruned only if no such job refers to it.
create index jobs_idle_schedules on jobs using gin (schedule_ids)
  where schedule_ids <> '{}' and (paused_at is not null or not enabled or done_at is not null
    or deleted_at is not null);
create index jobs_of_code on jobs (tenant_id, job_id) where owner = 'code' and deleted_at is null;
-- Jobs with a one-shot time or an end, until they are done.
create index jobs_ending on jobs (coalesce(once_at, ends_at), job_id)
  where (once_at is not null or ends_at is not null) and enabled and paused_at is null and deleted_at is null
    and done_at is null;
-- Only jobs that use a calendar are in this index, so other jobs cost nothing.
create index jobs_calendar on jobs using gin (schedules jsonb_path_ops)
  where deleted_at is null and schedules @? '$[*].calendar';
-- Finds the jobs that use a secret, before it is deleted. The index holds a hash, because the same field of other tasks
-- may be long.
create index jobs_secret on jobs using hash ((spec #>> '{kwargs,secret,id}'))
  where spec #>> '{kwargs,secret,id}' is not null;
create index jobs_paused on jobs (tenant_id, job_id) where paused_at is not null and deleted_at is null;
create index jobs_paused_by_name on jobs (tenant_id, name_key) where paused_at is not null and deleted_at is null;
create index jobs_disabled on jobs (tenant_id, job_id) where not enabled and deleted_at is null;
create index jobs_disabled_by_name on jobs (tenant_id, name_key) where not enabled and deleted_at is null;
create index jobs_done on jobs (tenant_id, job_id) where done_at is not null and deleted_at is null;
create index jobs_done_by_name on jobs (tenant_id, name_key) where done_at is not null and deleted_at is null;
-- Lists of workflow runs bypass row-level security, which would look up a flow for each of ten thousand elements, and
-- check the tenant themselves. They use an index of their own, because workflows may be few among many jobs.
create index jobs_workflows on jobs (tenant_id, name_key) where spec ? 'graph' and deleted_at is null;
create trigger kept after update on jobs for each row when (old.revision <> new.revision) execute
  function keep_revision();
-- Triggers, so that no function that changes, pauses, resumes or deletes a job can omit this; only register creates
-- jobs.
create trigger count_changed after update on jobs referencing old table as before new table as after
  for each statement execute function count_changed_jobs();

-- Previous revisions of jobs. The latest revision is the row in `jobs`: most jobs are never changed, and writing each
-- twice took a fifth of a bulk creation. `revisions_of` reads both.
create table job_revisions (
  job_id       uuid not null,
  revision     integer not null,
  effective_at timestamptz not null,
  what         text not null,
  who          text not null,
  why          text,
  definition   jsonb not null,
  dropped_schedules integer[],                  -- schedules of this revision that the next one does not have
  primary key (job_id, revision)
);
create index job_revisions_dropped_schedules on job_revisions using gin (dropped_schedules)
  where dropped_schedules is not null;
alter table job_revisions alter definition set statistics 0;
create index job_revisions_secret on job_revisions using hash ((definition #>> '{spec,kwargs,secret,id}'))
  where definition #>> '{spec,kwargs,secret,id}' is not null;

-- A job as a document, without nulls, which are half of the columns. The audit's seals cover it, so it must never
-- change for the same job: a column that is added to jobs later belongs here only if its default is null. Times and
-- intervals are written with the settings of our connections. The functions are single expressions without `set`, so
-- that the planner inlines them; a call would take longer than the work.
create type job_terms as (
  tenant_id integer, shard smallint, name text, task_id integer, schedule_ids integer[], once_at timestamptz,
    delay interval,
  pool_id smallint, priority smallint, misfire text, overlap text, key_id integer, cap smallint, jitter interval,
    jitter_by interval,
  late_after interval, starts_at timestamptz, ends_at timestamptz, enabled boolean, paused_at timestamptz,
    paused_by text,
  paused_reason text, paused_until timestamptz, owner text, tags text[], deleted_at timestamptz,
    expected_duration interval,
  routed boolean, learned_at timestamptz, after_completion text);

-- Jobs of one call of `register` that share all columns but id, shard, name and spec. `template` holds the shared
-- columns; `jobs` is an array of [job_id, shard, name, spec], which takes half the time to read that objects with keys
-- would take.
create type job_batch as (
  template jobs,
  jobs     jsonb,
  expected integer,                              -- the revision that the caller has read; 0: the jobs are new
  key_most integer                               -- the size of the limit `template.key_id`
);

-- The counts that quotas limit. Each tenant has several rows, so that concurrent creations rarely wait for each other;
-- only their sum is meaningful, because a job may be added in one row and subtracted in another.
create table job_counts (
  tenant_id        integer not null references tenants,
  shard            smallint not null,
  jobs             bigint not null,
  fires_per_minute double precision not null,    -- of jobs that are neither paused nor disabled
  primary key (tenant_id, shard)
) with (fillfactor = 50);

-- The change of the number of jobs and of fires a minute in a shard by one statement.
create type job_growth as (tenant_id integer, shard smallint, jobs bigint, fires double precision);

-- Interned: all columns that determine the fire times. No column is null, so equal schedules are one row.
create table schedules (
  schedule_id integer generated always as identity primary key,
  kind        text not null,
  expression  text not null,
  timezone    text not null,
  anchor      text not null,
  seconds     boolean not null,
  dst         text not null,
  calendar    text not null,                    -- the days off by their digest, and how they apply
  fires_per_minute double precision not null default 0,   -- the average, computed when it was interned
  -- when to check whether the schedule is still in use: a day after it was interned, and when a job that had it is
  -- removed; null: it was in use at the last check
  check_at    timestamptz,
  unique (kind, expression, timezone, anchor, seconds, dst, calendar)
);
create index schedules_to_check on schedules (check_at) where check_at is not null;

-- All jobs of a shard that share a schedule; next_at is their next fire time.
create table cohorts (
  shard       smallint not null,
  schedule_id integer not null,
  next_at     timestamptz not null,
  cursor      uuid,                             -- the last member that fired, while next_at is fired in chunks
  -- the target of a fast-forward after an outage, while its gaps are written in chunks
  target_at   timestamptz,
  gap_cursor  uuid,                             -- the last member whose gap is written
  primary key (shard, schedule_id)
) with (fillfactor = 70);
create index cohorts_due on cohorts (shard, next_at);

-- Narrow, and all that a fire needs; read in order. misfire: 0 fire_once, 1 skip, 2 fire_all. overlap: 0 allow, 1 skip,
-- 2 queue, 3 collapse, 4 replace.
create table members (
  shard        smallint not null,
  schedule_id  integer not null,
  job_id       uuid not null,
  tenant_id    integer not null,
  task_id      integer not null,
  revision     integer not null,
  pool_id      smallint not null,
  priority     smallint not null,
  misfire      smallint not null,
  overlap      smallint not null,
  cap          smallint,
  key_id       integer,
  jitter_ms    integer not null default 0,
  several      boolean not null default false,  -- its job has more than one schedule
  late_after   interval,
  active_since timestamptz not null,
  active_until timestamptz,
  primary key (shard, schedule_id, job_id)
);
create index members_several on members (shard, schedule_id) where several;
-- Only members with late_after; the others cost nothing here.
create index members_with_late_after on members (shard, schedule_id, job_id) where late_after is not null;

-- Counted shard by shard every minute, for the forecast.
create table cohort_sizes (
  shard       smallint not null,
  schedule_id integer not null,
  tenant_id   integer not null,
  pool_id     smallint not null,
  members     integer not null,
  jittered    integer not null,                 -- members with jitter …
  jitter_ms   integer not null,                 -- … and its maximum
  primary key (shard, schedule_id, tenant_id, pool_id)
);

create table recounts (
  shard      smallint primary key,
  counted_at timestamptz not null
);

-- Runs with the same key share a limit: at most `most` of them run at once.
create table limits (
  key_id    integer generated always as identity primary key,
  tenant_id integer not null references tenants,
  key       text not null,
  most      integer not null check (most > 0),
  unique (tenant_id, key)
);

-- Days off by the digest of their content, which never changes; and the names that tenants give them.
create table days_off (
  digest  text primary key,
  dates   date[] not null,
  weekend smallint[] not null
);

create table calendars (
  tenant_id  integer not null references tenants,
  name       text not null,
  version    integer not null,
  digest     text not null references days_off,
  changed_at timestamptz not null,
  changed_by text not null,
  deleted_at timestamptz,
  primary key (tenant_id, name, version)
);
create index calendars_of_digest on calendars (digest);

-- Times in which schedules of a tenant do not fire; occurrences are deferred to the end, skipped, or collapsed into one
-- run.
create table freezes (
  freeze_id  integer generated always as identity primary key,
  tenant_id  integer not null references tenants,
  name       text not null,
  from_at    timestamptz not null,
  to_at      timestamptz not null check (to_at > from_at),
  policy     text not null check (policy in ('defer', 'skip', 'collapse')),
  tags       text[] not null default '{}',      -- only jobs with one of these; none: all jobs
  reason     text,
  made_by    text not null,
  made_at    timestamptz not null
);
create index freezes_until on freezes (to_at);
create index freezes_newest on freezes (tenant_id, to_at, freeze_id);

create table skips (
  job_id    uuid not null,
  at        timestamptz not null,
  tenant_id integer not null,
  who       text not null,
  reason    text,
  made_at   timestamptz not null,
  primary key (job_id, at)
);
create index skips_at on skips (at);

-- Versions of the time zone rules that fire times were computed with.
create table tz_versions (
  tz_id      smallint generated always as identity primary key,
  version    text not null unique,
  first_seen timestamptz not null default pg_catalog.now()
);

-- Cohorts whose next fire time a new version has changed.
create table tz_moves (
  tz_id       smallint not null references tz_versions,
  schedule_id integer not null,
  shard       smallint not null,
  moved_at    timestamptz not null,
  old_next    timestamptz not null,
  new_next    timestamptz not null,
  primary key (tz_id, schedule_id, shard)
);

-- The version with which the cohorts of a shard were last checked, and the lease token then. A gap in the tokens means
-- that another holder fired with an unknown version.
create table tz_applied (
  shard smallint primary key,
  tz_id smallint not null references tz_versions,
  token bigint not null
);
