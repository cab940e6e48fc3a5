-- Who wants to be told of events, and what was sent to them.

-- name: add
-- Nothing: the tenant has $7 already.
insert into webhook_endpoints (tenant_id, url, kinds, description, secret_id, created_at, created_by, changed_at)
select $1, $2, $3, $4, $5, bellringer.now(), $6, bellringer.now()
where bellringer.room_for($1, 'webhook endpoint', $7) returning endpoint_id

-- name: get
select endpoint_id, tenant_id, url, kinds, description, secret_id, enabled, disabled_reason, created_at, created_by, changed_at
from webhook_endpoints where tenant_id = $1 and endpoint_id = $2

-- name: listing
select endpoint_id, tenant_id, url, kinds, description, secret_id, enabled, disabled_reason, created_at, created_by, changed_at
from webhook_endpoints where tenant_id = $1 and endpoint_id > $2 order by endpoint_id limit $3

-- name: change
-- One that is switched on again is told of what happens from then on, not of what it missed.
update webhook_endpoints set url = $3, kinds = $4, description = $5, enabled = $6, changed_at = bellringer.now(),
       disabled_reason = case when $6 then null when enabled then 'switched off' else disabled_reason end,
       told_tx = case when $6 and not enabled then pg_current_xact_id() else told_tx end,
       told_event = case when $6 and not enabled then 9223372036854775807 else told_event end
where tenant_id = $1 and endpoint_id = $2

-- name: delete
delete from webhook_endpoints where tenant_id = $1 and endpoint_id = $2 returning secret_id

-- name: waiting
-- Endpoints with something to tell: all of it is final, because whoever might still write something earlier has ended.
select w.endpoint_id, w.tenant_id, w.url, w.kinds, w.description, w.secret_id, w.enabled, w.disabled_reason, w.created_at, w.created_by,
       w.changed_at, w.told_tx::text as told_tx, w.told_event
from webhook_endpoints w
where w.enabled and exists (
  select 1 from events e where e.tenant_id = w.tenant_id and (e.tx, e.event_id) > (w.told_tx, w.told_event)
    and e.tx < pg_snapshot_xmin(pg_current_snapshot()))
order by random() limit $1        -- where there are more, every pass looks at others: nobody waits for the busy ones

-- name: news
select e.event_id, e.at, e.kind, e.job_id, j.name as job, e.scheduled_for, e.slot, e.attempt, e.data, e.tx::text as tx
from events e left join jobs j on j.job_id = e.job_id
where e.tenant_id = $1 and (e.tx, e.event_id) > ($2::text::xid8, $3::bigint) and e.tx < pg_snapshot_xmin(pg_current_snapshot())
order by e.tx, e.event_id limit $4

-- name: move
update webhook_endpoints set told_tx = $4::text::xid8, told_event = $5
where endpoint_id = $1 and told_tx = $2::text::xid8 and told_event = $3

-- name: delivered
insert into deliveries (tenant_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of)
select $1, $2, $3, $4, $5, $6, $7, bellringer.now(), $8 where exists (select 1 from webhook_endpoints where endpoint_id = $2)
on conflict do nothing returning delivery_id

-- name: deliveries
select delivery_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of
from deliveries where tenant_id = $1 and endpoint_id = $2 and delivery_id < $3 order by delivery_id desc limit $4

-- name: delivery
select delivery_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of
from deliveries where tenant_id = $1 and delivery_id = $2

-- name: forget
delete from deliveries where made_at < $1
