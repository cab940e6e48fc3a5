-- Time zone rules, and the cohorts that depend on them.

-- name: versions
select tz_id, version from tz_versions

-- name: add_version
-- Inserts only a missing version: an insert with a conflict uses up an id, and ids are smallint.
insert into tz_versions (version)
select $1::text
where not exists (select 1 from tz_versions where version = $1) on conflict do nothing

-- name: applied
select a.shard, a.tz_id, v.version, a.token from tz_applied a join tz_versions v using (tz_id) order by a.shard

-- name: zoned_cohorts
-- Cohorts of a shard whose schedule depends on time zone rules and whose next fire time is in the future, after
-- schedule $2.
select cohort.schedule_id, cohort.next_at from cohorts cohort
join schedules schedule on schedule.schedule_id = cohort.schedule_id
where cohort.shard = $1 and cohort.schedule_id > $2 and cohort.next_at > $3 and cohort.cursor is null
  and cohort.target_at is null and schedule.timezone not in ('', 'UTC')
order by cohort.schedule_id limit $4

-- name: retime
select moved, refused from bellringer.retime($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: apply_rules
select bellringer.apply_rules($1, $2, $3, $4)

-- name: moves
-- The newest moves. Moves of the cohorts of a schedule between the same two times are one row; jobs are counted up to
-- $2 per shard.
select version.version, move.schedule_id, move.old_next, move.new_next, move.moved_at, move.shards,
       (select coalesce(sum(counted.jobs), 0)::bigint from unnest(move.shards) given (shard)
        cross join lateral (
          select count(*) as jobs
          from (
            select from members member
            where member.shard = given.shard and member.schedule_id = move.schedule_id
            limit $2) member) counted) as jobs
from (
  select tz_id, schedule_id, old_next, new_next, max(moved_at) as moved_at, array_agg(shard order by shard) as shards
  from tz_moves
  group by 1, 2, 3, 4
  order by max(moved_at) desc, tz_id desc, schedule_id limit $1) move
join tz_versions version on version.tz_id = move.tz_id
order by move.moved_at desc, move.tz_id desc, move.schedule_id

-- name: moves_of_tenant
-- As moves, for the schedules of a tenant's jobs. The counts are those of the last minute.
select version.version, move.schedule_id, move.old_next, move.new_next, max(move.moved_at) as moved_at,
       array_agg(move.shard order by move.shard) as shards, sum(size.members)::bigint as jobs
from tz_moves move
join (
    select shard, schedule_id, sum(members) as members from cohort_sizes
    where tenant_id = $2
    group by 1, 2) size on size.shard = move.shard
  and size.schedule_id = move.schedule_id
join tz_versions version on version.tz_id = move.tz_id
group by version.version, move.tz_id, 2, 3, 4
order by max(move.moved_at) desc, move.tz_id desc, move.schedule_id limit $1
