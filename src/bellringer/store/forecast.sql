-- What a forecast is made of: how many jobs follow which schedule, and which timers are set.

-- name: recount
-- The shard of these that was counted longest ago, if that is longer than $2 ago.
select bellringer.recount(s.shard) from (
  select u.shard from unnest($1::smallint[]) u (shard) left join recounts r on r.shard = u.shard
  where r.counted_at is null or r.counted_at < bellringer.now() - $2::interval
  order by r.counted_at nulls first limit 1) s

-- name: state
-- $1 bytes of members are few enough to be counted while somebody waits. The planner's own figure is not asked: it is
-- not there before the first analyze.
select bellringer.now() as now, pg_relation_size('bellringer.members') < $1 as small,
       (select case when count(*) = (select shards from cluster) then min(counted_at) end from recounts) as counted_at

-- name: counted
select m.schedule_id, p.name as pool, m.members, m.jittered, m.jitter_ms, sum(m.members) over ()::bigint as total from (
  select schedule_id, pool_id, count(*) as members, count(*) filter (where jitter_ms > 0) as jittered, max(jitter_ms) as jitter_ms,
         sum(count(*)) over (partition by schedule_id) as crowd
  from members where tenant_id = $1 group by 1, 2) m
join pools p on p.pool_id = m.pool_id order by m.crowd desc, m.schedule_id limit $2

-- name: kept
select m.schedule_id, p.name as pool, m.members, m.jittered, m.jitter_ms, sum(m.members) over ()::bigint as total from (
  select schedule_id, pool_id, sum(members) as members, sum(jittered) as jittered, max(jitter_ms) as jitter_ms,
         sum(sum(members)) over (partition by schedule_id) as crowd
  from cohort_sizes where tenant_id = $1 group by 1, 2) m
join pools p on p.pool_id = m.pool_id order by m.crowd desc, m.schedule_id limit $2

-- name: first
-- In a large installation that nobody has counted yet: the members of the tenant's first $3 jobs. Of the others, $4 at most are in
-- the total, so that they are told to be left out.
select m.schedule_id, p.name as pool, m.members, m.jittered, m.jitter_ms, sum(m.members) over ()::bigint + (
  select count(*) from (select 1 from jobs j where j.tenant_id = $1 and j.deleted_at is null order by j.job_id offset $3 limit $4) j) as total
from (
  select m.schedule_id, m.pool_id, count(*) as members, count(*) filter (where m.jitter_ms > 0) as jittered, max(m.jitter_ms) as jitter_ms,
         sum(count(*)) over (partition by m.schedule_id) as crowd
  from (select * from jobs j where j.tenant_id = $1 and j.deleted_at is null order by j.job_id limit $3) j
  cross join unnest(j.schedule_ids) i (schedule_id)
  cross join lateral (
    select * from members m where m.shard = j.shard and m.schedule_id = i.schedule_id and m.job_id = j.job_id offset 0) m group by 1, 2) m
join pools p on p.pool_id = m.pool_id order by m.crowd desc, m.schedule_id limit $2

-- name: timers
-- The first $4 timers of each shard that have not been tried yet, by second; others' are read over, so the work is
-- bounded whoever they belong to. `until` is where the first shard stopped early.
select pool, at, fires, until from bellringer.timers_ahead($1, $2, $3, $4)
