-- Secrets and breakers.

-- name: keep_secret
-- One with a mark that is known already is that one. How long it is needed is told by whole days, so that sends that share
-- it write no more than one row version a day.
with added as (
  insert into secrets as s (tenant_id, secret_id, key_id, sealed, mark, needed_until, created_at, changed_at)
  values ($1, $2, $3, $4, $5, date_trunc('day', $6::timestamptz) + interval '1 day', bellringer.now(), bellringer.now())
  on conflict (tenant_id, mark) where mark is not null do update set needed_until = excluded.needed_until
  where s.needed_until < excluded.needed_until returning secret_id)
select secret_id from added union all select secret_id from secrets where tenant_id = $1 and mark = $5 limit 1

-- name: rotate_secret
-- The present one becomes the previous one, for as long as receivers need to learn the new one.
update secrets set previous_key_id = key_id, previous = sealed, previous_until = bellringer.now() + $5::interval,
       key_id = $3, sealed = $4, mark = null, changed_at = bellringer.now()
where tenant_id = $1 and secret_id = $2

-- name: secret
select key_id, sealed, previous_key_id, previous from (
  select key_id, sealed, case when previous_until > bellringer.now() then previous_key_id end as previous_key_id,
         case when previous_until > bellringer.now() then previous end as previous
  from secrets where tenant_id = $1 and secret_id = $2) s

-- name: has_secret
select exists (select 1 from secrets where tenant_id = $1 and secret_id = $2)

-- name: drop_secret
delete from secrets where tenant_id = $1 and secret_id = $2

-- name: breaker
select state, failures, opened_at, probe_at, reason, bellringer.now() as now from breakers where tenant_id = $1 and origin = $2

-- name: probe
-- Become the one who tries, if nobody else has since it was looked at.
update breakers set state = 'half_open', probe_at = bellringer.now() + $4::interval, changed_at = bellringer.now()
where tenant_id = $1 and origin = $2 and state in ('open', 'half_open') and probe_at = $3 and probe_at <= bellringer.now()
returning probe_at

-- name: failed
select bellringer.breaker_failed($1, $2, $3, $4, $5, $6, $7)

-- name: worked
-- A probe that came back well closes it; any other success only ends the count.
delete from breakers where tenant_id = $1 and origin = $2
  and case when $3::timestamptz is null then state = 'closed' else state = 'half_open' and probe_at = $3 end

-- name: forget
-- Origins that nobody has called for long.
delete from breakers where changed_at < $1

-- name: forget_secrets
-- Those that no endpoint, no job and no send needs, or has needed since. A job needs also what its old revisions name, to which
-- it may be rolled back; one that is deleted needs them no more.
delete from secrets s where coalesce(s.needed_until, s.changed_at) < $1
  and not exists (select 1 from webhook_endpoints w where w.tenant_id = s.tenant_id and w.secret_id = s.secret_id)
  and not exists (select 1 from jobs j where j.spec #>> '{kwargs,secret,id}' = s.secret_id and (j.deleted_at is null or j.deleted_at >= $1))
  and not exists (
    select 1 from job_revisions r join jobs j using (job_id)
    where r.definition #>> '{spec,kwargs,secret,id}' = s.secret_id and (j.deleted_at is null or j.deleted_at >= $1))

-- name: is_told
select exists (select 1 from webhook_endpoints where tenant_id = $1 and endpoint_id = $2 and enabled)

-- name: disable_endpoint
update webhook_endpoints set enabled = false, disabled_reason = $3, changed_at = bellringer.now()
where tenant_id = $1 and endpoint_id = $2 and enabled
