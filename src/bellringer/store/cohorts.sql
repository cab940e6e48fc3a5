-- Cohorts and timers.

-- name: upcoming
-- Cohorts that fire until $2, shard by shard so that the index gives each in order; $3 bounds the result.
select cohort.shard, cohort.schedule_id, cohort.next_at, cohort.target_at from unnest($1::smallint[]) held (shard)
cross join lateral (
  select shard, schedule_id, next_at, target_at from cohorts
  where shard = held.shard and next_at <= $2 order by next_at limit $3) cohort
order by cohort.next_at, cohort.shard, cohort.schedule_id limit $3

-- name: due_soon
-- One row: the time, the shards with a timer that is due within $2, and the cohorts that fire within $3, at most $4.
with soon as materialized (
  select cohort.* from unnest($1::smallint[]) held (shard)
  cross join lateral (
    select shard, schedule_id, next_at, target_at from cohorts
    where shard = held.shard and next_at <= bellringer.now() + $3::interval order by next_at limit $4) cohort
  order by cohort.next_at, cohort.shard, cohort.schedule_id limit $4)
select bellringer.now() as now,
       array(select held.shard from unnest($1::smallint[]) held (shard)
             where exists (select 1 from timers timer
                           where timer.shard = held.shard and timer.due_at <= bellringer.now() + $2::interval))
         as timer_shards,
       array(select shard from soon) as shards, array(select schedule_id from soon) as schedule_ids,
       array(select next_at from soon) as next_at, array(select target_at from soon) as target_at

-- name: first_timers
select held.shard, (select min(timer.due_at) from timers timer where timer.shard = held.shard) as due_at
from unnest($1::smallint[]) held (shard)

-- name: tick
select fired, reached, is_cut, refused, missed from bellringer.tick(
  p_holder => $1, p_shards => $2, p_tokens => $3, cohort_shards => $4, cohort_schedules => $5, cohort_base => $6,
  cohort_due => $7, cohort_next => $8, p_lead => $9, p_grace => $10, p_limit => $11, p_tz => $12, p_careful => $13)

-- name: fast_forward
select reached, missed, is_cut, refused from bellringer.fast_forward(
  p_holder => $1, p_shards => $2, p_tokens => $3, cohort_shards => $4, cohort_schedules => $5, cohort_base => $6,
  cohort_target => $7, cohort_missed => $8, p_limit => $9)

-- name: fire_timers
select fired, moved, first_due_at, refused, missed from bellringer.fire_timers(
  p_holder => $1, p_shards => $2, p_tokens => $3, p_lead => $4, p_limit => $5, p_careful => $6)

-- name: overdue
-- Jobs whose schedule should have fired already, and timers; $2 bounds each count, because it is for a gauge. Of a
-- cohort that fires in parts, the members that have fired do not count. The inner limits keep the joins nested loops.
select (select count(*) from (
          select 1 from leases lease
          cross join lateral (
            select cohort.schedule_id, cohort.cursor from cohorts cohort
            where cohort.shard = lease.shard and cohort.next_at <= bellringer.now() - $1::interval
            order by cohort.next_at limit $2) late
          cross join lateral (
            select 1 from members member
            where member.shard = lease.shard and member.schedule_id = late.schedule_id
              and member.job_id > coalesce(late.cursor, '00000000-0000-0000-0000-000000000000') limit $2) job
          limit $2) jobs)
     + (select count(*) from (
          select 1 from leases lease
          cross join lateral (
            select 1 from timers timer
            where timer.shard = lease.shard and timer.due_at <= bellringer.now() - $1::interval limit $2) late
          limit $2) timers)
