-- name: acquire
-- Free or expired shards of those in $4 (null: all), at most $2. Skipping locked rows lets several nodes take at once without waiting.
with free as materialized (
  select shard from leases where (holder is null or expires_at < clock_timestamp()) and ($4::smallint[] is null or shard = any ($4))
  order by expires_at, shard limit $2 for update skip locked)
update leases l set holder = $1, token = l.token + 1, expires_at = clock_timestamp() + $3::interval
from free where l.shard = free.shard and (l.holder is null or l.expires_at < clock_timestamp())
returning l.shard, l.token

-- name: install
-- Grants that another engine has made: $3 are its numbers, which are only candidates for the tokens. Whoever holds a row is fenced
-- off by the token; a tick under way is waited for.
with those as materialized (
  select l.shard, u.candidate from unnest($2::smallint[], $3::bigint[]) u (shard, candidate)
  join leases l on l.shard = u.shard order by l.shard for update of l)
update leases l set holder = $1, token = greatest(l.token + 1, t.candidate), expires_at = clock_timestamp() + $4::interval
from those t where l.shard = t.shard
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
select l.shard, l.holder, n.name as node, l.token, l.region, extract(epoch from greatest(l.expires_at, 'epoch') - clock_timestamp())::float8 as seconds_left
from leases l left join nodes n on n.node_id = l.holder order by l.shard

-- name: beat
insert into nodes (node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew, region, waits_for)
values ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp(), $6, $7, $8, $9, $10, $11)
on conflict (node_id) do update set seen_at = clock_timestamp(), shards = excluded.shards, fired = excluded.fired,
  refused = excluded.refused, skew = excluded.skew, region = excluded.region, waits_for = excluded.waits_for

-- name: live
select node_id, region from nodes where seen_at > clock_timestamp() - $1::interval order by node_id

-- name: shards
select shard from leases order by shard

-- name: regions
select shard, region from leases where region is not null order by shard

-- name: set_regions
-- All shards at once, in shard order, as the fence of a tick takes them; those that are not named belong to no region. The audit is
-- told once, and not of each row.
with those as materialized (
  select l.shard, u.region from leases l left join unnest($1::smallint[], $2::text[]) u (shard, region) on u.shard = l.shard
  order by l.shard for update of l),
changed as (
  update leases l set region = t.region from those t where l.shard = t.shard and l.region is distinct from t.region returning l.shard)
select bellringer.note(0, 'cluster.regions', 'cluster', 'regions', $3::jsonb) from (select count(*) as n from changed) c where c.n > 0

-- name: silent_leader
-- A leader's connection, as long as no lease is good and it has said nothing for longer than a lease: its process is stopped, or
-- cut off. Ending the connection frees the lock.
select pg_terminate_backend(l.pid) from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.classid = $1 and l.objid = 0 and l.objsubid = 2 and l.granted and a.datname = current_database()
  and l.database = a.datid and a.state_change < clock_timestamp() - $2::interval
  and not exists (select 1 from leases where holder is not null and expires_at > clock_timestamp())

-- name: leave
delete from nodes where node_id = $1

-- name: forget
delete from nodes where seen_at < clock_timestamp() - interval '1 day'

-- name: nodes
select node_id, name, host, pid, version, started_at, seen_at, shards, fired, refused, skew, region, waits_for,
       extract(epoch from clock_timestamp() - seen_at)::float8 as age
from nodes order by started_at

-- name: any_waits
select exists (select 1 from nodes where waits_for is not null and seen_at > clock_timestamp() - interval '10 s')
