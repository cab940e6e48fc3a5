-- Runs. History (runs, attempts, logs) is inserted and dropped by the day, never updated; rows live in queue and timers
-- only while there is work to do.
set local search_path to bellringer;

-- One-shots, fixed delays and far retries, until they are due.
create table timers (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  due_at        timestamptz not null,
  shard         smallint not null,
  pool_id       smallint not null,
  priority      smallint not null,
  attempt       integer not null default 0,
  attempt_floor integer not null default 0,
  tenant_id     integer not null,
  task_id       integer not null,
  revision      integer,
  cause         cause not null,
  rearms        boolean not null default false,
  spec          jsonb,
  primary key (job_id, scheduled_for, slot)
);
create index timers_due on timers (shard, due_at);
-- Waiting sends and far retries of a tenant, in the order of lists.
create index timers_listed on timers (tenant_id, (attempt > 0), scheduled_for, shard, job_id, slot);

create table runs (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  fired_at      timestamptz not null,
  token         bigint not null,                -- of the lease under which it was created; 0: created by a request
  tenant_id     integer not null,
  task_id       integer not null,
  revision      integer,                        -- of the job when the run was created; null: it has no job
  shard         smallint not null,
  pool_id       smallint not null,
  priority      smallint not null,
  cause         cause not null,
  tz_id         smallint,                       -- the time zone rules of scheduled_for
  initial_state run_state not null,              -- queued, blocked, skipped or cancelled
  reason        text,
  spec          jsonb,
  of_slot       bigint,                         -- the run that a replay repeats: the same occurrence in another slot
  primary key (job_id, scheduled_for, slot)
) partition by range (scheduled_for);
-- In the order of lists. Many runs share a time: the shard splits them into parts, and the index stays small, because
-- equal entries are deduplicated. With the whole key in the index, firing would write a tenth more.
create index runs_recent on runs (tenant_id, scheduled_for, shard);

-- blocked is a set of bits, so that several reasons may hold a run at once: 1 the job is paused; 2 the previous run is
-- unfinished; 4 no live worker knows the task; 8 a freeze; 16 (with 2) the overlap policy is applied when the run is
-- due; 32 the run has a limit and is claimed by claim_limited; 64 it was sent to a broker: it counts as running for
-- quotas and limits, but is treated as unclaimed otherwise, until a worker takes it; 128 it is a workflow run whose
-- nodes are running, and no worker holds it (see 004_workflows.sql).
create table queue (
  job_id           uuid not null,
  scheduled_for    timestamptz not null,
  slot             bigint not null,
  available_at     timestamptz not null,
  claimed_at       timestamptz,
  tenant_id        integer not null,
  task_id          integer not null,
  worker_id        integer,
  revision         integer,
  shard            smallint not null,
  pool_id          smallint not null,
  priority         smallint not null,
  attempt          integer not null default 0,
  attempt_floor    integer not null default 0,  -- attempts that do not count: before a redrive, or snoozed
  blocked          smallint not null default 0,
  cap              smallint,
  rearms           boolean not null default false,
  cancel_requested boolean not null default false,
  cause            cause not null,
  key_id           integer,
  late_at          timestamptz,                 -- when it becomes late; null: never, or started, or reported
  sent_at          timestamptz,                 -- when it was last sent to a broker, by the real clock
  started_at       timestamptz,                 -- when its worker recorded that this attempt begins; see begin_attempts
  spec             jsonb,
  progress         jsonb,
  primary key (job_id, scheduled_for, slot)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
create index queue_ready on queue (pool_id, tenant_id, priority desc, available_at)
  where worker_id is null and blocked = 0;
create index queue_held on queue (worker_id, tenant_id) where worker_id is not null;
create index queue_blocked on queue (blocked, available_at) where blocked & HELD <> 0;
create index queue_waiting on queue (available_at, job_id) where blocked & PREDECESSOR = PREDECESSOR;
create index queue_limited on queue (pool_id, tenant_id, key_id, priority desc, available_at)
  where worker_id is null and blocked = LIMITED;
create index queue_keys on queue (key_id, job_id) where key_id is not null
  and (worker_id is not null or blocked & UNDER_WAY <> 0);
create index queue_sent on queue (pool_id, tenant_id, sent_at) where worker_id is null and blocked & SENT = SENT;
create index queue_background on queue (pool_id, available_at) where worker_id is null and blocked = 0 and priority < 0;
create index queue_late on queue (late_at) where late_at is not null;
create index queue_parked on queue (tenant_id, pool_id, task_id, available_at)
  where blocked & TASK_UNKNOWN = TASK_UNKNOWN;
-- Workflow runs whose nodes are running; no worker holds these rows.
create index queue_opened on queue (tenant_id, job_id) where blocked & OPEN_WORKFLOW = OPEN_WORKFLOW;
create index queue_to_stop on queue (job_id) where cancel_requested and blocked & OPEN_WORKFLOW = OPEN_WORKFLOW;

create table attempts (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  started_at    timestamptz,
  finished_at   timestamptz not null,
  tenant_id     integer not null,
  worker_id     integer,
  revision      integer,
  attempt       integer not null,               -- 0: the run ended without an attempt
  outcome       outcome,
  ends_as       run_state,                      -- set on the attempt that ends the run
  error         jsonb,
  result        jsonb,
  primary key (job_id, scheduled_for, slot, attempt)
) partition by range (scheduled_for);
create index attempts_ended on attempts (tenant_id, ends_as, finished_at) where ends_as <> 'succeeded';
create index attempts_dead on attempts (job_id, scheduled_for) where ends_as = 'dead';

create sequence log_lines;

create table logs (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  attempt       integer not null,
  line          bigint not null default nextval('log_lines'),
  at            timestamptz not null,
  level         text not null,
  message       text not null,
  fields        jsonb
) partition by range (scheduled_for);
create index logs_of_run on logs (job_id, scheduled_for, slot, line);

-- History is kept in one partition a day. A day is attached, not declared in place, because attaching does not lock out
-- readers and writers of the other days.
do $$
declare
  today  date := bellringer.day_of(pg_catalog.now());
  parent text;
begin
  update bellringer.cluster set made_at = bellringer.start_of(today);
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    execute format('create table bellringer.%I partition of bellringer.%I for values from (minvalue) to (%L)',
                   parent || '_past', parent, bellringer.start_of(today));
  end loop;
  perform bellringer.ensure_days(array[today, today + 1, today + 2]);
end $$;

-- Occurrences without a run, as ranges from from_at (inclusive) to to_at (exclusive).
create table gaps (
  job_id      uuid not null,
  from_at     timestamptz not null,
  to_at       timestamptz not null,
  schedule_id integer not null default 0,       -- 0: all schedules of the job
  count       bigint,                           -- null: the range is exact, the occurrences in it were not counted
  reason      text not null,
  into_at     timestamptz,                      -- the occurrence that ran instead
  recorded_at timestamptz not null,
  primary key (job_id, from_at, to_at, schedule_id)
);
create trigger missed after insert on gaps referencing new table as fresh for each statement execute
  function record_missed();

-- Past occurrences that are still to be run, with lower priority than live runs: missed by a job with fire_all
-- (catchup), or requested by a user (backfill). The cursor says how far the backfill has come.
create table backfills (
  backfill_id  bigint generated always as identity primary key,
  tenant_id    integer not null,
  job_id       uuid not null,
  shard        smallint not null,
  cause        cause not null check (cause in ('catchup', 'backfill')),
  schedule_id  integer not null default 0,      -- 0: all current schedules of the job
  from_at      timestamptz not null,            -- inclusive
  to_at        timestamptz not null,            -- exclusive
  cursor       timestamptz,                     -- the last fire time that was processed
  newest_first boolean not null default false,
  reprocess    text not null default 'none' check (reprocess in ('none', 'failed', 'all')),
  parallelism  integer not null,                -- maximum number of unfinished runs
  rate         double precision,                -- runs a minute; null: as fast as they end
  most         bigint,                          -- of a catch-up: at most this many, the latest …
  horizon      interval,                        -- … and none older than this
  state        text not null default 'running' check (state in ('running', 'paused', 'done', 'cancelled')),
  total        bigint,                          -- occurrences in the range; null: not counted yet
  made         bigint not null default 0,       -- runs created
  passed       bigint not null default 0,       -- occurrences that needed no run
  who          text not null,
  why          text,
  created_at   timestamptz not null,
  made_at      timestamptz,                     -- when the last run was created
  ended_at     timestamptz
);
create index backfills_unfinished on backfills (shard, backfill_id) where state in ('running', 'paused');
create index backfills_of_job on backfills (job_id, backfill_id);
create index backfills_newest on backfills (tenant_id, backfill_id);

create table dead_letters (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  tenant_id     integer not null,
  task_id       integer not null,
  attempt       integer not null,
  died_at       timestamptz not null,
  reason        text not null,
  error         jsonb,
  fingerprint   text not null,
  primary key (job_id, scheduled_for, slot)
);
create index dead_letters_newest on dead_letters (tenant_id, died_at);
create index dead_letters_day on dead_letters (scheduled_for);
-- Dead letters by fingerprint, so that the groups are found without reading all rows.
create index dead_letters_by_fingerprint on dead_letters (tenant_id, fingerprint, died_at);

create table send_keys (
  tenant_id     integer not null,
  task_id       integer not null,
  key           text not null,
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  expires_at    timestamptz not null,
  primary key (tenant_id, task_id, key)
);
create index send_keys_expired on send_keys (expires_at);

-- A claimed run, or, in the one row without job_id, the position at which the next claim starts: after_tenant is the
-- last tenant served, share_left is what the first tenant after it is still owed.
create type claim_result as (
  job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
  tenant_id integer, claimed_at timestamptz, name text, spec jsonb, background boolean, available_at timestamptz,
  revision integer, after_tenant integer, share_left integer, tenants_visited integer);

-- A tenant with ready runs; `cap` is its quota of running runs, null: none.
create type claim_candidate as (tenant_id integer, weight double precision, cap integer);

-- How an attempt ended, as its worker reports it.
create type attempt_ending as (
  job_id        uuid,
  scheduled_for timestamptz,
  slot          bigint,
  attempt       integer,
  outcome       text,
  -- the final state of the run; null: it is retried; 'running': a workflow run is opened
  ends_as       text,
  retry_after   double precision,  -- seconds until the next attempt
  is_counted    boolean,           -- the attempt counts against the retry policy
  ran           double precision,  -- seconds; null: the handler was not called
  ended_ago     double precision,  -- seconds since the attempt ended, by the worker's monotonic clock
  error         text,              -- JSON
  result        text,              -- JSON
  reason        text,              -- why the run died
  fingerprint   text               -- groups dead letters with the same error
);

-- The filter of a list; null: no condition.
create type run_filter as (job uuid, states text[], task text, pool text, cause cause, worker integer, tag text, q text,
                           from_at timestamptz, to_at timestamptz);
