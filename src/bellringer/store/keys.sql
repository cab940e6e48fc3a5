-- API keys: who may come in.

-- name: find
-- For the door: all that it needs to know, in one read.
select k.key_id, k.tenant_id, k.name, k.hash, k.role, k.scopes,
       k.last_used_at is null or k.last_used_at < pg_catalog.now() - interval '1 minute' as is_rusty
from api_keys k
where k.key_id = $1 and k.revoked_at is null and (k.expires_at is null or k.expires_at > pg_catalog.now())

-- name: touch
update api_keys set last_used_at = pg_catalog.now()
where key_id = $1 and (last_used_at is null or last_used_at < pg_catalog.now() - interval '1 minute')

-- name: lock
-- Whoever adds keys to a tenant does so one after the other, or two at once would find the same name free.
select pg_advisory_xact_lock(86, $1)

-- name: add
-- None if a key that is good has that name; one that was rotated and its heir share theirs.
insert into api_keys (key_id, tenant_id, name, hash, role, scopes, created_by, expires_at)
select $1, $2::integer, $3::text, $4::bytea, $5, $6::text[], $7, $8::timestamptz
where not exists (
  select 1 from api_keys k
  where k.tenant_id is not distinct from $2 and lower(k.name) = lower($3) and k.revoked_at is null
    and (k.expires_at is null or k.expires_at > pg_catalog.now()))
returning key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by

-- name: get
select key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by
from api_keys where key_id = $1 and tenant_id is not distinct from $2

-- name: list
select key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by
from api_keys
where tenant_id is not distinct from $1 and ($2::timestamptz is null or (created_at, key_id) > ($2, $3))
order by created_at, key_id limit $4

-- name: revoke
update api_keys set revoked_at = pg_catalog.now() where key_id = $1 and tenant_id is not distinct from $2 and revoked_at is null

-- name: rotate
-- The old one lives on for the grace, no longer than it would have; only one that is still good can be replaced, and once.
with old as (
  update api_keys set replaced_by = $3, expires_at = least(expires_at, pg_catalog.now() + $5::interval)
  where key_id = $1 and tenant_id is not distinct from $2 and revoked_at is null and replaced_by is null
    and (expires_at is null or expires_at > pg_catalog.now())
  returning tenant_id, name, role, scopes)
insert into api_keys (key_id, tenant_id, name, hash, role, scopes, created_by, expires_at)
select $3, tenant_id, name, $4, role, scopes, $6, $7 from old
returning key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by
