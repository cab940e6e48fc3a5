-- The number of members of each cohort: a forecast multiplies schedules by it instead of reading all jobs.

-- The timers ahead of a tenant, by pool and second, among the first p_most of each shard.
create or replace function timers_ahead(p_tenant integer, p_from timestamptz, p_to timestamptz, p_most integer)
returns table (pool text, at timestamptz, fires bigint, until timestamptz)
language plpgsql stable security definer set search_path = bellringer, pg_temp as $$
#variable_conflict use_column
begin
  perform assert_tenant(p_tenant);
  return query
  with found as materialized (
    select timer.* from cluster
    cross join generate_series(0, cluster.shards - 1) given (shard)
    cross join lateral (
      select shard, due_at, tenant_id, pool_id, attempt, row_number() over (order by due_at) as place from timers
      where shard = given.shard and due_at >= p_from and due_at < p_to
      order by due_at limit p_most) timer),
  reach as materialized (select min(due_at) as until from found where place = p_most)
  select pool.name, date_trunc('second', found.due_at), count(*), reach.until from reach
  left join found on found.tenant_id = p_tenant and found.attempt = 0
    and (reach.until is null or found.due_at < reach.until)
  left join pools pool on pool.pool_id = found.pool_id
  group by 1, 2, 4;
end $$;

-- Counts the members of a shard again and corrects `cohort_sizes`. Returns the number of corrected rows.
create or replace function recount(p_shard smallint) returns integer
language plpgsql set search_path = bellringer, pg_temp set enable_seqscan = off set enable_mergejoin = off
  set jit = off as $$
declare n integer;
begin
  perform pg_advisory_xact_lock(LOCK_RECOUNT, p_shard);   -- two counts at once would wait for each other's rows
  with seen as materialized (
    select schedule_id, tenant_id, pool_id, count(*)::integer as members,
           count(*) filter (where jitter_ms > 0)::integer as jittered, max(jitter_ms) as jitter_ms
    from members
    where shard = p_shard
    group by 1, 2, 3),
  kept as materialized (
    select schedule_id, tenant_id, pool_id, members, jittered, jitter_ms from cohort_sizes where shard = p_shard),
  wrong as materialized (
    select schedule_id, tenant_id, pool_id, seen.members, seen.jittered, seen.jitter_ms from seen
    full join kept using (schedule_id, tenant_id, pool_id)
    where (seen.members, seen.jittered, seen.jitter_ms) is distinct from (kept.members, kept.jittered, kept.jitter_ms)),
  gone as (
    delete from cohort_sizes size
    using wrong
    where wrong.members is null and size.shard = p_shard and size.schedule_id = wrong.schedule_id
      and size.tenant_id = wrong.tenant_id and size.pool_id = wrong.pool_id),
  put as (
    insert into cohort_sizes (shard, schedule_id, tenant_id, pool_id, members, jittered, jitter_ms)
    select p_shard, schedule_id, tenant_id, pool_id, members, jittered, jitter_ms from wrong
    where members is not null on conflict (shard, schedule_id, tenant_id, pool_id) do update
    set members = excluded.members, jittered = excluded.jittered, jitter_ms = excluded.jitter_ms)
  select count(*) into n from wrong;
  insert into recounts (shard, counted_at) values (p_shard, bellringer.now())
  on conflict (shard) do update set counted_at = excluded.counted_at;
  return n;
end $$;
