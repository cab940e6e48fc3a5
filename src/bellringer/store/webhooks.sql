-- Webhook endpoints and deliveries.

-- name: add
-- Inserts nothing if the tenant has $7 endpoints.
insert into webhook_endpoints (tenant_id, url, kinds, description, secret_id, created_at, created_by, changed_at)
select $1, $2, $3, $4, $5, bellringer.now(), $6, bellringer.now()
where bellringer.room_for($1, 'webhook endpoint', $7)
returning endpoint_id

-- name: get
select endpoint_id, tenant_id, url, kinds, description, secret_id, enabled, disabled_reason, created_at, created_by,
       changed_at
from webhook_endpoints
where tenant_id = $1 and endpoint_id = $2

-- name: list
select endpoint_id, tenant_id, url, kinds, description, secret_id, enabled, disabled_reason, created_at, created_by,
       changed_at
from webhook_endpoints
where tenant_id = $1 and endpoint_id > $2
order by endpoint_id limit $3

-- name: change
-- An endpoint that is enabled again gets only events from then on.
update webhook_endpoints
set url = $3, kinds = $4, description = $5, enabled = $6, changed_at = bellringer.now(),
    disabled_reason = case when $6 then null when enabled then 'switched off' else disabled_reason end,
    sent_tx = case when $6 and not enabled then commit_position() else sent_tx end,
    sent_event = case when $6 and not enabled then 9223372036854775807 else sent_event end
where tenant_id = $1 and endpoint_id = $2

-- name: delete
delete from webhook_endpoints where tenant_id = $1 and endpoint_id = $2 returning secret_id

-- name: with_new_events
-- Endpoints with undelivered events. Only events of transactions below xmin are read, so none can appear before them
-- later. In random order, so that no endpoint is always behind the busy ones.
select endpoint.endpoint_id, endpoint.tenant_id, endpoint.url, endpoint.kinds, endpoint.description, endpoint.secret_id,
       endpoint.enabled, endpoint.disabled_reason, endpoint.created_at, endpoint.created_by, endpoint.changed_at,
       endpoint.sent_tx::text as sent_tx, endpoint.sent_event
from webhook_endpoints endpoint
where endpoint.enabled
  and exists (
    select 1 from events event
    where event.tenant_id = endpoint.tenant_id and (event.tx, event.event_id) > (endpoint.sent_tx, endpoint.sent_event)
      and event.tx < commit_horizon())
order by random() limit $1

-- name: new_events
select event.event_id, event.at, event.kind, event.job_id, job.name as job, event.scheduled_for, event.slot,
       event.attempt, event.data, event.tx::text as tx
from events event
left join jobs job on job.job_id = event.job_id
where event.tenant_id = $1 and (event.tx, event.event_id) > ($2::text::xid8, $3::bigint)
  and event.tx < commit_horizon()
order by event.tx, event.event_id limit $4

-- name: task_of_run
select task.name from runs run join tasks task on task.task_id = run.task_id
where run.job_id = $1 and run.scheduled_for = $2 and run.slot = $3 and run.tenant_id + 0 = $4

-- name: advance
update webhook_endpoints set sent_tx = $4::text::xid8, sent_event = $5
where endpoint_id = $1 and sent_tx = $2::text::xid8 and sent_event = $3

-- name: add_delivery
insert into deliveries (tenant_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of)
select $1, $2, $3, $4, $5, $6, $7, bellringer.now(), $8
where exists (select 1 from webhook_endpoints where endpoint_id = $2) on conflict do nothing
returning delivery_id

-- name: deliveries
select delivery_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of from deliveries
where tenant_id = $1 and endpoint_id = $2 and delivery_id < $3
order by delivery_id desc limit $4

-- name: delivery
select delivery_id, endpoint_id, event_id, kind, job_id, scheduled_for, slot, made_at, replay_of from deliveries
where tenant_id = $1 and delivery_id = $2

-- name: forget
delete from deliveries where made_at < $1
