-- Turns due occurrences of cohorts into runs.
--
-- Guarantee: each active member of a fired cohort gets exactly one row in `runs` for the occurrence (queued, blocked
-- or skipped), or a gap if the occurrence is later than p_grace and the job skips what is late. The cohort moves on in
-- the same transaction, so a crash leaves no occurrence half fired.
--
-- Locks, in this order: the advisory locks of the shards, exclusive; the rows of their leases, shared (`fence`); the
-- latest unfinished run of each job that does not allow overlap, shared, skipping rows that are locked. Whoever
-- settles that run comes after this call and unblocks what waits for it. A row that is locked may be ending right now:
-- its successor is created as UNDECIDED instead of waiting for a worker.
--
-- Arguments: the cohorts in the order in which they are to be fired, one array element each: `base` is the instant at
-- which the caller saw the cohort stand, `due` the occurrence to fire, `next` the occurrence after it. A late cohort
-- may be given several times with growing `due`, so that catching up takes one call. p_lead is how long before its
-- time an occurrence may be fired. p_tz names the version of the time zone rules. p_limit bounds the runs of one call:
-- cohorts are fired whole as far as they fit; a single larger one is fired in chunks and keeps its `cursor`.
--
-- The caller must:
-- - if `refused` is not empty, forget these shards: their lease is lost, and nothing was written;
-- - continue after the first `reached` moves; if `is_cut`, the last of these has more members and must be given again;
-- - on a unique violation, repeat the call with p_careful: it leaves out occurrences that have a run. The inserts have
--   no ON CONFLICT, which would cost a fifth, because under the shard's lock nobody else creates runs in slot 0.
--
-- `next_at + interval '0'` hides the index on next_at from the planner: thousands of cohorts may share the instant.
create or replace function tick(
  p_holder uuid, p_shards smallint[], p_tokens bigint[],
  cohort_shards smallint[], cohort_schedules integer[], cohort_base timestamptz[], cohort_due timestamptz[],
  cohort_next timestamptz[],
  p_lead interval, p_grace interval, p_limit integer, p_tz smallint, p_careful boolean,
  out fired integer, out reached integer, out is_cut boolean, out refused smallint[], out missed bigint)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_KEPT PLAN_BY_KEY as $$
#variable_conflict use_column
declare
  any_late       boolean;   -- known before the statement is planned, so that the plan leaves out what is not needed
  any_skip       boolean;
  any_freeze     boolean;
  any_several    boolean;
  is_series      boolean;   -- some cohort is given with several occurrences
  is_large       boolean;
  is_overlap_due boolean;
begin
  fired := 0; reached := 0; is_cut := false; missed := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;

  any_late := exists (select 1 from unnest(cohort_due) due (at) where due.at < bellringer.now() - p_grace);
  any_skip := exists (select 1 from skips skip where skip.at = any (cohort_due));
  any_freeze := exists (                   -- a freeze that is only to come costs nothing
      select 1 from freezes frozen,
        (select min(due.at) as first, max(due.at) as last from unnest(cohort_due) due (at)) span
      where frozen.to_at > span.first and frozen.from_at <= span.last)
    or exists (select 1 from tenants tenant where tenant.suspended_at is not null);
  any_several := exists (
    select 1 from unnest(cohort_shards, cohort_schedules) cohort (shard, schedule_id)
    join members member on member.shard = cohort.shard and member.schedule_id = cohort.schedule_id
    where member.several);
  is_series := exists (select 1 from unnest(cohort_base, cohort_due) cohort (base, due) where cohort.due > cohort.base);
  -- Planning the statement below takes as long as inserting 300 runs, and saves a fifth of each.
  is_large := 1000 = (
    select count(*) from (
      select from unnest(cohort_shards, cohort_schedules) cohort (shard, schedule_id)
      join members member on member.shard = cohort.shard and member.schedule_id = cohort.schedule_id
      limit least(1000, p_limit)) counted);
  if is_large then
    perform set_config('plan_cache_mode', 'force_custom_plan', true);
  end if;

  with due_cohorts as materialized (       -- those that still stand where the caller saw them
    select move.place, move.base, move.due as at, move.next,
           cohort.ctid as cohort_row, cohort.shard, cohort.schedule_id,
           coalesce(case when move.due = move.base then cohort.cursor end,
                    '00000000-0000-0000-0000-000000000000') as after_job,
           (select lease.token from unnest(p_shards, p_tokens) lease (shard, token)
            where lease.shard = cohort.shard) as token
    from unnest(cohort_shards, cohort_schedules, cohort_base, cohort_due, cohort_next)
           with ordinality move (shard, schedule_id, base, due, next, place)
    join cohorts cohort on cohort.shard = move.shard and cohort.schedule_id = move.schedule_id
    where move.shard = any (p_shards) and cohort.next_at + interval '0' = move.base and cohort.target_at is null
      and move.due <= bellringer.now() + p_lead),
  sized_cohorts as materialized (          -- counted first, so that choosing needs neither a sort nor an outer limit
    select due.*, (select count(*) from (
             select from members member where member.shard = due.shard and member.schedule_id = due.schedule_id
               and member.job_id > due.after_job limit p_limit + 1) counted) as size
    from due_cohorts due),
  chosen_cohorts as materialized (         -- as many as fit; always the first one
    select * from (
      select sized.*, sum(size) over (order by place) as total, min(place) over () as first_place
      from sized_cohorts sized) ranked
    where total <= p_limit or place = first_place),
  occurrences as materialized (
    select chosen.cohort_row, chosen.size, chosen.shard, chosen.schedule_id, chosen.at, chosen.token,
           member.job_id, member.tenant_id, member.task_id, member.revision, member.pool_id, member.priority,
           member.key_id, member.cap, member.late_after, member.expires_in, member.overlap, member.several, hold.policy,
           hold.freeze_name,
           any_late and member.misfire = MISFIRE_SKIP and chosen.at < bellringer.now() - p_grace as is_misfired,
           case when member.jitter_ms = 0 then chosen.at
                else chosen.at + member.jitter_ms * interval '1 ms' end as available_at,
           case when member.key_id is null then 0 else LIMITED end | case
             when hold.policy is not null then FROZEN
             when earlier.cause is null then 0
             when not exists (             -- the earlier run is locked
               select from (
                 select 1 from queue run where run.job_id = member.job_id limit 1 for share of run skip locked) free)
               then PREDECESSOR | UNDECIDED
             when member.overlap = OVERLAP_QUEUE then PREDECESSOR
             when earlier.cause in ('catchup', 'backfill') and not exists (   -- it waits for these, and is not skipped
               select 1 from queue run where run.job_id = member.job_id and run.cause not in ('catchup', 'backfill'))
               then PREDECESSOR
             else PREDECESSOR | UNDECIDED end as flags,
           case hold.policy
             when 'skip' then hold.reason
             when 'collapse' then (
               select 'coalesced into ' || to_char(run.scheduled_for at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                      || ' by freeze ' || hold.freeze_name
               from queue run where run.job_id = member.job_id and run.blocked & FROZEN = FROZEN limit 1)
             end as skip_reason
    from chosen_cohorts chosen
    cross join lateral (
      select * from members member
      where member.shard = chosen.shard and member.schedule_id = chosen.schedule_id and member.job_id > chosen.after_job
        and member.active_since < chosen.at and (member.active_until is null or member.active_until >= chosen.at)
        and (not p_careful or not exists (
          select 1 from runs run where run.job_id = member.job_id and run.scheduled_for = chosen.at and run.slot = 0))
      order by member.job_id limit p_limit) member
    left join lateral (
      select run.cause from queue run
      where member.overlap <> OVERLAP_ALLOW and run.job_id = member.job_id limit 1) earlier on true
    left join lateral (                    -- by its key: there may be as many skips as members
      select skip_reason(skip) as reason from skips skip
      where skip.job_id = member.job_id and skip.at = chosen.at offset 0) skip on any_skip
    left join lateral (select job.tags from jobs job where job.job_id = member.job_id offset 0) job on any_freeze
    left join lateral freeze_at(member.tenant_id, chosen.at, job.tags) frozen on any_freeze
    cross join lateral (
      select case when skip.reason is not null then 'skip' else frozen.policy end as policy,
             case when skip.reason is null then frozen.name end as freeze_name,
             coalesce(skip.reason, frozen.reason) as reason) hold),
  competing as not materialized (          -- a job may have several occurrences in this call
    select * from occurrences where (is_series or any_several and several) and not p_careful and not is_misfired
    union all                              -- with care, schedules of one job that are due together make one run
    select * from (
      select distinct on (job_id, at) * from occurrences where p_careful and not is_misfired) distinct_occurrences),
  new_runs as not materialized (           -- of several of one job, the first that is not skipped holds the later ones
    select *, flags as blocked, skip_reason as skipped_because from occurrences
    where not p_careful and not is_misfired and not is_series and not (any_several and several)
    union all
    select competing.*,
           case when overlap = OVERLAP_ALLOW or flags & ~LIMITED <> 0
                  or row_number() over (partition by job_id, skip_reason is null order by at, schedule_id) = 1
                then flags
                when overlap = OVERLAP_QUEUE then flags | PREDECESSOR
                else flags | PREDECESSOR | UNDECIDED end,
           case when policy = 'collapse' and skip_reason is null
                  and row_number() over (
                    partition by job_id, policy is not distinct from 'collapse' and skip_reason is null
                    order by at, schedule_id) > 1
                then 'coalesced by freeze ' || freeze_name
                else skip_reason end
    from competing),
  insert_runs as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, tz_id, initial_state, reason)
    select job_id, at, 0, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id,
           priority, 'schedule', p_tz,
           case when blocked & ~LIMITED = 0 then 'queued'
                when skipped_because is not null then 'skipped' else 'blocked' end::run_state,
           case when policy is not null then coalesce(skipped_because, 'freeze ' || freeze_name) end
    from new_runs),
  insert_queue as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, cause, blocked, key_id, cap, late_at, expires_at)
    select job_id, at, 0, available_at, tenant_id, task_id, revision, shard, pool_id,
           priority, 'schedule', blocked, key_id, cap, available_at + late_after, at + expires_in
    from new_runs where skipped_because is null),
  end_skipped as (
    insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
    select job_id, at, 0, 0, bellringer.now(), tenant_id, revision, 'skipped',
           jsonb_build_object('reason', skipped_because)
    from new_runs where (any_freeze or any_skip) and skipped_because is not null),
  insert_gaps as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select job_id, at, at + interval '1 microsecond', schedule_id, 1, 'misfire', bellringer.now()
    from occurrences where any_late and is_misfired
    on conflict do nothing returning 1),
  unfinished as materialized (             -- the one cohort that did not fit, and its last member that was fired
    select cohort_row, (array_agg(job_id order by job_id desc))[1] as last_job
    from occurrences where size > p_limit group by cohort_row having count(*) = p_limit),
  finished as not materialized (           -- moves behind the last of its occurrences that fitted
    select cohort_row, base, next from chosen_cohorts where not is_series
    union all
    select cohort_row, base, max(next) from chosen_cohorts where is_series group by cohort_row, base),
  move_cohorts as (
    update cohorts cohort set next_at = finished.next, cursor = null from finished
    where cohort.ctid = finished.cohort_row and cohort.next_at + interval '0' = finished.base
      and not exists (select 1 from unfinished where unfinished.cohort_row = finished.cohort_row)),
  keep_cursor as (
    update cohorts cohort set cursor = unfinished.last_job from unfinished where cohort.ctid = unfinished.cohort_row)
  select count(*), coalesce(bool_or(blocked & UNDECIDED = UNDECIDED and available_at <= bellringer.now()), false),
         coalesce((select max(place) from chosen_cohorts), 0), exists (select 1 from unfinished),
         (select count(*) from insert_gaps)
  from new_runs into fired, is_overlap_due, reached, is_cut, missed;
  if is_overlap_due then perform decide_overlaps(p_limit); end if;
end $$;

-- The freeze, or the suspension of the tenant, that holds an occurrence of a job with these tags. The policy `skip`
-- wins. The comparison of pairs keeps the planner from the index on to_at alone: other tenants may have many freezes.
-- Without settings and in one statement, so that it becomes a part of the query that calls it.
create or replace function freeze_at(p_tenant integer, p_at timestamptz, p_tags text[])
returns table (policy text, name text, reason text) language sql stable as $$
  select hold.policy, hold.name, hold.reason from (
    select 'skip' as policy, null as name, 'tenant suspended' as reason from bellringer.tenants tenant
    where tenant.tenant_id = p_tenant and tenant.suspended_at is not null
    union all
    select frozen.policy, frozen.name, 'freeze ' || frozen.name from bellringer.freezes frozen
    where frozen.tenant_id = p_tenant and (frozen.tenant_id, frozen.to_at) > (p_tenant, p_at) and frozen.from_at <= p_at
      and (frozen.tags = '{}' or frozen.tags && p_tags)) hold
  order by hold.policy = 'skip' desc, hold.policy limit 1
$$;
