-- Events and webhooks; jobs in trouble; usage; secrets and circuit breakers of HTTP targets.
set local search_path to bellringer;

-- Events: a run is late, missed, failed or dead, or takes far longer than usual; a job takes longer than its interval,
-- or has recovered. Each is written once. Readers follow the events in the order (tx, event_id), and read only those
-- with tx < pg_snapshot_xmin(pg_current_snapshot()): ids are assigned before the commit, so a reader by event_id alone
-- would miss an event that commits late.
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
create index events_of_job on events (job_id, event_id);
create index events_of_kind on events (tenant_id, kind, event_id);
create index events_of_trouble on events (tx, event_id) where kind in ('dead', 'late', 'missed', 'skipping');

-- Jobs in trouble: late, missed, dead or skipping until a later run succeeds; or unknown_task while one of their runs
-- is parked because no worker knows its task. Healthy jobs have no row.
create table troubles (
  job_id        uuid primary key,
  tenant_id     integer not null,
  kind          text not null,
  scheduled_for timestamptz not null,
  since         timestamptz not null,           -- of the latest trouble: only a later success counts
  looked_at     timestamptz not null
);
create index troubles_looked on troubles (looked_at);
create index troubles_of_tenant on troubles (tenant_id, kind, since);
create index troubles_by_job on troubles (tenant_id, kind, job_id);

-- The position up to which `recover` has read the events.
create table troubles_read (
  only_row boolean primary key default true check (only_row),
  tx       xid8 not null default pg_current_xact_id(),
  event_id bigint not null default 9223372036854775807
);
insert into troubles_read default values;

-- Tasks with parked runs, because no live worker of the pool knows them, each with its first run. A row stays until a
-- worker knows the task or no run waits for it, so that it is reported once.
create table unknown_tasks (
  tenant_id     integer not null,
  pool_id       smallint not null,
  task_id       integer not null,
  since         timestamptz not null,           -- when its first run should have started
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  primary key (tenant_id, pool_id, task_id)
);

-- started and late count in the minute in which the runs were due, missed in the minute of the last missed occurrence,
-- busy_ms and slots_ms in the minute in which the time was spent.
create table usage (
  minute    timestamptz not null,
  pool_id   smallint not null,
  tenant_id integer not null,                   -- 0: the pool itself, for slots_ms
  started   bigint not null default 0,
  late      bigint not null default 0,          -- started later than the tenant's objective
  missed    bigint not null default 0,          -- missed occurrences that will not run
  busy_ms   bigint not null default 0,
  slots_ms  bigint not null default 0,
  primary key (minute, pool_id, tenant_id)
) with (fillfactor = 70);
create index usage_of_tenant on usage (tenant_id, minute);

-- Secrets, encrypted with keys that the database never has; each is bound to its tenant and id. While a secret is
-- replaced both sign, until the previous one expires.
create table secrets (
  tenant_id       integer not null references tenants,
  secret_id       text not null,
  key_id          text not null,
  sealed          bytea not null,
  previous_key_id text,
  previous        bytea,
  previous_until  timestamptz,
  -- a keyed hash, by which sends with the same secret share a row
  keyed_hash      bytea,
  needed_until    timestamptz,                  -- of the latest send; null: of a job or an endpoint
  created_at      timestamptz not null,
  changed_at      timestamptz not null,
  primary key (tenant_id, secret_id)
);
create unique index secrets_keyed_hash on secrets (tenant_id, keyed_hash) where keyed_hash is not null;

-- Circuit breakers, one row for each origin with failures; no row means closed. probe_at: if open, when a call may
-- probe; if half open, when the probe must have returned.
create table breakers (
  tenant_id  integer not null references tenants,
  origin     text not null,
  state      text not null check (state in ('closed', 'open', 'half_open')),
  failures   integer not null,                  -- consecutive failures
  opens      integer not null default 0,        -- how often it opened since the last success
  opened_at  timestamptz,
  probe_at   timestamptz,
  reason     text not null,
  changed_at timestamptz not null,
  primary key (tenant_id, origin)
);

-- Webhook endpoints, and the position up to which events were sent to each. See events for the order.
create table webhook_endpoints (
  endpoint_id     bigint generated always as identity primary key,
  tenant_id       integer not null references tenants,
  url             text not null,
  kinds           text[] not null default '{}', -- empty: all
  description     text not null default '',
  secret_id       text not null,
  enabled         boolean not null default true,
  disabled_reason text,
  sent_tx         xid8 not null default pg_current_xact_id(),
  sent_event      bigint not null default 9223372036854775807,
  created_at      timestamptz not null,
  created_by      text not null,
  changed_at      timestamptz not null
);
create index webhook_endpoints_of_tenant on webhook_endpoints (tenant_id, endpoint_id);

-- Webhook deliveries and the runs that send them. A replay sends the same event again.
create table deliveries (
  delivery_id   bigint generated always as identity primary key,
  tenant_id     integer not null,
  endpoint_id   bigint not null references webhook_endpoints on delete cascade,
  event_id      bigint,                         -- null: a test
  kind          text not null,
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  made_at       timestamptz not null,
  replay_of     bigint
);
create unique index deliveries_once on deliveries (endpoint_id, event_id)
  where replay_of is null and event_id is not null;
create index deliveries_newest on deliveries (endpoint_id, delivery_id);
create index deliveries_old on deliveries (made_at);
