-- Names that hot rows carry as small numbers. Rows are only ever added, so what was read once stays true.

-- name: tenants
select tenant_id, name from tenants

-- name: find_pools
select pool_id, name from pools where name = any ($1::text[])

-- name: common_pools
-- Those that somebody has described or works for: names that are no secret of a tenant's.
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
-- Only what is missing: an insert that meets a conflict uses up a number, and pools have few.
insert into pools (name) select n from unnest($1::text[]) n where not exists (select 1 from pools p where p.name = n)
on conflict do nothing

-- name: add_tasks
insert into tasks (name) select n from unnest($1::text[]) n where not exists (select 1 from tasks t where t.name = n)
on conflict do nothing

-- name: lock_tasks
-- Two requests that count at once would both find room.
select pg_advisory_xact_lock(87, $1)

-- name: make_up_tasks
-- All or none: names of one tenant that no worker knows have a bound, for nobody ever takes them back.
insert into tasks (name, named_by) select n, $2 from unnest($1::text[]) n
where not exists (select 1 from tasks t where t.name = n)
  and (select count(*) from tasks t where t.named_by = $2) + cardinality($1::text[]) <= $3
on conflict do nothing

-- name: add_limits
insert into limits (tenant_id, key, most) select $1, u.key, u.most from unnest($2::text[], $3::integer[]) u (key, most)
where not exists (select 1 from limits l where l.tenant_id = $1 and l.key = u.key)
on conflict do nothing

-- name: find_limits
select key, key_id from limits where tenant_id = $1 and key = any ($2::text[])

-- name: describe_tasks
update tasks t set schema = u.schema::jsonb, doc = u.doc, defaults = u.defaults::jsonb, named_by = null
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) u (name, schema, doc, defaults)
where t.name = u.name
  and (t.schema, t.doc, t.defaults, t.named_by) is distinct from (u.schema::jsonb, u.doc, u.defaults::jsonb, null::integer)

-- name: task_defaults
select defaults from tasks where name = $1

-- name: add_schedules
insert into schedules (kind, expression, timezone, anchor, seconds, dst, calendar, fires_per_minute)
select u.* from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::text[], $8::float8[])
  u (kind, expression, timezone, anchor, seconds, dst, calendar, fires_per_minute)
left join schedules s using (kind, expression, timezone, anchor, seconds, dst, calendar) where s.schedule_id is null
on conflict do nothing

-- name: find_schedules
select s.schedule_id, s.kind, s.expression, s.timezone, s.anchor, s.seconds, s.dst, s.calendar
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::text[])
  u (kind, expression, timezone, anchor, seconds, dst, calendar)
join schedules s using (kind, expression, timezone, anchor, seconds, dst, calendar)

-- name: read_schedules
select schedule_id, kind, expression, timezone, anchor, seconds, dst, calendar from schedules where schedule_id = any ($1::integer[])

-- name: installation
select name from cluster
