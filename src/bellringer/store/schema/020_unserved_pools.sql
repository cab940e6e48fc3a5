-- compatible from 014
-- Tenants whose runs wait long in a pool that has no live worker, or only busy ones.
set local search_path to bellringer;

-- Each with the run that has waited longest. A row stays until no run of the tenant waits long, so that it is reported
-- once.
create table unserved_pools (
  tenant_id     integer not null,
  pool_id       smallint not null,
  reason        text not null,                  -- no_worker, busy
  since         timestamptz not null,           -- when the run should have started
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  task_id       integer not null,
  primary key (tenant_id, pool_id)
);
alter table unserved_pools enable row level security;
create policy tenant_rows on unserved_pools using (tenant_id = (select current_tenant()));
