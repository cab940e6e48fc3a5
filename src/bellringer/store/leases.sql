-- name: acquire
-- At most $2 free or expired shards, of those in $4 (null: all). Locked rows are skipped, so that nodes do not wait for
-- each other.
with free as materialized (
  select shard from leases
  where (holder is null or expires_at < clock_timestamp()) and ($4::smallint[] is null or shard = any ($4))
  order by expires_at, shard limit $2 for update skip locked)
update leases lease set holder = $1, token = lease.token + 1, expires_at = clock_timestamp() + $3::interval
from free
where lease.shard = free.shard and (lease.holder is null or lease.expires_at < clock_timestamp())
returning lease.shard, lease.token

-- name: install
-- Leases that another backend has granted. $3 are its numbers, which are candidates for the tokens. The new token
-- fences off the previous holder; a running tick is waited for.
with those as materialized (
  select lease.shard, given.candidate from unnest($2::smallint[], $3::bigint[]) given (shard, candidate)
  join leases lease on lease.shard = given.shard
  order by lease.shard for update of lease)
update leases lease
set holder = $1, token = greatest(lease.token + 1, those.candidate), expires_at = clock_timestamp() + $4::interval
from those
where lease.shard = those.shard
returning lease.shard, lease.token

-- name: renew
-- In shard order, as the fence of a tick locks them.
with mine as materialized (
  select lease.shard from unnest($2::smallint[], $3::bigint[]) given (shard, token)
  join leases lease on lease.shard = given.shard and lease.token = given.token and lease.holder = $1
  order by lease.shard for update of lease)
update leases lease set expires_at = clock_timestamp() + $4::interval
from mine
where lease.shard = mine.shard
returning lease.shard

-- name: release
with mine as materialized (
  select lease.shard from unnest($2::smallint[], $3::bigint[]) given (shard, token)
  join leases lease on lease.shard = given.shard and lease.token = given.token and lease.holder = $1
  order by lease.shard for update of lease)
update leases lease set holder = null, expires_at = '-infinity' from mine where lease.shard = mine.shard

-- name: table
select lease.shard, lease.holder, node.name as node, lease.token, lease.region,
       extract(epoch from greatest(lease.expires_at, 'epoch') - clock_timestamp())::float8 as seconds_left,
       extract(epoch from clock_timestamp() - lease.acquired_at)::float8 as held_seconds
from leases lease
left join nodes node on node.node_id = lease.holder
order by lease.shard

-- name: heartbeat
insert into nodes (node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew, region,
                   waits_for)
values ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), $6, $7, $8, $9, $10, $11)
on conflict (node_id) do update
set seen_at = clock_timestamp(), shards = excluded.shards, fired = excluded.fired, refused = excluded.refused,
    skew = excluded.skew, region = excluded.region, waits_for = excluded.waits_for

-- name: live
select node_id, region from nodes where seen_at > clock_timestamp() - $1::interval order by node_id

-- name: shards
select shard from leases order by shard

-- name: regions
select shard, region from leases where region is not null order by shard

-- name: set_regions
-- All shards at once, in shard order, as the fence of a tick locks them; shards that are not named get no region.
-- Writes one audit entry, not one for each row.
with those as materialized (
  select lease.shard, given.region from leases lease
  left join unnest($1::smallint[], $2::text[]) given (shard, region) on given.shard = lease.shard
  order by lease.shard for update of lease),
changed as (
  update leases lease set region = those.region
  from those
  where lease.shard = those.shard and lease.region is distinct from those.region
  returning lease.shard)
select bellringer.note(0, 'cluster.regions', 'cluster', 'regions', $3::jsonb)
from (select count(*) as n from changed) counted
where counted.n > 0

-- name: end_silent_leader
-- Terminates the leader's connection, which frees its lock, if no lease is valid and the connection was silent for
-- longer than a lease: its process is stopped or disconnected.
select pg_terminate_backend(lock.pid) from pg_locks lock
join pg_stat_activity activity on activity.pid = lock.pid
where lock.locktype = 'advisory' and lock.classid = $1 and lock.objid = 0 and lock.objsubid = 2 and lock.granted
  and activity.datname = current_database() and lock.database = activity.datid
  and activity.state_change < clock_timestamp() - $2::interval
  and not exists (select 1 from leases where holder is not null and expires_at > clock_timestamp())

-- name: leave
delete from nodes where node_id = $1

-- name: forget
delete from nodes where seen_at < clock_timestamp() - interval '1 day'

-- name: nodes
select node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew, region, waits_for,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age
from nodes
order by started_at

-- name: moves
-- The latest moves before the move $2 (null: all) and after $1.
select move_id, at, shard, cause, holder, node, previous, previous_node, token from lease_moves
where at > $1 and ($2::bigint is null or move_id < $2)
order by move_id desc limit $3

-- name: clock
select clock_timestamp()

-- name: forget_moves
-- Moves before $1, and all but the latest $2: leases that change hands all the time must not fill the table.
delete from lease_moves
where at < $1 or move_id <= (select move_id from lease_moves order by move_id desc offset $2 limit 1)

-- name: any_waits
select exists (select 1 from nodes where waits_for is not null and seen_at > clock_timestamp() - interval '10 s')

-- name: shard_status
select lease.shard, case when lease.expires_at > clock_timestamp() then lease.holder end as holder,
       case when lease.expires_at > clock_timestamp() then node.name end as node, lease.token, lease.region,
       cohort.next_at, timer.due_at as timer_at,
       greatest(coalesce(extract(epoch from bellringer.now() - least(cohort.next_at, timer.due_at)), 0),
                0)::float8 as late
from leases lease
left join nodes node on node.node_id = lease.holder
left join lateral (select next_at from cohorts where shard = lease.shard order by next_at limit 1) cohort on true
left join lateral (select due_at from timers where shard = lease.shard order by due_at limit 1) timer on true
order by lease.shard
