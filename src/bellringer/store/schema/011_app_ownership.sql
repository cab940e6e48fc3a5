-- compatible from 007
-- Apps: the programs whose code declares jobs, the versions of each, and the jobs that belong to them.
set local search_path to bellringer;

-- The row is the lock of everything that an app declares: its declarations run one after the other.
create table apps (
  app_id      integer generated always as identity primary key,
  tenant_id   integer not null references tenants,
  name        text not null,
  version     text not null,                    -- the current version, whose declaration applies; '': without version
  number      integer not null,                 -- of the current version; the highest in app_versions
  orphans     text not null check (orphans in ('keep', 'pause', 'delete')), -- jobs that the code no longer declares
  created_at  timestamptz not null,
  created_by  text not null,
  declared_at timestamptz not null,             -- of the latest declaration; at most a minute older
  unique (tenant_id, name)
);

-- Versions in the order in which they were first seen. A version that is activated again gets the next number.
create table app_versions (
  app_id        integer not null references apps on delete cascade,
  version       text not null,
  tenant_id     integer not null,
  number        integer not null,
  first_seen_at timestamptz not null,
  activated_at  timestamptz,
  activated_by  text,
  primary key (app_id, version)
);
create index app_versions_newest on app_versions (app_id, number);

alter table jobs
  add app_id            integer,                -- the app that declared it last
  add declared_revision integer,                -- the revision that the app's last declaration made or confirmed
  add declared_enabled  boolean,                -- `enabled` as that declaration had it; operators may change it
  add orphaned_at       timestamptz,            -- since when its app no longer declares it
  add orphaned_version  text,                   -- the last version that declared it; null: not known
  add orphan_paused_by  text;                   -- paused_by of the pause that the app's orphan policy made
create index jobs_of_app on jobs (app_id, job_id)
  where app_id is not null and orphaned_at is null and deleted_at is null;
create index jobs_orphaned_of_app on jobs (app_id, job_id) where orphaned_at is not null and deleted_at is null;
create index jobs_orphaned on jobs (tenant_id, job_id) where orphaned_at is not null and deleted_at is null;
create index jobs_orphaned_by_name on jobs (tenant_id, name_key) where orphaned_at is not null and deleted_at is null;

create trigger audited after insert or update or delete on apps
  for each row execute function audited('app', 'name', 'declared_at,number');

-- Both are found by their keys, see 007_row_security.sql.
alter table apps enable row level security;
create policy tenant_rows on apps using (tenant_id + 0 = (select current_tenant()));
alter table app_versions enable row level security;
create policy tenant_rows on app_versions using (tenant_id + 0 = (select current_tenant()));

-- A database that has row-level security already does not set it up again.
do $$
begin
  if to_regprocedure('bellringer.tenant_role()') is null then return; end if;   -- a new database
  if to_regrole(bellringer.tenant_role()) is null then return; end if;
  execute format('grant select, insert, update, delete on bellringer.apps, bellringer.app_versions to %I',
                 bellringer.tenant_role());
  execute format('grant usage on all sequences in schema bellringer to %I', bellringer.tenant_role());
end $$;
