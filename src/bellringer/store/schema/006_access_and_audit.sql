-- API keys, operations over many items, stored responses of idempotent requests, and the audit.
set local search_path to bellringer;

-- A key of the whole installation has no tenant, so row-level security hides it from all tenants.
create table api_keys (
  key_id       text primary key,
  tenant_id    integer references tenants,
  name         text not null,
  hash         bytea not null,                   -- of the secret, which is shown once and not stored
  role         text not null check (role in ('viewer', 'operator', 'editor', 'admin')),
  scopes       text[] not null default '{}',     -- tags of the API operations it may call; empty: all
  created_by   text not null,
  created_at   timestamptz not null default pg_catalog.now(),
  expires_at   timestamptz,
  revoked_at   timestamptz,
  last_used_at timestamptz,                      -- with a precision of a minute
  replaced_by  text
);
create index api_keys_tenant on api_keys (tenant_id, created_at, key_id);

-- A request for many items, processed in bounded passes by any node. The items are named (ids) or found by a filter;
-- `position` or `cursor` is the progress. Each item is processed at least once, and repeating it changes nothing.
create table operations (
  operation_id bigint generated always as identity primary key,
  tenant_id    integer not null,
  action       text not null,
  filter       jsonb,                           -- the filter of the list that belongs to the action
  ids          text[],
  position     integer not null default 0,      -- of ids: the number processed
  cursor       jsonb,                           -- of a filter: the position of the last pass
  total        bigint not null,                 -- counted when the operation was created …
  total_is_least boolean not null default false,-- … where there may be more
  done         bigint not null default 0,
  skipped      bigint not null default 0,       -- items that needed no change
  failed       bigint not null default 0,
  failures     jsonb not null default '[]',     -- the first few
  rate         double precision check (rate > 0),  -- items a minute; null: unlimited
  -- when the rate allows the next item; without a rate, when the last pass ran
  paced_at     timestamptz not null,
  -- when the tenant's quota of runs allows the next one
  spent_until  timestamptz,
  state        text not null default 'running' check (state in ('running', 'done', 'aborted')),
  who          text not null,
  reason       text,
  created_at   timestamptz not null,
  ended_at     timestamptz,
  check ((filter is null) <> (ids is null))
);
create index operations_open on operations (tenant_id, paced_at, operation_id) where state = 'running';
create index operations_spent on operations (tenant_id, spent_until);
create index operations_newest on operations (tenant_id, operation_id);

-- Stored responses by idempotency key, written in the transaction of the effect. The fingerprint covers the whole
-- request: a key with another fingerprint was reused by mistake.
create table idempotency_keys (
  tenant_id   integer not null,                 -- 0: the whole installation
  route       text not null,
  key         text not null,
  fingerprint bytea not null,
  status      smallint not null,
  headers     jsonb not null,
  body        bytea not null,
  made_at     timestamptz not null,
  -- its size, which counts against the tenant's limit
  blocks      integer generated always as (1 + octet_length(body) / 4096) stored,
  primary key (tenant_id, route, key)
);
create index idempotency_keys_old on idempotency_keys (made_at);
-- counted from the index, without reading the responses
create index idempotency_keys_kept on idempotency_keys (tenant_id) include (blocks);

-- Every change: the actor, origin and request, and the values before and after; written in the transaction of the
-- change, by triggers or, for actions on runs, by `note`. Changes of jobs name the revision instead of copying the
-- definition.
create table audit (
  audit_id   bigint generated always as identity,
  tx         xid8 not null default pg_current_xact_id(),
  at         timestamptz not null,
  tenant_id  integer not null,                  -- 0: of the whole installation
  who        text not null,
  origin     text,                              -- the client address; null: not through the API
  request_id text,
  action     text not null,                     -- job.changed, freeze.created, run.cancelled …
  kind       text not null,
  target     text not null,
  revision   integer,                           -- of a job
  before     jsonb,
  after      jsonb,
  primary key (tx, audit_id)                    -- the order of sealing
);
create index audit_newest on audit (tenant_id, audit_id);

-- Digests of the definitions of jobs that retention has removed, as long as the audit has entries about them.
create table job_digests (
  job_id       uuid not null,
  revision     integer not null,
  digest       text not null,
  -- when the next revision replaced it: the last change whose entry refers to it
  needed_until timestamptz not null,
  primary key (job_id, revision)
);
create index job_digests_old on job_digests (needed_until);

-- Each seal is a hash over the previous seal and the rows up to a position, so that no earlier row can change
-- unnoticed.
create table audit_seals (
  seal_id   bigint generated always as identity primary key,
  last_tx   xid8 not null,                      -- the last row that it covers
  last_id   bigint not null,
  count     integer not null,
  prev_hash bytea not null,
  hash      bytea not null,
  sealed_at timestamptz not null
);

create trigger audited_start after insert on jobs referencing new table as added
  for each statement execute function audit_new_jobs();
create trigger audited after update on jobs for each row
  when (old.revision <> new.revision) execute function audit_job();



create trigger audited after insert or update or delete on tenants for each row execute function audited('tenant',
  'name', '');

create trigger audited after insert or update or delete on pools for each row execute function audited('pool', 'name',
  '');

create trigger audited after insert or update or delete on calendars for each row execute function audited('calendar',
  'name', '');

create trigger audited after insert or update or delete on freezes for each row execute function audited('freeze',
  'freeze_id', '');

create trigger audited after insert or update or delete on api_keys
  for each row execute function audited('api_key', 'key_id', 'last_used_at');

create trigger audited after insert or update or delete on secrets
  for each row execute function audited('secret', 'secret_id', 'needed_until');

create trigger audited after insert or update or delete on webhook_endpoints
  for each row execute function audited('webhook_endpoint', 'endpoint_id', 'sent_tx,sent_event');

create trigger audited after update on workers for each row when (old.asked is distinct from new.asked)
  execute function audited('worker', 'worker_id', 'task_ids,pools,busy,seen_at,state');

-- Backfills and operations are audited when they begin and end, without their progress. Catch-ups are not audited,
-- because no user requested them.
create trigger audited_start after insert on backfills for each row when (new.cause = 'backfill')
  execute function audited('backfill', 'backfill_id', 'cursor,made,passed,made_at,total');
create trigger audited after update on backfills for each row
  when (new.cause = 'backfill' and old.state is distinct from new.state)
  execute function audited('backfill', 'backfill_id', 'cursor,made,passed,made_at,total');

create trigger audited_start after insert on operations for each row
  execute function audited('operation', 'operation_id', 'ids,position,cursor,paced_at');
create trigger audited after update on operations for each row when (old.state is distinct from new.state)
  execute function audited('operation', 'operation_id', 'ids,position,cursor,paced_at');

create trigger kept before update or delete on audit for each row execute function reject_change();
create trigger kept_whole before truncate on audit for each statement execute function reject_change();

create trigger kept before update or delete on audit_seals for each row execute function reject_change();
create trigger kept_whole before truncate on audit_seals for each statement execute function reject_change();
