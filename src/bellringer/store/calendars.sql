-- Days off by their content, and the names that tenants give them.

-- name: keep
select bellringer.keep_calendar($1, $2, $3, $4, $5, $6)

-- name: contents
select digest, dates, weekend from days_off where digest = any ($1::text[])

-- name: current
select name, digest from calendars_now() where tenant_id = $1

-- name: list
-- With the jobs that use each, counted up to $4.
select c.name, c.version, c.digest, c.changed_at, c.changed_by, u.jobs, u.outdated
from (select * from calendars_now() where tenant_id = $1 and ($2::text is null or name > $2) order by name limit $3) c
cross join lateral (
  select count(*) as jobs, count(*) filter (where f.outdated) as outdated
  from users_of($1, c.name, c.digest, $4) f) u
order by c.name

-- name: get
select c.name, c.version, c.digest, c.changed_at, c.changed_by, u.jobs, u.outdated
from calendars_now() c
cross join lateral (
  select count(*) as jobs, count(*) filter (where f.outdated) as outdated
  from users_of($1, c.name, c.digest, $3) f) u
where c.tenant_id = $1 and c.name = $2

-- name: outdated
-- Jobs that follow an older version.
select u.job_id from calendars_now() c cross join lateral users_of($1, c.name, c.digest, $3, true) u
where c.tenant_id = $1 and c.name = $2

-- name: users
select u.job from users_of($1, $2, '', $3) u

-- name: drop
update calendars c set deleted_at = bellringer.now() from calendars_now() n
where n.tenant_id = $1 and n.name = $2 and c.tenant_id = n.tenant_id and c.name = n.name and c.version = n.version
  and not exists (select 1 from users_of($1, $2, '', 1))
