-- compatible from 014
-- Secrets that arguments and HTTP targets refer to by name.
set local search_path to bellringer;

-- Values are encrypted with keys that the database never has, and bound to tenant and name: a row that is copied to
-- another tenant or name cannot be decrypted.
create table named_secrets (
  tenant_id  integer not null references tenants,
  name       text not null,
  version    integer not null default 1,        -- grows when the value changes
  key_id     text not null,                     -- of secret_keys
  sealed     bytea not null,
  tasks      text[] not null default '{}',      -- tasks whose runs may use the secret; empty: all
  origins    text[] not null default '{}',      -- origins to which HTTP targets may send it; empty: none
  note       text not null default '',
  created_at timestamptz not null,
  created_by text not null,
  changed_at timestamptz not null,
  changed_by text not null,
  primary key (tenant_id, name)
);
alter table named_secrets enable row level security;
create policy tenant_rows on named_secrets using (tenant_id = (select current_tenant()));
create trigger audited after insert or update or delete on named_secrets
  for each row execute function audited('named_secret', 'name', '');
