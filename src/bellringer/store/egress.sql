-- Secrets and breakers.

-- name: store_secret
-- Returns the stored secret if one has the same keyed hash. needed_until is rounded up to a day, so that sends that
-- share a secret update its row at most once a day.
with added as (
  insert into secrets as secret (tenant_id, secret_id, key_id, sealed, keyed_hash, needed_until, created_at, changed_at)
  values ($1, $2, $3, $4, $5, date_trunc('day', $6::timestamptz) + interval '1 day', bellringer.now(), bellringer.now())
  on conflict (tenant_id, keyed_hash)
  where keyed_hash is not null do update
  set needed_until = excluded.needed_until
  where secret.needed_until < excluded.needed_until
  returning secret_id)
select secret_id from added union all select secret_id from secrets where tenant_id = $1 and keyed_hash = $5 limit 1

-- name: rotate_secret
-- The current secret becomes the previous one and stays valid for $5, until receivers know the new one.
update secrets
set previous_key_id = key_id, previous = sealed, previous_until = bellringer.now() + $5::interval, key_id = $3,
    sealed = $4, keyed_hash = null, changed_at = bellringer.now()
where tenant_id = $1 and secret_id = $2

-- name: secret
select key_id, sealed, previous_key_id, previous
from (
  select key_id, sealed, case when previous_until > bellringer.now() then previous_key_id end as previous_key_id,
         case when previous_until > bellringer.now() then previous end as previous
  from secrets
  where tenant_id = $1 and secret_id = $2) secret

-- name: has_secret
select exists (select 1 from secrets where tenant_id = $1 and secret_id = $2)

-- name: delete_secret
delete from secrets where tenant_id = $1 and secret_id = $2

-- name: breaker
select state, failures, opened_at, probe_at, reason, bellringer.now() as now from breakers
where tenant_id = $1 and origin = $2

-- name: probe
-- Claims the probe, unless another call has claimed it since it was read.
update breakers set state = 'half_open', probe_at = bellringer.now() + $4::interval, changed_at = bellringer.now()
where tenant_id = $1 and origin = $2 and state in ('open', 'half_open') and probe_at = $3
  and probe_at <= bellringer.now()
returning probe_at

-- name: failed
select bellringer.breaker_failed($1, $2, $3, $4, $5, $6, $7)

-- name: succeeded
-- A successful probe closes the breaker; any other success only resets the failure count.
delete from breakers
where tenant_id = $1 and origin = $2
  and case when $3::timestamptz is null then state = 'closed' else state = 'half_open' and probe_at = $3 end

-- name: delete_breakers
-- Breakers of origins that were not called since $1.
delete from breakers where changed_at < $1

-- name: delete_secrets
-- Secrets that no endpoint, job or send has needed since $1. Revisions count, because a job can be rolled back to them;
-- those of deleted jobs do not.
delete from secrets secret
where coalesce(secret.needed_until, secret.changed_at) < $1
  and not exists (
    select 1 from webhook_endpoints endpoint
    where endpoint.tenant_id = secret.tenant_id and endpoint.secret_id = secret.secret_id)
  and not exists (
    select 1 from notification_channels channel
    where channel.tenant_id = secret.tenant_id and channel.secret_id = secret.secret_id)
  and not exists (
    select 1 from jobs job
    where job.spec #>> '{kwargs,secret,id}' = secret.secret_id and (job.deleted_at is null or job.deleted_at >= $1))
  and not exists (
    select 1 from job_revisions revision
    join jobs job using (job_id)
    where revision.definition #>> '{spec,kwargs,secret,id}' = secret.secret_id
      and (job.deleted_at is null or job.deleted_at >= $1))

-- name: is_endpoint_enabled
select exists (select 1 from webhook_endpoints where tenant_id = $1 and endpoint_id = $2 and enabled)

-- name: disable_endpoint
update webhook_endpoints set enabled = false, disabled_reason = $3, changed_at = bellringer.now()
where tenant_id = $1 and endpoint_id = $2 and enabled
