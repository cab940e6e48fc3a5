-- API keys.

-- name: find
-- Everything that authentication needs, in one read.
select key.key_id, key.tenant_id, key.name, key.hash, key.role, key.scopes,
       key.last_used_at is null or key.last_used_at < pg_catalog.now() - interval '1 minute' as is_use_stale
from api_keys key
where key.key_id = $1 and key.revoked_at is null and (key.expires_at is null or key.expires_at > pg_catalog.now())

-- name: touch
update api_keys set last_used_at = pg_catalog.now()
where key_id = $1 and (last_used_at is null or last_used_at < pg_catalog.now() - interval '1 minute')

-- name: lock
-- Serializes the creation of keys of a tenant: concurrent requests could otherwise take the same name.
select pg_advisory_xact_lock(LOCK_API_KEYS, $1)

-- name: add
-- Inserts nothing if a valid key has this name. A rotated key and its replacement share a name.
insert into api_keys (key_id, tenant_id, name, hash, role, scopes, created_by, expires_at)
select $1, $2::integer, $3::text, $4::bytea, $5, $6::text[], $7, $8::timestamptz
where not exists (
    select 1 from api_keys key
    where key.tenant_id is not distinct from $2 and lower(key.name) = lower($3) and key.revoked_at is null
      and (key.expires_at is null or key.expires_at > pg_catalog.now()))
returning key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at,
  replaced_by

-- name: get
select key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by
from api_keys
where key_id = $1 and tenant_id is not distinct from $2

-- name: list
select key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at, replaced_by
from api_keys
where tenant_id is not distinct from $1 and ($2::timestamptz is null or (created_at, key_id) > ($2, $3))
order by created_at, key_id limit $4

-- name: revoke
update api_keys set revoked_at = pg_catalog.now()
where key_id = $1 and tenant_id is not distinct from $2 and revoked_at is null

-- name: rotate
-- The old key stays valid for the grace period, at most until its own expiry. Only a valid key can be replaced, and
-- only once.
with old as (
  update api_keys set replaced_by = $3, expires_at = least(expires_at, pg_catalog.now() + $5::interval)
  where key_id = $1 and tenant_id is not distinct from $2 and revoked_at is null and replaced_by is null
    and (expires_at is null or expires_at > pg_catalog.now())
  returning tenant_id, name, role, scopes)
insert into api_keys (key_id, tenant_id, name, hash, role, scopes, created_by, expires_at)
select $3, tenant_id, name, $4, role, scopes, $6, $7 from old
returning key_id, tenant_id, name, role, scopes, created_by, created_at, expires_at, revoked_at, last_used_at,
  replaced_by
