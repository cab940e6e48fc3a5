-- Versions of the rules of the time zones, and the hands that follow them.

-- name: versions
select tz_id, version from tz_versions

-- name: add_version
-- Only what is missing: an insert that meets a conflict uses up a number, and versions have few.
insert into tz_versions (version) select $1::text where not exists (select 1 from tz_versions where version = $1)
on conflict do nothing

-- name: applied
select a.shard, a.tz_id, v.version, a.token from tz_applied a join tz_versions v using (tz_id) order by a.shard

-- name: hands
-- The hands of a shard that depend on the rules of a zone and stand in the future, after the schedule $2.
select c.schedule_id, c.next_at from cohorts c join schedules s on s.schedule_id = c.schedule_id
where c.shard = $1 and c.schedule_id > $2 and c.next_at > $3 and c.cursor is null and c.jump_to is null
  and s.timezone not in ('', 'UTC')
order by c.schedule_id limit $4

-- name: retime
select moved, refused from bellringer.retime($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: apply_rules
select bellringer.apply_rules($1, $2, $3, $4)

-- name: moves
-- The newest moves, those of a schedule's hands from one instant to another as one; the jobs are counted up to $2 a shard.
select v.version, m.schedule_id, m.old_next, m.new_next, m.moved_at, m.shards,
       (select coalesce(sum(n.jobs), 0)::bigint from unnest(m.shards) u (shard) cross join lateral (
          select count(*) as jobs from (select from members b
            where b.shard = u.shard and b.schedule_id = m.schedule_id limit $2) b) n) as jobs
from (select tz_id, schedule_id, old_next, new_next, max(moved_at) as moved_at, array_agg(shard order by shard) as shards
      from tz_moves group by 1, 2, 3, 4 order by max(moved_at) desc, tz_id desc, schedule_id limit $1) m
join tz_versions v on v.tz_id = m.tz_id
order by m.moved_at desc, m.tz_id desc, m.schedule_id

-- name: moves_of
-- The same for a tenant: only of schedules that jobs of it have, and counting these, as they were counted within the last minute.
select v.version, m.schedule_id, m.old_next, m.new_next, max(m.moved_at) as moved_at,
       array_agg(m.shard order by m.shard) as shards, sum(z.members)::bigint as jobs
from tz_moves m
join (select shard, schedule_id, sum(members) as members from cohort_sizes where tenant_id = $2 group by 1, 2) z
  on z.shard = m.shard and z.schedule_id = m.schedule_id
join tz_versions v on v.tz_id = m.tz_id
group by v.version, m.tz_id, 2, 3, 4 order by max(m.moved_at) desc, m.tz_id desc, m.schedule_id limit $1
