-- Moves cohorts that no scheduler fired within the grace period to their latest missed occurrence, which a later tick
-- fires.
--
-- Guarantee: what the cohort passes over is recorded for each member in the same transaction: as a gap, or, for jobs
-- with the misfire policy fire_all, as a catch-up, which runs the missed occurrences at low priority.
--
-- Locks, in this order: the advisory locks of the shards, exclusive; the rows of their leases, shared (`fence`).
--
-- Arguments: the cohorts, one array element each: `base` is the instant at which the caller saw the cohort stand,
-- `target` its latest missed occurrence, `missed` the number of occurrences from `base` up to, and without, `target`.
-- p_limit bounds the members of one call, as in `tick`. A larger cohort is done in chunks: `target_at` keeps the
-- target, so that all members get the same one, and `gap_cursor` the last member that is done.
--
-- The caller must treat `refused`, `reached` and `is_cut` as those of `tick`. `missed` counts occurrences in new gaps.
create or replace function fast_forward(
  p_holder uuid, p_shards smallint[], p_tokens bigint[],
  cohort_shards smallint[], cohort_schedules integer[], cohort_base timestamptz[], cohort_target timestamptz[],
  cohort_missed bigint[], p_limit integer,
  out reached integer, out missed bigint, out is_cut boolean, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' PLAN_BY_KEY as $$
#variable_conflict use_column
begin
  reached := 0; missed := 0; is_cut := false;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;

  with late_cohorts as materialized (      -- those that still stand where the caller saw them
    select move.place, move.target, move.missed,
           cohort.ctid as cohort_row, cohort.shard, cohort.schedule_id, cohort.next_at, cohort.cursor,
           coalesce(cohort.gap_cursor, '00000000-0000-0000-0000-000000000000') as after_job
    from unnest(cohort_shards, cohort_schedules, cohort_base, cohort_target, cohort_missed)
           with ordinality move (shard, schedule_id, base, target, missed, place)
    join cohorts cohort on cohort.shard = move.shard and cohort.schedule_id = move.schedule_id
    where move.shard = any (p_shards) and cohort.next_at + interval '0' = move.base
      and move.target = coalesce(cohort.target_at, move.target)
      and move.target <= bellringer.now() and move.target > cohort.next_at),
  sized_cohorts as materialized (
    select late.*, (select count(*) from (
             select from members member where member.shard = late.shard and member.schedule_id = late.schedule_id
               and member.job_id > late.after_job limit p_limit + 1) counted) as size
    from late_cohorts late),
  chosen_cohorts as materialized (         -- as many as fit; always the first one
    select * from (
      select sized.*, sum(size) over (order by place) as total, min(place) over () as first_place
      from sized_cohorts sized) ranked
    where total <= p_limit or place = first_place),
  passed_over as materialized (            -- what each member misses: the range [from_at, to_at), and its occurrences
    select chosen.cohort_row, chosen.size, chosen.shard, chosen.schedule_id, chosen.target,
           member.job_id, member.tenant_id, member.misfire, member.overlap, member.late_after, span.from_at,
           case when member.active_since < chosen.next_at
                 and (member.active_until is null or member.active_until >= chosen.target)
                then chosen.missed - coalesce(member.job_id <= chosen.cursor, false)::int end as count,
           case when member.active_until is null or member.active_until >= chosen.target then chosen.target
                else member.active_until + interval '1 microsecond' end as to_at,
           span.from_at < chosen.target and (member.active_until is null or member.active_until >= span.from_at)
             and not coalesce(member.job_id <= chosen.cursor and chosen.missed = 1, false) as is_missed
    from chosen_cohorts chosen
    cross join lateral (
      select * from members member
      where member.shard = chosen.shard and member.schedule_id = chosen.schedule_id and member.job_id > chosen.after_job
      order by member.job_id limit p_limit) member
    cross join lateral (
      select case when member.job_id <= chosen.cursor      -- this member got next_at before the outage
                  then chosen.next_at + interval '1 microsecond'
                  else greatest(chosen.next_at, member.active_since + interval '1 microsecond') end as from_at) span),
  insert_gaps as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, into_at, recorded_at)
    select job_id, from_at, to_at, schedule_id, count, 'misfire',
           case when to_at = target and misfire = MISFIRE_FIRE_ONCE then target end, bellringer.now()
    from passed_over where is_missed and misfire <> MISFIRE_FIRE_ALL
    on conflict do nothing returning count),
  insert_catchups as (
    insert into backfills (tenant_id, job_id, shard, cause, schedule_id, from_at, to_at,
                           parallelism, rate, most, horizon, who, why, created_at)
    select member.tenant_id, member.job_id, member.shard, 'catchup', member.schedule_id, member.from_at, member.to_at,
           case member.overlap when OVERLAP_ALLOW then 10 else 1 end, catchup.rate, catchup.most, catchup.horizon,
           'misfire', 'misfire', bellringer.now()
    from passed_over member cross join lateral catchup_of(member.job_id) catchup
    where member.is_missed and member.misfire = MISFIRE_FIRE_ALL),
  insert_events as (                       -- gaps raise their events by a trigger
    insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
    select bellringer.now(), tenant_id, 'missed', job_id, from_at,
           jsonb_build_object('from', from_at, 'to', to_at, 'count', count, 'misfire', 'fire_all')
    from passed_over where is_missed and misfire = MISFIRE_FIRE_ALL and late_after is not null
    on conflict do nothing),
  unfinished as materialized (             -- the one cohort that did not fit, and its last member that is done
    select cohort_row, target, (array_agg(job_id order by job_id desc))[1] as last_job
    from passed_over where size > p_limit group by cohort_row, target having count(*) = p_limit),
  move_cohorts as (
    update cohorts cohort set next_at = chosen.target, cursor = null, target_at = null, gap_cursor = null
    from chosen_cohorts chosen
    where cohort.ctid = chosen.cohort_row and cohort.next_at + interval '0' = chosen.next_at
      and not exists (select 1 from unfinished where unfinished.cohort_row = chosen.cohort_row)),
  keep_cursor as (
    update cohorts cohort set target_at = unfinished.target, gap_cursor = unfinished.last_job
    from unfinished where cohort.ctid = unfinished.cohort_row)
  select coalesce((select max(place) from chosen_cohorts), 0), (select coalesce(sum(count), 0) from insert_gaps),
         exists (select 1 from unfinished)
  into reached, missed, is_cut;
end $$;
