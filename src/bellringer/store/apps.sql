-- Apps: the programs whose code declares jobs.

-- name: look
-- What a process has to know before it declares: whether a newer version is current ($3: its own), and whether the app
-- has jobs that are not among $4.
select app.app_id, app.version, app.orphans, app.declared_at < bellringer.now() - $5::interval as is_old,
       coalesce(own.number < app.number, false) as is_superseded,
       exists (
         select job.job_id from jobs job
         where job.app_id = app.app_id and job.deleted_at is null and job.done_at is null and job.orphaned_at is null
         except select unnest($4::uuid[])) as has_more_jobs
from apps app
left join app_versions own on own.app_id = app.app_id and own.version = $3
where app.tenant_id = $1 and app.name = $2

-- name: declare
select since, superseded_by, adopted, orphaned
from bellringer.declare_app($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, $12::jsonb, $13, $14, $15, $16, $17,
                            $18)

-- name: resumed
update jobs set orphan_paused_by = null where job_id = $1 and tenant_id = $2 and orphan_paused_by is not null

-- name: activate
select bellringer.activate_app_version($1, $2, $3, $4)

-- name: page
-- The apps after $2 by name, with their jobs counted up to $4; with $5, only the app of this name.
select name, version, policy, created_at, declared_at, jobs, orphans from bellringer.list_apps($1, $2, $3, $4, $5)

-- name: versions
select nullif(version.version, '') as version, version.first_seen_at, version.activated_at, version.activated_by,
       version.number = app.number as is_current
from apps app
join app_versions version on version.app_id = app.app_id
where app.tenant_id = $1 and app.name = $2
order by version.number desc limit $3

-- name: count_orphans
select count(*) from jobs where orphaned_at is not null and deleted_at is null

-- name: firing_orphans
select job.name from apps app
cross join lateral (
  select job.name from jobs job
  where job.app_id = app.app_id and job.orphaned_at is not null and job.deleted_at is null and job.paused_at is null
    and job.enabled and job.done_at is null
  order by job.job_id limit $3) job
where app.tenant_id = $1 and app.name = $2
