-- Moves cohorts to the fire times of new time zone rules, under the fence of a tick: from c_at, where the caller saw
-- the cohort, to c_to, which must be in the future. A cohort in the middle of a fire or a fast-forward is left alone;
-- its next time is computed when that ends. Occurrences that were fired ahead of time are not fired again. c_lost is
-- the previous fire time if it is in the past by the new rules; it becomes a gap.
create or replace function retime(
  p_holder uuid, p_shards smallint[], p_tokens bigint[], p_tz smallint, c_shard smallint[], c_schedule integer[],
  c_at timestamptz[], c_to timestamptz[], c_lost timestamptz[], out moved integer, out refused smallint[])
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
PLAN_BY_KEY as $$
#variable_conflict use_column
declare t timestamptz;
begin
  moved := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;
  t := bellringer.clock();

  with moves as materialized (
    select cohort.ctid as tid, cohort.shard, cohort.schedule_id, given.at, given.until_at, given.lost
    from unnest(c_shard, c_schedule, c_at, c_to, c_lost) given (shard, schedule_id, at, until_at, lost)
    join cohorts cohort on cohort.shard = given.shard and cohort.schedule_id = given.schedule_id
    where given.shard = any (p_shards) and cohort.next_at + interval '0' = given.at and cohort.cursor is null
      and cohort.target_at is null and given.at > t and given.until_at >= t
      and (given.until_at > t + interval '5 seconds'
           or not exists (
             select 1 from members member
             join runs run on run.job_id = member.job_id and run.scheduled_for = given.until_at and run.slot = 0
             where member.shard = cohort.shard and member.schedule_id = cohort.schedule_id))),
  moved_cohorts as (update cohorts cohort set next_at = moves.until_at from moves where cohort.ctid = moves.tid),
  passed as (
    insert into gaps (job_id, from_at, to_at, schedule_id, count, reason, recorded_at)
    select member.job_id, moves.lost, moves.lost + interval '1 microsecond', moves.schedule_id, 1, 'retimed', t
    from moves
    join members member on member.shard = moves.shard and member.schedule_id = moves.schedule_id
    where member.active_since < moves.lost and (member.active_until is null or member.active_until >= moves.lost)
      and not exists (
        select 1 from runs run where run.job_id = member.job_id and run.scheduled_for = moves.lost and run.slot = 0)
    on conflict do nothing),
  recorded as (
    insert into tz_moves (tz_id, schedule_id, shard, moved_at, old_next, new_next)
    select p_tz, schedule_id, shard, t, at, until_at from moves
    on conflict (tz_id, schedule_id, shard) do update
    set moved_at = excluded.moved_at, old_next = excluded.old_next, new_next = excluded.new_next)
  select count(*) from moves into moved;
end $$;

-- Records the rules by which the holder of these shards fires from now on. Returns the shards that it does not hold.
create or replace function apply_rules(
  p_holder uuid, p_shards smallint[], p_tokens bigint[], p_tz smallint) returns smallint[]
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' as $$
declare refused smallint[];
begin
  refused := fence(p_holder, p_shards, p_tokens);
  insert into tz_applied (shard, tz_id, token)
  select given.shard, p_tz, given.token from unnest(p_shards, p_tokens) given (shard, token)
  where given.shard <> all (refused) order by given.shard
  on conflict (shard) do update set tz_id = excluded.tz_id, token = excluded.token;
  return refused;
end $$;
