-- compatible from 014
-- Retention by tenant, job and state, and the archive of runs past retention.
set local search_path to bellringer;

-- Seconds: {"runs": 2592000, "succeeded": 604800, "jobs": {"nightly": {"runs": 31536000}}}; a missing key is inherited.
alter table tenants add column retention jsonb not null default '{}';

-- Runs and attempts past retention that are to be archived, taken out of the daily partitions into the tables
-- expired_runs_<batch_id> and expired_attempts_<batch_id>, which nothing changes any more. The columns after_tenant to
-- after_slot are the position after the last part; the tables are dropped after the manifest was verified.
create table archive_batches (
  batch_id    bigint generated always as identity primary key,
  day         date not null,
  opened_at   timestamptz not null,
  state       text not null check (state in ('filling', 'open', 'archived', 'dropped')),
  after_tenant integer not null default 0,
  after_at    timestamptz,
  after_shard smallint,
  after_job   uuid,
  after_slot  bigint,
  parts       integer not null default 0,
  rows        bigint not null default 0,
  bytes       bigint not null default 0,
  problem     text,                             -- why the last step failed; null after a step that succeeded
  failed_at   timestamptz
);
create index archive_batches_open on archive_batches (batch_id) where state <> 'dropped';

-- The objects of each batch, with their digests.
create table archive_parts (
  batch_id  bigint not null references archive_batches,
  part      integer not null,
  owner_id  integer not null,                   -- the tenant of the runs
  path      text not null,
  rows      bigint not null,
  bytes     bigint not null,
  sha256    text not null,
  primary key (batch_id, part)
);

-- How far the runs of a day were deleted whose own retention is shorter than that of the day. A pass reads
-- the day once,
-- in key order; the next one is needed at next_at, when the next shortest retention has passed, or when a rule changes.
create table trimmed_days (
  day        date primary key,
  rules      text not null,                     -- digest of the rules of the last pass
  next_at    timestamptz not null,              -- '-infinity': a pass has begun
  after_job  uuid,
  after_at   timestamptz,
  after_slot bigint,
  batch_id   bigint references archive_batches
);
