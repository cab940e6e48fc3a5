-- The installation: its nodes, shards and workers, its pools and tasks, and its tenants.
set local search_path to bellringer;

create type cause as enum ('schedule', 'send', 'manual', 'backfill', 'catchup', 'replay', 'workflow', 'webhook');

create type outcome as enum ('ok', 'failed', 'timed_out', 'lost', 'cancelled');

create type run_state as enum ('queued', 'blocked', 'running', 'retrying', 'succeeded', 'dead', 'cancelled', 'skipped');

create table cluster (
  only_row  boolean primary key default true check (only_row),
  shards    smallint not null check (shards between 1 and 1024),
  made_at   timestamptz not null default pg_catalog.now(),
  -- the name of the cluster in systems that are shared with others, such as brokers
  name      text not null default substr(md5(gen_random_uuid()::text), 1, 8),
  -- signs values that clients return to us, such as cursors; the same on all nodes, never changed
  secret    bytea not null
            default sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'utf8'))
);
insert into cluster (shards) values (64);

-- expires_at decides which node may try to take a shard; only the token decides which node may write.
create table leases (
  shard      smallint primary key,
  holder     uuid,
  token      bigint not null default 0,
  expires_at timestamptz not null default '-infinity',
  region     text                               -- the region whose nodes hold the shard; null: any
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
  -- writes that the fence refused: in each case two nodes believed to hold the shard
  refused    bigint not null default 0,
  skew       double precision not null default 0,
  region     text,
  waits_for  text                               -- why the node does not hold its shards, as text
);

create table workers (
  worker_id  integer generated always as identity primary key,
  name       text not null,
  host       text not null,
  pid        integer not null,
  version    text not null,
  pools      jsonb not null,                    -- {"short": slots}
  task_ids   integer[] not null,
  dispatch   text not null default 'postgresql', -- how the worker gets its runs
  state      text not null default 'live' check (state in ('live', 'draining', 'stopped', 'lost')),
  busy       integer not null default 0,
  asked      text check (asked in ('quiet', 'stop')),  -- requested by an operator; read with each heartbeat
  started_at timestamptz not null,
  seen_at    timestamptz not null,
  -- identifies the operating system process: a lost worker rejoins with the same one
  process    uuid not null default gen_random_uuid(),
  -- up to this claim time, the worker has confirmed every row that it holds
  confirmed_at timestamptz
);
create index workers_present on workers (seen_at) where state in ('live', 'draining');

create table tenants (
  tenant_id    integer generated always as identity primary key,
  name         text not null unique,
  weight       real not null default 1,
  quotas       jsonb not null default '{}',
  objective    jsonb not null default '{}',     -- the share of runs that start within a number of seconds
  suspended_at timestamptz,
  created_at   timestamptz not null default pg_catalog.now()
);
insert into tenants (name) values ('default');

create table pools (
  pool_id       smallint generated always as identity primary key,
  name          text not null unique,
  declared      boolean not null default false, -- false: the pool is only named by jobs
  description   text not null default '',
  paused_at     timestamptz,                    -- while set, no run of the pool is claimed
  paused_by     text,
  paused_reason text,
  concurrency   integer check (concurrency >= 0),   -- maximum number of running runs, on all workers
  rate          double precision check (rate > 0),  -- maximum number of starts a second, on all workers
  timeout       interval check (timeout > '0'),     -- of attempts whose job has no timeout
  created_at    timestamptz not null default pg_catalog.now()
);
insert into pools (name, declared) values ('short', true), ('long', true), ('http', false);

-- The remaining starts of each pool with a rate. A table of its own, because every claim of such a pool writes it.
create table pool_rates (
  pool_id smallint primary key references pools,
  credit  double precision not null,
  at      timestamptz not null                  -- by the real clock, not the schedule clock
) with (fillfactor = 50);

create table tasks (
  task_id    integer generated always as identity primary key,
  name       text not null unique,
  schema     jsonb not null default '{}',
  doc        text not null default '',
  defaults   jsonb not null default '{}',       -- declared in code: pool, timeout, retry …
  named_by   integer,                           -- the tenant that first named it, while no worker knows it
  created_at timestamptz not null default pg_catalog.now()
);
create index tasks_named_by_tenant on tasks (named_by) where named_by is not null;

-- Messages that consumers of a broker could not read. They block nothing, and are kept for inspection.
create table quarantine (
  topic          text not null,
  partition      integer not null,
  message_offset bigint not null,
  at             timestamptz not null default clock_timestamp(),
  problem        text not null,
  message        bytea not null,                -- its first 4 KiB
  primary key (topic, partition, message_offset)
);
