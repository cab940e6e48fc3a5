-- Answers by the key of their request. The lock is a statement of its own: the next one sees what its holder before us has
-- committed, which a snapshot that was taken before the lock would not.

-- name: lock
select pg_try_advisory_xact_lock(81, $1)

-- name: find
select fingerprint, status, headers, body from idempotency_keys
where tenant_id = $1 and route = $2 and key = $3 and made_at > bellringer.now() - $4::interval

-- name: keep
-- One that has outlived its time may still be there.
insert into idempotency_keys (tenant_id, route, key, fingerprint, status, headers, body, made_at)
values ($1, $2, $3, $4, $5, $6::jsonb, $7, bellringer.now())
on conflict (tenant_id, route, key) do update set fingerprint = excluded.fingerprint, status = excluded.status,
  headers = excluded.headers, body = excluded.body, made_at = excluded.made_at

-- name: forget
delete from idempotency_keys where made_at <= bellringer.now() - $1::interval
