-- The newest dead letters before (b_died, b_job, b_at, b_slot). Reads at most p_scan dead letters; scanned and stop_*
-- are those of list_runs.
create or replace function list_dead_letters(
  p_tenant integer, p_fingerprint text, p_job uuid, p_task text, b_died timestamptz, b_job uuid, b_at timestamptz,
  b_slot bigint, p_scan integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, died_at timestamptz, scanned bigint,
               stop_died timestamptz, stop_job uuid, stop_at timestamptz, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
declare
  f_task integer := task_id_of(p_task);
begin
  perform filter_of(p_tenant, '{}');
  return query
  with seen as materialized (
    select listed.*,
           row_number() over (order by listed.died_at desc, listed.job_id desc, listed.scheduled_for desc,
                              listed.slot desc) as nth
    from (
      (select dead_letter.job_id, dead_letter.scheduled_for, dead_letter.slot, dead_letter.died_at, dead_letter.task_id
       from dead_letters dead_letter
       where p_fingerprint is null and dead_letter.tenant_id = p_tenant
         and (b_died is null
              or (dead_letter.died_at <= b_died
                  and (dead_letter.died_at, dead_letter.job_id, dead_letter.scheduled_for,
                       dead_letter.slot) < (b_died, b_job, b_at, b_slot)))
       order by dead_letter.died_at desc, dead_letter.job_id desc, dead_letter.scheduled_for desc, dead_letter.slot desc
       limit p_scan)
      union all
      (select dead_letter.job_id, dead_letter.scheduled_for, dead_letter.slot, dead_letter.died_at, dead_letter.task_id
       from dead_letters dead_letter
       where dead_letter.fingerprint = p_fingerprint and dead_letter.tenant_id = p_tenant
         and (b_died is null
              or (dead_letter.died_at <= b_died
                  and (dead_letter.died_at, dead_letter.job_id, dead_letter.scheduled_for,
                       dead_letter.slot) < (b_died, b_job, b_at, b_slot)))
       order by dead_letter.died_at desc, dead_letter.job_id desc, dead_letter.scheduled_for desc, dead_letter.slot desc
       limit p_scan)) listed
    order by nth limit p_scan),
  kept as materialized (
    select seen.* from seen
    where (p_job is null or seen.job_id = p_job) and (p_task is null or seen.task_id = f_task) limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select kept.job_id, kept.scheduled_for, kept.slot, kept.died_at, coalesce(tail.nth, (select count(*) from seen)),
         seen.died_at, seen.job_id, seen.scheduled_for, seen.slot
  from tail
  left join seen on seen.nth = tail.nth
  left join kept on true
  order by kept.nth;
end $$;

-- Groups of dead letters with the same fingerprint, after p_after. The groups are found by a skip scan of the index. A
-- group is counted up to p_counted dead letters; its reason, error and examples come from the newest 20.
create or replace function group_dead_letters(p_tenant integer, p_after text, p_limit integer, p_counted integer)
returns table (fingerprint text, count bigint, first_died timestamptz, last_died timestamptz, reason text, error jsonb,
               job_ids uuid[], ats timestamptz[], slots bigint[])
language plpgsql stable security definer set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  perform filter_of(p_tenant, '{}');
  return query
  with recursive fingerprints (fingerprint) as (
    (select dead_letter.fingerprint from dead_letters dead_letter
     where dead_letter.tenant_id = p_tenant and dead_letter.fingerprint > coalesce(p_after, '')
     order by dead_letter.fingerprint limit 1)
    union all
    select (select dead_letter.fingerprint from dead_letters dead_letter
            where dead_letter.tenant_id = p_tenant and dead_letter.fingerprint > fingerprints.fingerprint
            order by dead_letter.fingerprint limit 1)
    from fingerprints
    where fingerprints.fingerprint is not null),
  picked as materialized (
    select fingerprints.fingerprint from fingerprints where fingerprints.fingerprint is not null limit p_limit)
  select picked.fingerprint,
         (select count(*)
          from (
            select 1 from dead_letters dead_letter
            where dead_letter.tenant_id = p_tenant and dead_letter.fingerprint = picked.fingerprint
            limit p_counted) dead_letter),
         (select dead_letter.died_at from dead_letters dead_letter
          where dead_letter.tenant_id = p_tenant and dead_letter.fingerprint = picked.fingerprint
          order by dead_letter.died_at limit 1),
         newest.died_ats[1], newest.reasons[1], newest.errors[1], newest.job_ids, newest.ats, newest.slots
  from picked
  cross join lateral (
    select array_agg(dead_letter.died_at) as died_ats, array_agg(dead_letter.reason) as reasons,
           array_agg(dead_letter.error) as errors, array_agg(dead_letter.job_id) as job_ids,
           array_agg(dead_letter.scheduled_for) as ats, array_agg(dead_letter.slot) as slots
    from (
      select * from dead_letters dead_letter
      where dead_letter.tenant_id = p_tenant and dead_letter.fingerprint = picked.fingerprint
      order by dead_letter.died_at desc limit 20) dead_letter) newest
  order by picked.fingerprint;
end $$;
