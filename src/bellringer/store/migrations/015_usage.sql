-- Usage: what was started in which minute, and what the workers' time went to. Workers add to it with their heartbeats.
set local search_path to bellringer;

-- started and late are of the minute in which the runs were due, busy_ms and slots_ms of the minute in which the time was spent.
create table usage (
  minute    timestamptz not null,
  pool_id   smallint not null,
  tenant_id integer not null,                   -- 0: the pool itself, which has the slots
  started   bigint not null default 0,
  late      bigint not null default 0,          -- of them, those that started later than the tenant's objective allows
  busy_ms   bigint not null default 0,
  slots_ms  bigint not null default 0,
  primary key (minute, pool_id, tenant_id)
) with (fillfactor = 70);
create index usage_of_tenant on usage (tenant_id, minute);

-- What the pools did in some minutes: the time of one tenant, of all others together, and that of all slots. A tenant may ask
-- for its own only; what the others used is told as a sum, and by name only to who stands outside the walls.
create function usage_around(p_tenant integer, p_minutes timestamptz[], p_named boolean)
returns table (minute timestamptz, pool text, own_ms bigint, others_ms bigint, slots_ms bigint, names text[], shares bigint[])
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
  inside integer := nullif(current_setting('bellringer.tenant', true), '')::integer;
begin
  if inside <> p_tenant then
    raise insufficient_privilege using message = 'the usage of another tenant is not told';
  end if;
  return query
  select m.minute, p.name, coalesce(sum(u.busy_ms) filter (where u.tenant_id = p_tenant), 0)::bigint,
         coalesce(sum(u.busy_ms) filter (where u.tenant_id not in (0, p_tenant)), 0)::bigint,
         coalesce(sum(u.slots_ms), 0)::bigint, n.names, n.shares
  from unnest(p_minutes) m (minute)
  cross join lateral (                                   -- the pools in which the tenant's runs were due
    select o.pool_id from usage o where o.tenant_id = p_tenant and o.minute = m.minute and o.late > 0) w
  join pools p on p.pool_id = w.pool_id
  left join usage u on u.minute = m.minute and u.pool_id = w.pool_id
  left join lateral (
    select array_agg(x.name) as names, array_agg(x.busy_ms) as shares from (
      select t.name, b.busy_ms from usage b join tenants t on t.tenant_id = b.tenant_id
      where p_named and inside is null and b.minute = m.minute and b.pool_id = w.pool_id and b.busy_ms > 0 and b.tenant_id <> p_tenant
      order by b.busy_ms desc limit 5) x) n on true
  group by m.minute, p.name, n.names, n.shares
  order by m.minute, p.name;
end $$;
