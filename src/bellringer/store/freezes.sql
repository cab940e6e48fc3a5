-- Times in which a tenant's schedules rest, and tenants that rest altogether.

-- name: add
-- Nothing: the tenant has $9 that are not over.
insert into freezes (tenant_id, name, from_at, to_at, policy, tags, reason, made_by, made_at)
select $1, $2, $3, $4, $5, $6, $7, $8, bellringer.now() where bellringer.room_for($1, 'freeze', $9)
returning freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at

-- name: get
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and freeze_id = $2

-- name: named
-- Those of a name that are not over.
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and lower(name) = lower($2) and to_at > bellringer.now()
order by to_at, freeze_id limit 2

-- name: list
select freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at from freezes
where tenant_id = $1 and ($2::timestamptz is null or (to_at, freeze_id) < ($2, $3::integer))
order by to_at desc, freeze_id desc limit $4

-- name: amend
-- Only while it is not over: what it did is history.
update freezes set to_at = $3, reason = $4
where tenant_id = $1 and freeze_id = $2 and to_at > bellringer.now()
returning freeze_id, name, from_at, to_at, policy, tags, reason, made_by, made_at

-- name: covered
-- How many of a tenant's first $3 jobs have one of the tags, or all of them without tags; and how many were looked at.
select count(*) filter (where $2::text[] = '{}' or o.tags && $2) as covered, count(*) as looked
from (select tags from jobs where tenant_id = $1 and deleted_at is null order by job_id limit $3) o

-- name: lift
-- One that has begun ends now; one that has not leaves no trace, as it did nothing.
with begun as (
  update freezes set to_at = bellringer.now()
  where tenant_id = $1 and freeze_id = $2 and to_at > bellringer.now() and from_at < bellringer.now() returning 1),
coming as (
  delete from freezes where tenant_id = $1 and freeze_id = $2 and from_at >= bellringer.now() returning 1)
select exists (select 1 from begun) or exists (select 1 from coming)

-- name: rouse
select bellringer.rouse($1)

-- name: suspend
update tenants set suspended_at = bellringer.now() where tenant_id = $1 and suspended_at is null

-- name: unsuspend
update tenants set suspended_at = null where tenant_id = $1 and suspended_at is not null
