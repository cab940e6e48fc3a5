-- How many members each cohort has, so that a forecast counts schedules and not jobs.
set local search_path to bellringer;

-- The timers ahead of a tenant, by pool and second, among the first p_most of each shard.
create function timers_ahead(p_tenant integer, p_from timestamptz, p_to timestamptz, p_most integer)
returns table (pool text, at timestamptz, fires bigint, until timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
#variable_conflict use_column
begin
  perform own(p_tenant);
  return query
  with found as materialized (
    select t.* from cluster c cross join generate_series(0, c.shards - 1) s (shard) cross join lateral (
      select shard, due_at, tenant_id, pool_id, attempt, row_number() over (order by due_at) as place
      from timers where shard = s.shard and due_at >= p_from and due_at < p_to order by due_at limit p_most) t),
  reach as materialized (select min(due_at) as until from found where place = p_most)
  select p.name, date_trunc('second', f.due_at), count(*), r.until
  from reach r left join found f on f.tenant_id = p_tenant and f.attempt = 0 and (r.until is null or f.due_at < r.until)
  left join pools p on p.pool_id = f.pool_id group by 1, 2, 4;
end $$;

-- Count one shard's members anew; answers how many rows were wrong. Only those are written.
create function recount(p_shard smallint) returns integer
language plpgsql set search_path = bellringer, pg_temp set enable_seqscan = off set enable_mergejoin = off as $$
declare n integer;
begin
  perform pg_advisory_xact_lock(79, p_shard);   -- two counts at once would wait for each other's rows
  with seen as materialized (
    select schedule_id, tenant_id, pool_id, count(*)::integer as members, count(*) filter (where jitter_ms > 0)::integer as jittered,
           max(jitter_ms) as jitter_ms
    from members where shard = p_shard group by 1, 2, 3),
  kept as materialized (
    select schedule_id, tenant_id, pool_id, members, jittered, jitter_ms from cohort_sizes where shard = p_shard),
  wrong as materialized (
    select schedule_id, tenant_id, pool_id, s.members, s.jittered, s.jitter_ms
    from seen s full join kept k using (schedule_id, tenant_id, pool_id)
    where (s.members, s.jittered, s.jitter_ms) is distinct from (k.members, k.jittered, k.jitter_ms)),
  gone as (
    delete from cohort_sizes c using wrong w
    where w.members is null and c.shard = p_shard and c.schedule_id = w.schedule_id and c.tenant_id = w.tenant_id
      and c.pool_id = w.pool_id),
  put as (
    insert into cohort_sizes (shard, schedule_id, tenant_id, pool_id, members, jittered, jitter_ms)
    select p_shard, schedule_id, tenant_id, pool_id, members, jittered, jitter_ms from wrong where members is not null
    on conflict (shard, schedule_id, tenant_id, pool_id)
    do update set members = excluded.members, jittered = excluded.jittered, jitter_ms = excluded.jitter_ms)
  select count(*) into n from wrong;
  insert into recounts (shard, counted_at) values (p_shard, bellringer.now())
  on conflict (shard) do update set counted_at = excluded.counted_at;
  return n;
end $$;
