-- compatible from 014
-- When leases were granted, a log of their moves, and discarded dead letters that can be restored.
set local search_path to bellringer;

alter table leases add column acquired_at timestamptz;   -- null: free, or granted before this column existed

-- Each change of a shard's holder, for the console and for incidents. Pruned after two days.
create table lease_moves (
  move_id       bigint generated always as identity primary key,
  at            timestamptz not null,
  shard         smallint not null,
  cause         text not null,                  -- acquired, expired, replaced or released
  holder        uuid,                           -- null: released
  node          text,                           -- the name of the holder at that time
  previous      uuid,
  previous_node text,
  token         bigint not null
);
create index lease_moves_at on lease_moves (at);

-- Only grants and releases set the column `holder`, so renewals do not fire this trigger.
create trigger lease_moved before update of holder on leases
  for each row execute function record_lease_move();

-- Dead letters that were discarded within the last day. `restore_discarded` moves them back.
create table discarded_dead_letters (
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
  resume_from   jsonb,
  discarded_at  timestamptz not null,
  discarded_by  text,                           -- null: not by a request
  operation_id  bigint,                         -- the operation that discarded it; null: none
  primary key (job_id, scheduled_for, slot)
);
create index discarded_dead_letters_newest
  on discarded_dead_letters (tenant_id, discarded_at, job_id, scheduled_for, slot);
create index discarded_dead_letters_day on discarded_dead_letters (scheduled_for);
create index discarded_dead_letters_of_operation on discarded_dead_letters (tenant_id, operation_id)
  where operation_id is not null;
alter table discarded_dead_letters enable row level security;
create policy tenant_rows on discarded_dead_letters using (tenant_id = (select current_tenant()));
