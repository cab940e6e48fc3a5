-- Freezes and suspended tenants.

-- name: add
-- Inserts nothing if the tenant has $9 open freezes.
insert into freezes (tenant_id, name, from_at, to_at, policy, tags, reason, made_by, made_at)
select $1, $2, $3, $4, $5, $6, $7, $8, bellringer.now()
where bellringer.room_for($1, 'freeze', $9)
returning freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at

-- name: get
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and freeze_id = $2

-- name: by_name
-- Open freezes with a name.
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and lower(name) = lower($2) and to_at > bellringer.now()
order by to_at, freeze_id limit 2

-- name: list
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and ($2::timestamptz is null or (to_at, freeze_id) < ($2, $3::integer))
order by to_at desc, freeze_id desc limit $4

-- name: between
-- Freezes that overlap [$2, $3), in the order of their start.
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at
from (
  select * from freezes
  where tenant_id = $1 and to_at > $2
  order by to_at, freeze_id limit $4) open_freeze
where from_at < $3
order by from_at, freeze_id

-- name: change
-- Only open freezes can be changed.
update freezes set to_at = $3, reason = $4 where tenant_id = $1 and freeze_id = $2 and to_at > bellringer.now()
returning freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at

-- name: covered
-- How many of a tenant's first $3 jobs have one of the tags (without tags: all), and how many jobs were read.
select count(*) filter (where $2::text[] = '{}' or o.tags && $2) as covered, count(*) as scanned
from (select tags from jobs where tenant_id = $1 and deleted_at is null order by job_id limit $3) o

-- name: end
-- Ends a freeze that has begun; deletes one that has not.
with ended as (
  update freezes set to_at = bellringer.now()
  where tenant_id = $1 and freeze_id = $2 and to_at > bellringer.now() and from_at < bellringer.now()
  returning 1),
deleted as (delete from freezes where tenant_id = $1 and freeze_id = $2 and from_at >= bellringer.now() returning 1)
select exists (select 1 from ended) or exists (select 1 from deleted)

-- name: recheck_frozen
select bellringer.recheck_frozen($1)

-- name: suspend
update tenants set suspended_at = bellringer.now() where tenant_id = $1 and suspended_at is null

-- name: unsuspend
update tenants set suspended_at = null where tenant_id = $1 and suspended_at is not null
