-- Raises BR003 if a tenant exceeds a quota. The caller took the tenant's quota lock before it counted, so no other
-- transaction counts at the same time.
create or replace function check_quota(p_tenant integer, p_quota text) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  most float8 := (select (quotas ->> p_quota)::float8 from tenants where tenant_id = p_tenant);
  has  float8 := (select sum(case p_quota when 'jobs' then jobs else fires_per_minute end) from job_counts
    where tenant_id = p_tenant);
begin
  if has > most + 1e-6 then
    raise exception 'quota of % exceeded', p_quota using errcode = 'BR003',
      detail = jsonb_build_object('quota', p_quota, 'most', most)::text;
  end if;
end $$;

-- How often a job with these schedules or this delay fires in a minute. It returns a table of one row so that the
-- planner inlines it; a scalar function would be called, which costs 20 µs for each batch.
create or replace function fires_of(
  p_schedules integer[], p_delay interval) returns table (fires double precision) language sql stable as $$
  select coalesce(60 / nullif(extract(epoch from p_delay)::float8, 0), 0)
       + coalesce((select sum(s.fires_per_minute) from bellringer.schedules s where s.schedule_id = any (p_schedules)),
         0)
$$;

-- Adds p_grown to job_counts, and checks the quotas of tenants that have grown; a decrease is never refused. Locks, in
-- this order: the quota locks of tenants that have a quota, rows of job_counts in key order.
create or replace function count_jobs(p_grown job_growth[]) returns void
language plpgsql security definer set search_path = bellringer, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  bound integer[] := array(
    select tenant.tenant_id from tenants tenant where tenant.tenant_id = any (array(select distinct growth.tenant_id
      from unnest(p_grown) growth))
      and tenant.quotas ?| array['jobs', 'fires_per_minute'] order by 1);
  grown integer[];
  t     integer;
begin
  foreach t in array bound loop
    perform pg_advisory_xact_lock(LOCK_QUOTA, t);
  end loop;
  insert into job_counts as counted (tenant_id, shard, jobs, fires_per_minute)
  select growth.tenant_id, growth.shard, growth.jobs, growth.fires from unnest(p_grown) growth order by 1, 2
  on conflict (tenant_id, shard) do update
    set jobs = counted.jobs + excluded.jobs, fires_per_minute = counted.fires_per_minute + excluded.fires_per_minute;
  if bound = '{}' then return; end if;
  select array_agg(growth.tenant_id * growth.sign) into grown
  from (
    select tenant_id,
           unnest(array_remove(array[case when sum(jobs) > 0 then 1 end, case when sum(fires) > 0 then -1 end],
                               null)) as sign
    from unnest(p_grown)
    where tenant_id = any (bound)
    group by 1) growth;
  foreach t in array coalesce(grown, '{}') loop            -- negative: the fires per minute have grown
    perform check_quota(abs(t), case when t > 0 then 'jobs' else 'fires_per_minute' end);
  end loop;
end $$;

-- Counts the jobs that register creates, by batch and not by row: counting thousands of rows would cost a tenth of
-- writing them. All jobs of a transaction are counted under one number (`place`), so that two transactions that create
-- many jobs cannot deadlock.
create or replace function count_new_jobs(p_batches job_batch[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  place smallint := pg_current_xact_id()::text::bigint % 64;
begin
  perform count_jobs(counted.grown)
  from (
    select array(
             select row(template.tenant_id, place, sum(size.jobs),
                        sum(case when template.enabled then size.jobs * rate.fires else 0 end))::job_growth
             from unnest(p_batches) batch
             cross join lateral (select (batch.template).*) template
             cross join lateral (select jsonb_array_length(batch.jobs) as jobs) size
             cross join lateral fires_of(template.schedule_ids, template.delay) rate
             where batch.expected = 0
             group by template.tenant_id) as grown) counted
  where cardinality(counted.grown) > 0;
end $$;
