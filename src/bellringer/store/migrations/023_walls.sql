-- The second wall between tenants: row-level security. Every statement names its tenant by itself; should one forget, the role
-- that serves tenants still sees only the rows of the one that its connection was told of. Runs last, so that it finds all
-- tables. The owner (schedulers, workers, migrations) passes, and so do functions that are `security definer`; those say whose
-- rows they want by own().
set local search_path to bellringer;

-- What an explanation tells of others' rows: a number and a name, not the rows.
create function places_taken(p_pool smallint, p_workers integer[]) returns bigint
language sql stable security definer set search_path = bellringer, pg_temp as
$$ select count(*) from queue q where q.pool_id = p_pool and q.worker_id = any (p_workers) $$;

-- A pool's own bounds, and how far they are used up; none, where it has none.
create function bounds_of(p_pool smallint)
returns table (concurrency integer, under_way bigint, rate double precision, credit double precision)
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select p.concurrency,
         case when p.concurrency is not null then under_way(p) end,
         p.rate, case when p.rate is not null then credit_of(p) end
  from pools p where p.pool_id = p_pool and (p.concurrency is not null or p.rate is not null)
$$;

create function scheduler_of(p_shard smallint) returns text
language sql stable security definer set search_path = bellringer, pg_temp as $$
  select coalesce(n.name, l.holder::text) from leases l left join nodes n on n.node_id = l.holder
  where l.shard = p_shard and l.holder is not null and l.expires_at > clock_timestamp()
$$;

create index calendars_of_digest on calendars (digest);

-- A policy for each table with rows of tenants. Runs, limits and graphs are asked for by their keys, and listed by functions that
-- pass or by statements that name the tenant: there `+ 0` keeps the policy a mere filter, or on a day without statistics the planner
-- reads a whole herd by the tenant's index. Elsewhere lists of the tenant want that index; with `+ 0` they would be taken for tiny, and
-- sorted. What a row belongs to is looked up by its key (`offset 0`), and not made a hash of all that the tenant has. See
-- tests/store/test_plans_walls.py.
do $$
declare
  t    record;
  rule text;
begin
  for t in
    select c.oid::regclass as name, c.relname,
           exists (select 1 from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped) as has_tenant
    from pg_class c where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  loop
    rule := case when t.relname in ('runs', 'attempts', 'queue', 'timers', 'limits', 'graphs') then 'tenant_id + 0 = (select bellringer.told())'
                 when t.has_tenant then 'tenant_id = (select bellringer.told())' else case t.relname
      when 'job_revisions' then 'exists (select 1 from bellringer.jobs j where j.job_id = job_revisions.job_id offset 0)'
      when 'gaps' then 'exists (select 1 from bellringer.jobs j where j.job_id = gaps.job_id offset 0)'
      when 'flow_nodes' then 'exists (select 1 from bellringer.flows f where f.flow_id = flow_nodes.flow_id offset 0)'
      when 'graph_nodes' then 'exists (select 1 from bellringer.graphs g where g.graph_id = graph_nodes.graph_id offset 0)'
      when 'graph_edges' then 'exists (select 1 from bellringer.graphs g where g.graph_id = graph_edges.graph_id offset 0)'
      when 'signals' then 'exists (select 1 from bellringer.flows f where f.flow_id = signals.flow_id offset 0)'
      when 'days_off' then 'exists (select 1 from bellringer.calendars c where c.digest = days_off.digest offset 0)'
      when 'logs' then 'exists (select 1 from bellringer.runs r where r.job_id = logs.job_id '
                       'and r.scheduled_for = logs.scheduled_for and r.slot = logs.slot offset 0)' end end;
    continue when rule is null;
    execute format('alter table %s enable row level security', t.name);
    execute format('create policy wall on %s using (%s)', t.name, rule);
  end loop;
end $$;

-- Roles belong to the whole server, so this one is named after the database: one that installations share would let the owner of
-- each into the rows of all. A copy of the database keeps the role of the first. Where we may not make it, there is no second
-- wall, and the server says so.
do $$
begin
  execute format('create function tenant_role() returns text language sql immutable parallel safe as %L',
                 (select format('select %L', 'bellringer_tenant_' || oid) from pg_database where datname = current_database()));
end $$;
do $$
begin
  if to_regrole(tenant_role()) is null then execute format('create role %I nologin', tenant_role()); end if;
exception when insufficient_privilege then
  null;
end $$;
do $$
begin
  if to_regrole(tenant_role()) is not null then execute format('grant %I to %I', tenant_role(), current_user); end if;
exception when insufficient_privilege or invalid_grant_operation then
  null;
end $$;

-- Functions that pass the wall are for tenants only where they are told for whom, or tell nothing of anybody; the others of them
-- are parts of these.
do $$
declare f record;
begin
  for f in
    select p.oid::regprocedure as name from pg_proc p
    where p.pronamespace = 'bellringer'::regnamespace and p.prosecdef
      and not coalesce(p.proargnames && array['p_tenant', 'p_jobs'], false)
      and p.proname not in ('ensure_days', 'places_taken', 'bounds_of', 'scheduler_of', 'waited_for')
  loop
    execute format('revoke execute on function %s from public', f.name);
  end loop;
end $$;

-- What the role may do: all with the rows of its tenant, and read the words that all share. What is not named here is closed.
do $$
declare g text;
begin
  if to_regrole(tenant_role()) is null then return; end if;
  for g in
    select format('grant select, insert, update, delete on %s to', c.oid::regclass) from pg_class c
    where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and c.relrowsecurity
    union all values
      ('grant usage on schema bellringer to'),
      ('grant usage on all sequences in schema bellringer to'),
      ('grant select on pools, tasks, schedules, cohorts, workers, tz_versions, tz_moves, tz_applied, recounts, audit_seals to'),
      ('grant select (only_row, shards, made_at) on cluster to'),
      ('grant select (shard, region) on leases to')
  loop
    execute format('%s %I', g, tenant_role());
  end loop;
  execute format('revoke insert, update, delete on tenants, job_revisions, audit from %I', tenant_role());
end $$;
