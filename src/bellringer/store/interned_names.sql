-- Ids of tenants, pools, tasks, limits and schedules, which callers may cache. Only schedules are ever deleted, and no
-- id is used again; `register` refuses the id of a deleted schedule.

-- name: tenants
select tenant_id, name from tenants

-- name: find_pools
select pool_id, name from pools where name = any ($1::text[])

-- name: common_pools
-- Pools that are declared or have workers. Other names were made up by tenants and are private.
select p.name from pools p
where p.declared or exists (select 1 from workers w where w.state in ('live', 'draining') and w.pools ? p.name)
order by p.name limit 200

-- name: find_tasks
select task_id, name from tasks where name = any ($1::text[])

-- name: read_tasks
select task_id, name from tasks where task_id = any ($1::integer[])

-- name: shards
select shards from cluster

-- name: regions
select shard, region from leases where region is not null

-- name: secret
select secret from cluster

-- name: add_pools
-- Inserts only missing names: an insert with a conflict uses up an id, and ids are smallint.
insert into pools (name)
select n from unnest($1::text[]) n
where not exists (select 1 from pools p where p.name = n) on conflict do nothing

-- name: add_tasks
insert into tasks (name)
select n from unnest($1::text[]) n
where not exists (select 1 from tasks t where t.name = n) on conflict do nothing

-- name: lock_tasks
-- Serializes the naming of tasks for a tenant: two concurrent requests could otherwise both be within its limit.
select pg_advisory_xact_lock(LOCK_TASK_NAMES, $1)

-- name: add_tasks_of_tenant
-- Inserts all names or none. A tenant may name only $3 tasks that no worker knows, because names are never deleted.
insert into tasks (name, named_by)
select task_name, $2 from unnest($1::text[]) task_name
where not exists (select 1 from tasks task where task.name = task_name)
  and (select count(*) from tasks task where task.named_by = $2) + cardinality($1::text[]) <= $3
on conflict do nothing

-- name: add_limits
insert into limits (tenant_id, key, most)
select $1, given.key, given.most from unnest($2::text[], $3::integer[]) given (key, most)
where not exists (select 1 from limits job_limit where job_limit.tenant_id = $1 and job_limit.key = given.key)
on conflict do nothing

-- name: find_limits
select key, key_id from limits where tenant_id = $1 and key = any ($2::text[])

-- name: describe_tasks
update tasks task set schema = given.schema::jsonb, doc = given.doc, defaults = given.defaults::jsonb, named_by = null
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) given (name, schema, doc, defaults)
where task.name = given.name
  and (task.schema, task.doc, task.defaults, task.named_by) is distinct from (given.schema::jsonb, given.doc,
      given.defaults::jsonb, null::integer)

-- name: task_defaults
select defaults from tasks where name = $1

-- name: add_schedules
insert into schedules (kind, expression, timezone, anchor, seconds, dst, calendar, fires_per_minute, check_at)
select given.*, bellringer.now() + interval '1 day'
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::text[],
            $8::float8[]) given (kind, expression, timezone, anchor, seconds, dst, calendar, fires_per_minute)
left join schedules schedule using (kind, expression, timezone, anchor, seconds, dst, calendar)
where schedule.schedule_id is null on conflict do nothing

-- name: find_schedules
select schedule.schedule_id, schedule.kind, schedule.expression, schedule.timezone, schedule.anchor, schedule.seconds,
       schedule.dst, schedule.calendar
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[],
            $7::text[]) given (kind, expression, timezone, anchor, seconds, dst, calendar)
join schedules schedule using (kind, expression, timezone, anchor, seconds, dst, calendar)

-- name: read_schedules
select schedule_id, kind, expression, timezone, anchor, seconds, dst, calendar from schedules
where schedule_id = any ($1::integer[])

-- name: cluster_name
select name from cluster
