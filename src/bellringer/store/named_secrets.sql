-- Secrets that arguments refer to by name.

-- name: put
-- Creates or replaces a secret; returns no row if the tenant has $8 secrets and none of this name.
insert into named_secrets as secret
  (tenant_id, name, key_id, sealed, tasks, origins, note, created_at, created_by, changed_at, changed_by)
select $1, $2, $3, $4, $5, $6, $7, bellringer.now(), $9, bellringer.now(), $9
where exists (select 1 from named_secrets where tenant_id = $1 and name = $2) or bellringer.room_for($1, 'secret', $8)
on conflict (tenant_id, name) do update
set version = secret.version + 1, key_id = excluded.key_id, sealed = excluded.sealed, tasks = excluded.tasks,
    origins = excluded.origins, note = excluded.note, changed_at = excluded.changed_at,
    changed_by = excluded.changed_by
returning name, version, key_id, tasks, origins, note, created_at, created_by, changed_at, changed_by

-- name: get
select name, version, key_id, tasks, origins, note, created_at, created_by, changed_at, changed_by from named_secrets
where tenant_id = $1 and name = $2

-- name: list
select name, version, key_id, tasks, origins, note, created_at, created_by, changed_at, changed_by from named_secrets
where tenant_id = $1 and ($2::text is null or name > $2)
order by name limit $3

-- name: known
select name from named_secrets where tenant_id = $1 and name = any ($2::text[])

-- name: sealed
select name, key_id, sealed, tasks, origins from named_secrets where tenant_id = $1 and name = any ($2::text[])

-- name: delete
delete from named_secrets where tenant_id = $1 and name = $2

-- name: outdated
-- Secrets that are encrypted with another key than $1, in batches after ($2, $3).
select tenant_id, name, key_id, sealed, tasks, origins from named_secrets
where key_id <> $1 and (tenant_id, name) > ($2::integer, $3::text)
order by tenant_id, name limit $4

-- name: reseal
-- Does nothing if the value was replaced since it was read.
update named_secrets set key_id = $4, sealed = $5 where tenant_id = $1 and name = $2 and sealed = $3

-- name: outdated_target_secrets
-- Secrets of HTTP targets and webhooks that are encrypted with another key than $1, in batches after ($2, $3).
select tenant_id, secret_id, key_id, sealed, previous_key_id, previous from secrets
where (key_id <> $1 or previous_key_id <> $1) and (tenant_id, secret_id) > ($2::integer, $3::text)
order by tenant_id, secret_id limit $4

-- name: reseal_target_secret
update secrets set key_id = $4, sealed = $5, previous_key_id = $6, previous = $7
where tenant_id = $1 and secret_id = $2 and sealed = $3

-- name: key_uses
-- How many values each key still decrypts: named secrets, secrets of HTTP targets and webhooks, and jobs whose target
-- contains encrypted headers, bodies or URLs.
select 'secret' as place, key_id, count(*) as uses from named_secrets group by key_id
union all
select 'signing secret', key_id, count(*) from (
  select key_id from secrets
  union all select previous_key_id from secrets where previous_key_id is not null) used group by key_id
union all
select 'HTTP job', found.key_id, count(distinct job.job_id)
from jobs job
join tasks task using (task_id)
cross join lateral (
  select match[1] as key_id
  from regexp_matches(job.spec::text, '"(?:sealed|\$sealed|sealed_url)": "([A-Za-z0-9_-]{1,32}):', 'g') match) found
where task.name = 'http' and job.deleted_at is null
group by found.key_id
order by 1, 2
