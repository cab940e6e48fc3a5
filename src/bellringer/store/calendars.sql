-- Calendars of tenants, and their contents by digest.

-- name: store
select bellringer.store_calendar($1, $2, $3, $4, $5, $6, $7)

-- name: contents
select digest, dates, weekend, hours from days_off where digest = any ($1::text[])

-- name: current
select name, digest from calendars_now() where tenant_id = $1

-- name: list
-- Each with the number of jobs that use it, counted up to $4.
select calendar.name, calendar.version, calendar.digest, calendar.changed_at, calendar.changed_by, counts.jobs,
       counts.outdated
from (
  select * from calendars_now()
  where tenant_id = $1 and ($2::text is null or name > $2)
  order by name limit $3) calendar
cross join lateral (
  select count(*) as jobs, count(*) filter (where job.outdated) as outdated
  from jobs_with_calendar($1, calendar.name, calendar.digest, $4) job) counts
order by calendar.name

-- name: get
select calendar.name, calendar.version, calendar.digest, calendar.changed_at, calendar.changed_by, counts.jobs,
       counts.outdated
from calendars_now() calendar
cross join lateral (
  select count(*) as jobs, count(*) filter (where job.outdated) as outdated
  from jobs_with_calendar($1, calendar.name, calendar.digest, $3) job) counts
where calendar.tenant_id = $1 and calendar.name = $2

-- name: outdated
-- Jobs that use an older version.
select u.job_id from calendars_now() c
cross join lateral jobs_with_calendar($1, c.name, c.digest, $3, true) u
where c.tenant_id = $1 and c.name = $2

-- name: jobs_with_calendar
select u.job from jobs_with_calendar($1, $2, '', $3) u

-- name: delete
update calendars calendar set deleted_at = bellringer.now()
from calendars_now() current
where current.tenant_id = $1 and current.name = $2 and calendar.tenant_id = current.tenant_id
  and calendar.name = current.name and calendar.version = current.version
  and not exists (select 1 from jobs_with_calendar($1, $2, '', 1))
