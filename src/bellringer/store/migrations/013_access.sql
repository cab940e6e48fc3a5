-- Who may come in, and how much a tenant may have.
set local search_path to bellringer;

-- Signs what callers carry for us, such as cursors. The same on all nodes, and for good.
alter table cluster add column secret bytea not null
  default sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'utf8'));

-- A key of the whole installation has no tenant, so no tenant's eyes fall on it.
create table api_keys (
  key_id       text primary key,
  tenant_id    integer references tenants,
  name         text not null,
  hash         bytea not null,                   -- of the secret; the secret itself is shown once and not kept
  role         text not null check (role in ('viewer', 'operator', 'editor', 'admin')),
  scopes       text[] not null default '{}',     -- tags of the operations that it may use; none: all
  created_by   text not null,
  created_at   timestamptz not null default pg_catalog.now(),
  expires_at   timestamptz,
  revoked_at   timestamptz,
  last_used_at timestamptz,                      -- to the minute
  replaced_by  text
);
create index api_keys_tenant on api_keys (tenant_id, created_at, key_id);

-- How often a schedule fires on average, as whoever interned it has counted.
alter table schedules add column fires_per_minute double precision not null default 0;

-- What a tenant has of what quotas count. In several rows, so that those who create at once rarely meet; only their sum tells
-- something: a job may be counted in one when it is created, and in that of its shard when it is deleted.
create table job_counts (
  tenant_id        integer not null references tenants,
  shard            smallint not null,
  jobs             bigint not null,
  fires_per_minute double precision not null,    -- of the jobs that are neither paused nor disabled
  primary key (tenant_id, shard)
) with (fillfactor = 50);

-- Whether a tenant has more now than it may. Its lock was taken before anything was counted, so nobody counts beside us.
create function check_quota(p_tenant integer, p_quota text) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  most float8 := (select (quotas ->> p_quota)::float8 from tenants where tenant_id = p_tenant);
  has  float8 := (select sum(case p_quota when 'jobs' then jobs else fires_per_minute end) from job_counts where tenant_id = p_tenant);
begin
  if has > most + 1e-6 then
    raise exception 'quota of % exceeded', p_quota using errcode = 'BR003', detail = jsonb_build_object('quota', p_quota, 'most', most)::text;
  end if;
end $$;

-- What a statement did to the jobs of a shard: how many more there are than before, and how many fires a minute more.
create type job_growth as (tenant_id integer, shard smallint, jobs bigint, fires double precision);

-- How often a job of these schedules, or with that delay, fires in a minute. A table of one row, which becomes a part of the
-- statement that asks: a plain function would be called, at 20 µs for each kind of job in a bulk.
create function fires_of(p_schedules integer[], p_delay interval) returns table (fires double precision) language sql stable as $$
  select coalesce(60 / nullif(extract(epoch from p_delay)::float8, 0), 0)
       + coalesce((select sum(s.fires_per_minute) from bellringer.schedules s where s.schedule_id = any (p_schedules)), 0)
$$;

-- Counts what a statement did to jobs: one upsert, in the order of the shards, so that two of these never wait for each
-- other. Only tenants with a quota take their lock, and before their rows. What makes less of something is never refused.
create function count_jobs(p_grown job_growth[]) returns void
language plpgsql security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  bound integer[] := array(
    select t.tenant_id from tenants t where t.tenant_id = any (array(select distinct g.tenant_id from unnest(p_grown) g))
      and t.quotas ?| array['jobs', 'fires_per_minute'] order by 1);
  grown integer[];
  t     integer;
begin
  foreach t in array bound loop
    perform pg_advisory_xact_lock(83, t);
  end loop;
  insert into job_counts as c (tenant_id, shard, jobs, fires_per_minute)
  select g.tenant_id, g.shard, g.jobs, g.fires from unnest(p_grown) g order by 1, 2
  on conflict (tenant_id, shard) do update
    set jobs = c.jobs + excluded.jobs, fires_per_minute = c.fires_per_minute + excluded.fires_per_minute;
  if bound = '{}' then return; end if;
  select array_agg(g.tenant_id * g.sign) into grown from (
    select tenant_id, unnest(array_remove(array[case when sum(jobs) > 0 then 1 end, case when sum(fires) > 0 then -1 end], null)) as sign
    from unnest(p_grown) where tenant_id = any (bound) group by 1) g;
  foreach t in array coalesce(grown, '{}') loop            -- below 0: its fires have grown
    perform check_quota(abs(t), case when t > 0 then 'jobs' else 'fires_per_minute' end);
  end loop;
end $$;

-- Counts the jobs that registration creates: new ones by kind, as they were sent, since to count thousands of rows costs a tenth of
-- what it costs to write them. All are counted in one place, the same for a whole transaction, so that two that create much do
-- not wait for each other in a ring.
create function count_new_jobs(p_kinds kind[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  place smallint := pg_current_xact_id()::text::bigint % 64;
begin
  perform count_jobs(s.grown) from (select array(
    select row(k.tenant_id, place, sum(n.jobs), sum(case when k.enabled then n.jobs * f.fires else 0 end))::job_growth
    from unnest(p_kinds) k cross join lateral (select jsonb_array_length(k.jobs) as jobs) n
    cross join lateral fires_of(k.schedule_ids, k.delay) f
    where k.expected = 0 group by k.tenant_id) as grown) s
  where cardinality(s.grown) > 0;
end $$;

create function count_changed_jobs() returns trigger
language plpgsql security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
  perform count_jobs(s.grown) from (select array(
    select row(k.tenant_id, k.shard, sum(k.jobs), sum(k.active * f.fires))::job_growth
    from (select tenant_id, shard, schedule_ids, delay, sum(sign) as jobs,
                 coalesce(sum(sign) filter (where paused_at is null and enabled), 0) as active
          from (select tenant_id, shard, schedule_ids, delay, deleted_at, paused_at, enabled, 1 as sign from after
                union all
                select tenant_id, shard, schedule_ids, delay, deleted_at, paused_at, enabled, -1 from before) j
          where deleted_at is null group by tenant_id, shard, schedule_ids, delay) k
    cross join lateral fires_of(k.schedule_ids, k.delay) f
    where k.jobs <> 0 or k.active <> 0 group by k.tenant_id, k.shard) as grown) s
  where cardinality(s.grown) > 0;
  return null;
end $$;

-- On the table itself, so that whoever changes, pauses, resumes or deletes a job cannot forget it; only registration creates one.
create trigger count_changed after update on jobs referencing old table as before new table as after
  for each statement execute function count_changed_jobs();
