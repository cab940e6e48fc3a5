-- Stored responses by idempotency key. The lock is a separate statement, so that the next statement has a new snapshot
-- and sees what the previous holder of the lock has committed.

-- name: lock
select pg_try_advisory_xact_lock(LOCK_IDEMPOTENCY, $1)

-- name: find
select fingerprint, status, headers, body from idempotency_keys
where tenant_id = $1 and route = $2 and key = $3 and made_at > bellringer.now() - $4::interval

-- name: store
-- Replaces an expired response with the same key.
insert into idempotency_keys (tenant_id, route, key, fingerprint, status, headers, body, made_at)
values ($1, $2, $3, $4, $5, $6::jsonb, $7, bellringer.now())
on conflict (tenant_id, route, key) do update
set fingerprint = excluded.fingerprint, status = excluded.status, headers = excluded.headers, body = excluded.body,
    made_at = excluded.made_at

-- name: tenant_blocks
-- Reads at most $2 rows.
select coalesce(sum(blocks), 0) from (select blocks from idempotency_keys where tenant_id = $1 limit $2) kept

-- name: all_blocks
select coalesce(sum(blocks), 0) from (select blocks from idempotency_keys limit $1) kept

-- name: forget
delete from idempotency_keys where made_at <= bellringer.now() - $1::interval
