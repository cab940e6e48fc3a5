-- Usage of the pools in the given minutes: the busy time of one tenant, of all other tenants together, and of all
-- slots. A connection that serves a tenant may ask only for that tenant; the names of the other tenants are returned
-- only to connections that serve none (p_named).
create or replace function usage_around(p_tenant integer, p_minutes timestamptz[], p_named boolean)
returns table (minute timestamptz, pool text, own_ms bigint, others_ms bigint, slots_ms bigint, names text[],
               shares bigint[])
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
#variable_conflict use_column
declare
  inside integer := nullif(current_setting('bellringer.tenant', true), '')::integer;
begin
  if inside <> p_tenant then
    raise insufficient_privilege using message = 'the usage of another tenant is not visible';
  end if;
  return query
  select given.minute, pool.name, coalesce(sum(total.busy_ms) filter (where total.tenant_id = p_tenant), 0)::bigint,
         coalesce(sum(total.busy_ms) filter (where total.tenant_id not in (0, p_tenant)), 0)::bigint,
         coalesce(sum(total.slots_ms), 0)::bigint, others.names, others.shares
  from unnest(p_minutes) given (minute)
  cross join lateral (                                   -- pools in which runs of the tenant were late or missed
    select used.pool_id from usage used
    where used.tenant_id = p_tenant and used.minute = given.minute and used.late + used.missed > 0) affected
  join pools pool on pool.pool_id = affected.pool_id
  left join usage total on total.minute = given.minute and total.pool_id = affected.pool_id
  left join lateral (
    select array_agg(top.name) as names, array_agg(top.busy_ms) as shares
    from (
      select tenant.name, used.busy_ms from usage used
      join tenants tenant on tenant.tenant_id = used.tenant_id
      where p_named and inside is null and used.minute = given.minute and used.pool_id = affected.pool_id
        and used.busy_ms > 0 and used.tenant_id <> p_tenant
      order by used.busy_ms desc limit 5) top) others on true
  group by given.minute, pool.name, others.names, others.shares
  order by given.minute, pool.name;
end $$;
