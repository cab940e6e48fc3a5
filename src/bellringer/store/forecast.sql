-- The data of a forecast: the number of jobs of each schedule, and the timers.

-- name: recount
-- Recounts the shard that was counted longest ago, if that is longer than $2 ago.
select bellringer.recount(oldest.shard)
from (
  select given.shard from unnest($1::smallint[]) given (shard)
  left join recounts recount on recount.shard = given.shard
  where recount.counted_at is null or recount.counted_at < bellringer.now() - $2::interval
  order by recount.counted_at nulls first limit 1) oldest

-- name: state
-- `small`: the members take less than $1 bytes and can be counted within a request. The size of the relation is used,
-- because the planner's estimate does not exist before the first analyze.
select bellringer.now() as now, pg_relation_size('bellringer.members') < $1 as small,
       (select case when count(*) = (select shards from cluster) then min(counted_at) end from recounts) as counted_at

-- name: count_members
select member.schedule_id, pool.name as pool, member.members, member.jittered, member.jitter_ms,
       sum(member.members) over ()::bigint as total
from (
  select schedule_id, pool_id, count(*) as members, count(*) filter (where jitter_ms > 0) as jittered,
         max(jitter_ms) as jitter_ms, sum(count(*)) over (partition by schedule_id) as crowd
  from members
  where tenant_id = $1
  group by 1, 2) member
join pools pool on pool.pool_id = member.pool_id
order by member.crowd desc, member.schedule_id limit $2

-- name: stored_counts
select size.schedule_id, pool.name as pool, size.members, size.jittered, size.jitter_ms,
       sum(size.members) over ()::bigint as total
from (
  select schedule_id, pool_id, sum(members) as members, sum(jittered) as jittered, max(jitter_ms) as jitter_ms,
         sum(sum(members)) over (partition by schedule_id) as crowd
  from cohort_sizes
  where tenant_id = $1
  group by 1, 2) size
join pools pool on pool.pool_id = size.pool_id
order by size.crowd desc, size.schedule_id limit $2

-- name: count_first_jobs
-- For a large installation whose shards have not been counted yet: the members of the tenant's first $3 jobs. The total
-- includes up to $4 of the other jobs, so that the forecast reports them as omitted.
select counted.schedule_id, pool.name as pool, counted.members, counted.jittered, counted.jitter_ms,
       sum(counted.members) over ()::bigint
         + (
           select count(*)
           from (
             select 1 from jobs job
             where job.tenant_id = $1 and job.deleted_at is null
             order by job.job_id offset $3 limit $4) job) as total
from (
  select member.schedule_id, member.pool_id, count(*) as members,
         count(*) filter (where member.jitter_ms > 0) as jittered, max(member.jitter_ms) as jitter_ms,
         sum(count(*)) over (partition by member.schedule_id) as crowd
  from (select * from jobs job where job.tenant_id = $1 and job.deleted_at is null order by job.job_id limit $3) job
  cross join unnest(job.schedule_ids) given (schedule_id)
  cross join lateral (
    select * from members member
    where member.shard = job.shard and member.schedule_id = given.schedule_id
      and member.job_id = job.job_id offset 0) member
  group by 1, 2) counted
join pools pool on pool.pool_id = counted.pool_id
order by counted.crowd desc, counted.schedule_id limit $2

-- name: agenda_jobs
-- Jobs by id, in the given order, with what is needed to compute when they are due: `at` is the time of a one-shot, or
-- the next one of a fixed delay. Every lookup is a lateral select with `offset 0`, so that only primary keys fit.
select job.job_id, job.name, job.schedule_ids, greatest(job.starts_at, job.created_at) as starts_at, job.ends_at,
       coalesce(job.once_at, timer.due_at) as at
from unnest($2::uuid[])
with ordinality given (id, nth)
cross join lateral (
  select job_id, name, schedule_ids, starts_at, created_at, ends_at, once_at, delay from jobs job
  where job.job_id = given.id and job.tenant_id + 0 = $1 offset 0) job
left join lateral (
  select min(timer.due_at) as due_at from timers timer
  where timer.job_id = job.job_id offset 0) timer on job.delay is not null
order by given.nth

-- name: span_outcomes
select number, runs, failed from bellringer.span_outcomes($1, $2, $3, $4, $5, $6)

-- name: timers
-- The first $4 timers of each shard without an attempt, by second. Timers of other tenants count against $4, so the
-- work is bounded. `until` is the time at which the first shard reached its limit.
select pool, at, fires, until from bellringer.timers_ahead($1, $2, $3, $4)
