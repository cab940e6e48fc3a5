-- Least privilege: API servers, schedulers and workers may connect with roles of their own, which own nothing. An
-- administrator creates the roles (`bellringer roles sql`); the owner of the schema grants what they need here. The
-- groups are named after the database, as the tenants' role is.
create or replace function service_role(p_kind text) returns text language sql stable
  set search_path = bellringer, pg_temp as
$$ select replace(tenant_role(), 'bellringer_tenant', 'bellringer_' || p_kind) $$;

-- The privileges of a kind of process (api, scheduler, worker) on a table. Workers execute code of users, so they see
-- no credentials and no audit, and of named secrets only ciphertexts, which they decrypt for a run. The records of
-- migrations belong to the owner.
create or replace function service_privileges(p_kind text, p_table text) returns text language sql immutable as $$
  select case
    when p_table in ('migrations', 'applied_functions', 'upgrades') then 'select'
    when p_table = 'secrets' and p_kind = 'scheduler'      -- it deletes what nothing needs any more
      then 'select (tenant_id, secret_id, needed_until, changed_at), delete'
    when p_table in ('api_keys', 'secrets') and p_kind <> 'api' then null
    when p_table = 'named_secrets' and p_kind = 'worker' then 'select'
    when p_table = 'named_secrets' and p_kind = 'scheduler' then null
    when p_table = 'tenants' and p_kind <> 'api' then 'select'
    when p_table in ('notification_channels', 'notification_routes') and p_kind = 'scheduler' then 'select'
    when p_table in ('audit', 'audit_seals', 'idempotency_keys', 'webhook_endpoints', 'deliveries', 'checkins',
      'checkin_pings', 'notification_channels', 'notification_routes', 'notification_incidents', 'notifications',
      'notification_position') and p_kind = 'worker' then null
    when p_table = 'audit' and p_kind = 'api' then 'select, insert'
    when p_table = 'cluster' and p_kind = 'worker' then 'select (only_row, name, shards, made_at)'
    when p_table = 'cluster' then 'select'
    else 'select, insert, update, delete'
  end
$$;

-- Grants the groups that exist what they need, and lets them see the rows of all tenants. Returns how many exist.
-- `bellringer migrate` calls this function every time, because an administrator may create the roles at any time and
-- migrations add tables. A policy is only created where it is missing: that locks the table.
create or replace function set_up_service_roles() returns integer language plpgsql
  set search_path = bellringer, pg_temp as $$
declare
  kind    text;
  role    text;
  named   record;
  known   integer := 0;
  policy  text;
begin
  foreach kind in array array['api', 'scheduler', 'worker'] loop
    role := service_role(kind);
    continue when to_regrole(role) is null;
    known := known + 1;
    policy := kind || '_rows';
    execute format('grant usage on schema bellringer to %I', role);
    execute format('grant usage on all sequences in schema bellringer to %I', role);
    for named in
      select c.oid::regclass as name, c.relrowsecurity as has_policies,
             service_privileges(kind, c.relname) as privileges
      from pg_class c
      where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    loop
      execute format('revoke all on %s from %I', named.name, role);
      if named.privileges is not null then
        execute format('grant %s on %s to %I', named.privileges, named.name, role);
      end if;
      if named.has_policies and named.privileges is not null
         and not exists (select 1 from pg_policy p where p.polrelid = named.name and p.polname = policy) then
        execute format('create policy %I on %s to %I using (true)', policy, named.name, role);
      end if;
    end loop;
    for named in
      select p.oid::regprocedure as name from pg_proc p
      where p.pronamespace = 'bellringer'::regnamespace
        and p.proname not in ('set_up_row_security', 'set_up_service_roles', 'set_shard_count')
        and (kind = 'scheduler' or p.proname not in ('drop_day', 'detach_day', 'drop_batch', 'trim_day',
          'open_trim_batch'))
    loop
      execute format('grant execute on function %s to %I', named.name, role);
    end loop;
  end loop;
  return known;
end $$;
