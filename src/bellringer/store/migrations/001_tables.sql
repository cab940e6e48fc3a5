-- The tables of the engine. History (runs, attempts, logs) is inserted and dropped by the day, never updated;
-- rows live in queue and timers only while there is work to do.

set local search_path to bellringer;

-- Schedule time. Production reads the transaction's clock; tests and the simulator replace this body, so the
-- real engine runs on their clock. It stays a plain SQL function so that the planner can inline it.
create function now() returns timestamptz language sql stable parallel safe as 'select pg_catalog.now()';

-- The same clock at this very moment, for steps that have waited for a lock: now() stands still in a transaction. A test's
-- clock stands still anyway.
create function clock() returns timestamptz language sql volatile as $$
  select bellringer.now() + case when bellringer.now() = pg_catalog.now() then clock_timestamp() - pg_catalog.now() else interval '0' end
$$;

-- The tenant that this connection serves; null: it serves none, or all.
create function told() returns integer language sql stable parallel safe as
$$ select nullif(current_setting('bellringer.tenant', true), '')::integer $$;

-- For functions that pass the wall between tenants (security definer, see 023_walls): a connection that serves one tenant does
-- nothing for another.
create function own(p_tenant integer) returns boolean language plpgsql stable parallel safe as $$
begin
  if p_tenant is distinct from coalesce(bellringer.told(), p_tenant) then
    raise exception 'that is another tenant''s' using errcode = 'BR004';
  end if;
  return true;
end $$;

create type cause as enum ('schedule', 'send', 'manual', 'backfill', 'catchup', 'replay', 'workflow', 'webhook');
create type outcome as enum ('ok', 'failed', 'timed_out', 'lost', 'cancelled');
create type run_state as enum ('queued', 'blocked', 'running', 'retrying', 'succeeded', 'dead', 'cancelled', 'skipped');

create table cluster (
  only_row  boolean primary key default true check (only_row),
  shards    smallint not null check (shards between 1 and 1024),
  made_at   timestamptz not null default pg_catalog.now(),
  name      text not null default substr(md5(gen_random_uuid()::text), 1, 8)  -- what engines that others use too call it by
);
insert into cluster (shards) values (64);

create table tenants (
  tenant_id    integer generated always as identity primary key,
  name         text not null unique,
  weight       real not null default 1,
  quotas       jsonb not null default '{}',
  objective    jsonb not null default '{}',     -- target: which part of its runs is to start within so many seconds
  suspended_at timestamptz,
  created_at   timestamptz not null default pg_catalog.now()
);
insert into tenants (name) values ('default');

create table pools (
  pool_id       smallint generated always as identity primary key,
  name          text not null unique,
  declared      boolean not null default false, -- somebody has described it; others are only named by jobs
  description   text not null default '',
  paused_at     timestamptz,                    -- nothing of it is claimed meanwhile
  paused_by     text,
  paused_reason text,
  concurrency   integer check (concurrency >= 0),   -- runs of it under way at most, on all workers
  rate          double precision check (rate > 0),  -- starts a second, on all workers
  timeout       interval check (timeout > '0'),     -- of attempts whose job says none
  created_at    timestamptz not null default pg_catalog.now()
);
-- What is left of each pool's rate: a row of its own, as every claim of such a pool writes it.
create table pool_rates (
  pool_id smallint primary key references pools,
  credit  double precision not null,
  at      timestamptz not null                  -- by the real clock
) with (fillfactor = 50);
insert into pools (name, declared) values ('short', true), ('long', true), ('http', false);

create table tasks (
  task_id    integer generated always as identity primary key,
  name       text not null unique,
  schema     jsonb not null default '{}',
  doc        text not null default '',
  defaults   jsonb not null default '{}',       -- how its code wants its runs treated: pool, timeout, retry …
  named_by   integer,                           -- the tenant that made it up, as long as no worker knows it
  created_at timestamptz not null default pg_catalog.now()
);
create index tasks_made_up on tasks (named_by) where named_by is not null;

-- Wide and rarely updated; a claim reads its spec. Tenants, tasks and pools are interned and never deleted: to have each job
-- refer to them by constraint would guard nothing, cost a quarter of a bulk creation, and have all creations lock the same rows.
create table jobs (
  job_id        uuid primary key,
  tenant_id     integer not null,
  shard         smallint not null,
  name          text not null,
  name_key      text not null generated always as (lower(name)) stored,  -- under row-level security no index on lower(name) is used
  task_id       integer not null,
  spec          jsonb not null,                 -- arguments, timeout, retry, delivery
  schedules     jsonb not null default '[]',    -- as the user wrote them
  schedule_ids  integer[] not null default '{}',-- the cohorts that it is a member of while it is active
  once_at       timestamptz,                    -- a one-shot's instant
  delay         interval,                       -- from the end of one run to the next
  pool_id       smallint not null,
  priority      smallint not null,
  misfire       text not null,
  catchup       jsonb not null default '{}',    -- of fire_all: most, window (seconds), rate (runs a minute)
  overlap       text not null,
  key_id        integer,                        -- the limit that its runs share with others, or have to themselves
  cap           smallint,                       -- how many of its own runs may be under way at once
  jitter        interval,                       -- its runs start within so long after their time …
  jitter_by     interval not null default '0',  -- … and this job's always by so much
  late_after    interval,                       -- a run that has not started by then is late
  starts_at     timestamptz,
  ends_at       timestamptz,
  enabled       boolean not null default true,  -- what its author declared
  paused_at     timestamptz,                    -- what an operator did
  paused_by     text,
  paused_reason text,
  paused_until  timestamptz,
  owner         text not null default 'api',
  tags          text[] not null default '{}',
  revision      integer not null default 1,
  created_at    timestamptz not null,
  updated_at    timestamptz not null,
  deleted_at    timestamptz,
  what          text not null default 'created',-- of its latest revision: created, changed, paused, resumed, deleted …
  who           text not null default 'bellringer',
  why           text,
  expected_duration interval,                   -- how long its author believes that a run takes
  routed        boolean not null default false, -- nobody named its pool: it goes by how long its runs take
  learned_at    timestamptz                     -- when its own runs have taught that it belongs into the pool for long ones
);
-- Nobody looks for documents by what is in them. To sort a sample of them for the planner took most of a second after each bulk.
alter table jobs alter spec set statistics 0, alter schedules set statistics 0, alter catchup set statistics 0;
create index jobs_learned on jobs (job_id) where learned_at is not null and deleted_at is null;
create unique index jobs_name on jobs (tenant_id, name_key) where deleted_at is null;
create index jobs_paused_until on jobs (paused_until) where paused_until is not null;
create index jobs_delay on jobs (job_id) where delay is not null and deleted_at is null;
create index jobs_tenant on jobs (tenant_id, job_id) where deleted_at is null;

-- What jobs were. A job's latest revision is the job: most are never changed, and to write each of them twice was a fifth of the
-- work of a bulk. Read both by `revisions_of`.
create table job_revisions (
  job_id       uuid not null,
  revision     integer not null,
  effective_at timestamptz not null,
  what         text not null,
  who          text not null,
  why          text,
  definition   jsonb not null,
  primary key (job_id, revision)
);
alter table job_revisions alter definition set statistics 0;

-- A job as a document. What is null is left out: that is half of the columns. The audit's seals are over it, so it must be the same
-- at any time: what is added to jobs later comes in only where null is its default. Times and intervals are written as our
-- connections have them set. Each of these is one expression without more (a type of its own, no `set`), so that it is made
-- part of its query: to call it would take longer than what it does.
create type job_terms as (
  tenant_id integer, shard smallint, name text, task_id integer, schedule_ids integer[], once_at timestamptz, delay interval,
  pool_id smallint, priority smallint, misfire text, overlap text, key_id integer, cap smallint, jitter interval, jitter_by interval,
  late_after interval, starts_at timestamptz, ends_at timestamptz, enabled boolean, paused_at timestamptz, paused_by text,
  paused_reason text, paused_until timestamptz, owner text, tags text[], deleted_at timestamptz, expected_duration interval,
  routed boolean, learned_at timestamptz);
create function terms_of(j jobs) returns jsonb language sql stable as $$
  select jsonb_strip_nulls(to_jsonb(row(
    j.tenant_id, j.shard, j.name, j.task_id, j.schedule_ids, j.once_at, j.delay, j.pool_id, j.priority, j.misfire, j.overlap, j.key_id,
    j.cap, j.jitter, j.jitter_by, j.late_after, j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason,
    j.paused_until, j.owner, j.tags, j.deleted_at, j.expected_duration, j.routed, j.learned_at)::bellringer.job_terms))
$$;
create function definition_of(j jobs) returns jsonb language sql stable as $$
  select bellringer.terms_of(j) || jsonb_build_object('spec', j.spec, 'schedules', j.schedules, 'catchup', j.catchup)    -- whose own nulls stay
$$;

-- Asked from outside for the one job, so that the newest of very many are found by the key, in its order.
create function revisions_of(p_job uuid)
returns table (revision integer, effective_at timestamptz, what text, who text, why text, definition jsonb) language sql stable as $$
  select r.revision, r.effective_at, r.what, r.who, r.why, r.definition from (
    select job_id, revision, effective_at, what, who, why, definition from bellringer.job_revisions
    union all
    select job_id, revision, updated_at, what, who, why, bellringer.definition_of(j) from bellringer.jobs j) r
  where r.job_id = p_job
$$;

create function keep_revision() returns trigger language plpgsql security definer set search_path = bellringer, pg_temp
set timezone = 'UTC' set intervalstyle = 'postgres' as $$              -- whoever changes a job, and from where
begin
  insert into job_revisions (job_id, revision, effective_at, what, who, why, definition)
  values (old.job_id, old.revision, old.updated_at, old.what, old.who, old.why, definition_of(old));
  return null;
end $$;
create trigger kept after update on jobs for each row when (old.revision <> new.revision) execute function keep_revision();

-- Interned: all that changes the instants. Every column is filled, so equal schedules are one row.
create table schedules (
  schedule_id integer generated always as identity primary key,
  kind        text not null,
  expression  text not null,
  timezone    text not null,
  anchor      text not null,
  seconds     boolean not null,
  dst         text not null,
  calendar    text not null,                    -- the days off that it heeds, by their content, and how
  unique (kind, expression, timezone, anchor, seconds, dst, calendar)
);

-- One clock hand for all the jobs of a shard that share a schedule.
create table cohorts (
  shard       smallint not null,
  schedule_id integer not null,
  next_at     timestamptz not null,
  cursor      uuid,                             -- the last member that got next_at, while it is being fired in chunks
  jump_to     timestamptz,                      -- where a hand that was left behind is going, while its gaps are written in chunks
  jump_cursor uuid,                             -- the last member whose gap is written
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
  several      boolean not null default false,  -- its job has more schedules than this
  late_after   interval,
  active_since timestamptz not null,
  active_until timestamptz,
  primary key (shard, schedule_id, job_id)
);

create index members_several on members (shard, schedule_id) where several;

-- Counted shard by shard every minute, for the forecast.
create table cohort_sizes (
  shard       smallint not null,
  schedule_id integer not null,
  tenant_id   integer not null,
  pool_id     smallint not null,
  members     integer not null,
  jittered    integer not null,                 -- of them, those that start later than their time …
  jitter_ms   integer not null,                 -- … by up to this
  primary key (shard, schedule_id, tenant_id, pool_id)
);
create table recounts (
  shard      smallint primary key,
  counted_at timestamptz not null
);

-- Runs with one key share a limit: so many of them may be under way at once.
create table limits (
  key_id    integer generated always as identity primary key,
  tenant_id integer not null references tenants,
  key       text not null,
  most      integer not null check (most > 0),
  unique (tenant_id, key)
);

-- Days off, by their content, which never changes under its digest; and the names that tenants give them.
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

-- Times in which a tenant's schedules rest; what is due then is deferred to the end, skipped, or collapsed into one run.
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

-- Which rules of the time zones a run was computed by.
create table tz_versions (
  tz_id      smallint generated always as identity primary key,
  version    text not null unique,
  first_seen timestamptz not null default pg_catalog.now()
);
-- Hands that a new version has moved.
create table tz_moves (
  tz_id       smallint not null references tz_versions,
  schedule_id integer not null,
  shard       smallint not null,
  moved_at    timestamptz not null,
  old_next    timestamptz not null,
  new_next    timestamptz not null,
  primary key (tz_id, schedule_id, shard)
);

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

create table runs (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  fired_at      timestamptz not null,
  token         bigint not null,                -- of the lease that it was born under; 0: born of a request
  tenant_id     integer not null,
  task_id       integer not null,
  revision      integer,                        -- of the job that it was born of; null: it has no job
  shard         smallint not null,
  pool_id       smallint not null,
  priority      smallint not null,
  cause         cause not null,
  tz_id         smallint,                       -- the rules of the time zones that its instant was computed by
  born_as       run_state not null,
  reason        text,
  spec          jsonb,
  primary key (job_id, scheduled_for, slot)
) partition by range (scheduled_for);
-- In the order of lists. A herd shares its instant: by its shards it is read in parts, and the index stays small, since equal
-- entries are kept together. With the whole key in it, firing would write a tenth more.
create index runs_recent on runs (tenant_id, scheduled_for, shard);

-- All values of queue.blocked that have this bit: by them the index on blocked is asked.
create function bits(p_bit integer) returns smallint[] language sql immutable parallel safe as
$$ select array_agg(n::smallint) from generate_series(0, 127) n where n & p_bit = p_bit $$;

-- blocked is a set of bits, so that several reasons may hold a run at once: 1 its job is paused, 2 its predecessor is
-- unfinished, 4 no live worker knows its task, 8 a freeze, 16 (with 2) what becomes of it is decided when its time comes,
-- 32 it has a limit: such runs are claimed by a way of their own; 64 it was sent to a broker, and whoever gets the message takes
-- it: until then it counts as under way, so that quotas and limits hold, and whatever concerns unclaimed runs concerns it too; 128 it
-- is a workflow run whose nodes are under way: it runs, though no worker holds it (see 022_workflows.sql).
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
  late_at          timestamptz,                 -- when it is late, unless it has started or was told of before
  sent_at          timestamptz,                 -- when a broker got it last, by the real clock
  spec             jsonb,
  progress         jsonb,
  primary key (job_id, scheduled_for, slot)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000);
create index queue_ready on queue (pool_id, tenant_id, priority desc, available_at) where worker_id is null and blocked = 0;
create index queue_held on queue (worker_id, tenant_id) where worker_id is not null;
create index queue_blocked on queue (blocked, available_at) where blocked & ~224 <> 0;
create index queue_waiting on queue (available_at, job_id) where blocked & 2 = 2;
create index queue_limited on queue (pool_id, tenant_id, key_id, priority desc, available_at) where worker_id is null and blocked = 32;
create index queue_keys on queue (key_id, job_id) where key_id is not null and (worker_id is not null or blocked & 192 <> 0);
create index queue_sent on queue (pool_id, tenant_id, sent_at) where worker_id is null and blocked & 64 = 64;
create index queue_behind on queue (pool_id, available_at) where worker_id is null and blocked = 0 and priority < 0;
create index queue_late on queue (late_at) where late_at is not null;

create table attempts (
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  started_at    timestamptz,
  finished_at   timestamptz not null,
  tenant_id     integer not null,
  worker_id     integer,
  revision      integer,
  attempt       integer not null,               -- 0: the run ended without a try
  outcome       outcome,
  ends_as       run_state,                      -- set on the one that ends the run
  error         jsonb,
  result        jsonb,
  primary key (job_id, scheduled_for, slot, attempt)
) partition by range (scheduled_for);
create index attempts_ended on attempts (tenant_id, ends_as, finished_at) where ends_as <> 'succeeded';

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

-- Occurrences that got no run, as ranges: from_at is in it, to_at is not.
create table gaps (
  job_id      uuid not null,
  from_at     timestamptz not null,
  to_at       timestamptz not null,
  schedule_id integer not null default 0,       -- whose occurrences; 0: those of all its schedules
  count       bigint,                           -- null: the range is exact, the occurrences in it were not counted
  reason      text not null,
  into_at     timestamptz,                      -- the occurrence that ran in their place
  recorded_at timestamptz not null,
  primary key (job_id, from_at, to_at, schedule_id)
);

-- Occurrences of the past that are still to be run, behind live work: what a job with fire_all has missed (catchup), or
-- what somebody has asked for (backfill). Worked off a few at a time; the cursor says how far.
create table backfills (
  backfill_id  bigint generated always as identity primary key,
  tenant_id    integer not null,
  job_id       uuid not null,
  shard        smallint not null,
  cause        cause not null check (cause in ('catchup', 'backfill')),
  schedule_id  integer not null default 0,      -- whose occurrences; 0: those of all its schedules as they are now
  from_at      timestamptz not null,            -- it is in it
  to_at        timestamptz not null,            -- it is not
  cursor       timestamptz,                     -- the last instant that was decided on
  newest_first boolean not null default false,
  reprocess    text not null default 'none' check (reprocess in ('none', 'failed', 'all')),
  parallelism  integer not null,                -- how many of its runs may be unfinished at once
  rate         double precision,                -- runs a minute; null: as fast as they end
  most         bigint,                          -- of a catch-up: only the latest so many …
  horizon      interval,                        -- … and none older than this
  state        text not null default 'running' check (state in ('running', 'paused', 'done', 'cancelled')),
  total        bigint,                          -- occurrences in the range; null: not counted yet
  made         bigint not null default 0,       -- runs born
  passed       bigint not null default 0,       -- occurrences that needed none
  who          text not null,
  why          text,
  created_at   timestamptz not null,
  made_at      timestamptz,                     -- when the last run was born
  ended_at     timestamptz
);
create index backfills_unended on backfills (shard, backfill_id) where state in ('running', 'paused');
create index backfills_of_job on backfills (job_id, backfill_id);
create index backfills_newest on backfills (tenant_id, backfill_id);

-- What people want to be told of: a run that is late or missed, one that failed or died, one that takes far longer than
-- usual, a job that outgrows its interval or has recovered. Each is told once. Who follows the events does so by (tx, event_id),
-- and only where tx < pg_snapshot_xmin(pg_current_snapshot()): numbers are given before the commit, so by event_id alone
-- one that commits late would be passed over.
create table events (
  event_id      bigint generated always as identity primary key,
  at            timestamptz not null,
  tenant_id     integer not null,
  kind          text not null,
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null default 0,
  attempt       integer not null default 0,
  data          jsonb not null default '{}',
  tx            xid8 not null default pg_current_xact_id(),
  unique (job_id, scheduled_for, slot, attempt, kind)
);
create index events_newest on events (tenant_id, event_id);
create index events_in_order on events (tenant_id, tx, event_id);
create index events_old on events (at);

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

-- Time says who may try for a shard; only the token says who may write.
create table leases (
  shard      smallint primary key,
  holder     uuid,
  token      bigint not null default 0,
  expires_at timestamptz not null default '-infinity',
  region     text                               -- whose nodes are to hold it; null: anybody's
) with (fillfactor = 50);
insert into leases (shard) select s from cluster, generate_series(0, shards - 1) s;

create table nodes (
  node_id    uuid primary key,
  name       text not null,
  host       text not null,
  pid        integer not null,
  version    text not null,
  started_at timestamptz not null,
  seen_at    timestamptz not null,
  shards     integer not null default 0,
  fired      bigint not null default 0,
  refused    bigint not null default 0,         -- writes that the fence refused: each one is a split brain that did no harm
  skew       double precision not null default 0,
  region     text,
  waits_for  text                               -- what keeps it from its shards, in words
);

create table workers (
  worker_id  integer generated always as identity primary key,
  name       text not null,
  host       text not null,
  pid        integer not null,
  version    text not null,
  pools      jsonb not null,                    -- {"short": slots}
  task_ids   integer[] not null,
  dispatch   text not null default 'postgresql', -- how its work gets to it
  state      text not null default 'live' check (state in ('live', 'draining', 'stopped', 'lost')),
  busy       integer not null default 0,
  asked      text check (asked in ('quiet', 'stop')),  -- what an operator wants of it; it reads so when it beats
  started_at timestamptz not null,
  seen_at    timestamptz not null
);
create index workers_present on workers (seen_at) where state in ('live', 'draining');
