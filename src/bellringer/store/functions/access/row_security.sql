-- The role that serves tenants under row-level security. Roles belong to the whole server, so the role is named after
-- the database: a role that several installations share would give the owner of each access to the rows of all. A copy
-- of the database keeps the role of the original, so the body is written once and kept.
do $$
begin
  execute format('create or replace function tenant_role() returns text language sql immutable parallel safe as %L',
    coalesce(
    (select p.prosrc from pg_proc p where p.oid = to_regprocedure('bellringer.tenant_role()')),
    (select format('select %L', 'bellringer_tenant_' || d.oid) from pg_database d
      where d.datname = current_database())));
end $$;

-- Whether the current role may act as the tenants' role, and that role has its privileges.
create or replace function row_security_is_on() returns boolean language sql stable
  set search_path = bellringer, pg_temp as $$
  select case when pg_has_role(current_user, to_regrole(tenant_role()),
                               case when current_setting('server_version_num')::integer < 160000 then 'MEMBER'
                                 else 'SET' end)
              then has_schema_privilege(tenant_role(), 'bellringer', 'usage') else false end
$$;

-- Creates the tenants' role if the current role may, and grants what it needs: all privileges on the tables with rows
-- of tenants, and select on the tables that tenants share. Tables that are not named here are not accessible. Returns
-- whether row-level security is on.
--
-- `bellringer migrate` calls this function until row-level security is on: the owner of a database may not create
-- roles, so an administrator may create the role after the first migration.
create or replace function set_up_row_security() returns boolean language plpgsql
  set search_path = bellringer, pg_temp as $$
declare
  role  text := tenant_role();
  given text;
begin
  begin
    if to_regrole(role) is null then execute format('create role %I nologin', role); end if;
    execute format('grant %I to %I', role, current_user);
  exception when insufficient_privilege or invalid_grant_operation then
    null;                                                           -- reported by the return value
  end;
  if to_regrole(role) is null then return false; end if;
  for given in
    select format('grant %s on %s to',
                  case when c.relname in ('tenants', 'job_revisions', 'audit') then 'select'
                    else 'select, insert, update, delete' end,
                  c.oid::regclass)
    from pg_class c
    where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
      and c.relrowsecurity
    union all values
      ('grant usage on schema bellringer to'),
      ('grant usage on all sequences in schema bellringer to'),
      ('grant select on pools, tasks, schedules, cohorts, workers, tz_versions, tz_moves, tz_applied, recounts, '
       'audit_seals to'),
      ('grant select (only_row, shards, made_at) on cluster to'),
      ('grant select (shard, region) on leases to'),
      ('grant select (recovered_to, finished_at) on restores to')
  loop
    execute format('%s %I', given, role);
  end loop;
  return row_security_is_on();
end $$;
