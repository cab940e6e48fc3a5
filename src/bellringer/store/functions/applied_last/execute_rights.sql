-- Functions that bypass row-level security (security definer) may be called by the tenants' role only if they take the
-- tenant as an argument, which they compare with the tenant of the connection, or if they return nothing about a
-- tenant. All other such functions are called by these, and are closed. `create or replace` keeps earlier privileges,
-- so both cases are set.
do $$
declare f record;
begin
  for f in
    select p.oid::regprocedure as name, p.proacl is not null as has_rights,
           p.proname in ('set_up_row_security', 'set_up_service_roles') or p.prosecdef
             and not coalesce(p.proargnames && array['p_tenant', 'p_jobs'], false)
             and p.proname not in ('ensure_days', 'slots_taken', 'pool_limits', 'scheduler_of',
               'component_waited_for') as is_closed
    from pg_proc p where p.pronamespace = 'bellringer'::regnamespace
  loop
    if f.is_closed then
      execute format('revoke execute on function %s from public', f.name);
    elsif f.has_rights then
      execute format('grant execute on function %s to public', f.name);
    end if;
  end loop;
end $$;
