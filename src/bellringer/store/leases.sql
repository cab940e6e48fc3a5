-- name: acquire
-- Free or expired shards, at most $2. Skipping locked rows lets several nodes take at once without waiting.
with free as materialized (
  select shard from leases where holder is null or expires_at < clock_timestamp()
  order by expires_at, shard limit $2 for update skip locked)
update leases l set holder = $1, token = l.token + 1, expires_at = clock_timestamp() + $3::interval
from free where l.shard = free.shard and (l.holder is null or l.expires_at < clock_timestamp())
returning l.shard, l.token

-- name: renew
-- In shard order, as the fence of a tick takes them.
with mine as materialized (
  select l.shard from unnest($2::smallint[], $3::bigint[]) u (shard, token)
  join leases l on l.shard = u.shard and l.token = u.token and l.holder = $1 order by l.shard for update of l)
update leases l set expires_at = clock_timestamp() + $4::interval from mine where l.shard = mine.shard
returning l.shard

-- name: release
with mine as materialized (
  select l.shard from unnest($2::smallint[], $3::bigint[]) u (shard, token)
  join leases l on l.shard = u.shard and l.token = u.token and l.holder = $1 order by l.shard for update of l)
update leases l set holder = null, expires_at = '-infinity' from mine where l.shard = mine.shard

-- name: table
select l.shard, l.holder, n.name as node, l.token, extract(epoch from greatest(l.expires_at, 'epoch') - clock_timestamp())::float8 as seconds_left
from leases l left join nodes n on n.node_id = l.holder order by l.shard

-- name: beat
insert into nodes (node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew)
values ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), $6, $7, $8, $9)
on conflict (node_id) do update set seen_at = clock_timestamp(), shards = excluded.shards, fired = excluded.fired,
  refused = excluded.refused, skew = excluded.skew

-- name: live
select node_id from nodes where seen_at > clock_timestamp() - $1::interval order by node_id

-- name: leave
delete from nodes where node_id = $1

-- name: forget
delete from nodes where seen_at < clock_timestamp() - interval '1 day'

-- name: nodes
select node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age
from nodes order by started_at
