-- Notification channels, routes, incidents and messages.

-- name: put_channel
-- Inserts nothing if the tenant has $8 channels. A null secret keeps the stored one.
insert into notification_channels as channel
  (tenant_id, name, kind, settings, secret_id, enabled, created_at, changed_at, changed_by)
select $1, $2, $3, $4::text::jsonb, $5, $6, bellringer.now(), bellringer.now(), $7
where exists (select 1 from notification_channels where tenant_id = $1 and name = $2)
  or bellringer.room_for($1, 'notification channel', $8)
on conflict (tenant_id, name) do update
set kind = excluded.kind, settings = excluded.settings, secret_id = coalesce(excluded.secret_id, channel.secret_id),
    enabled = excluded.enabled, changed_at = excluded.changed_at, changed_by = excluded.changed_by
returning channel_id

-- name: channel
select channel_id, tenant_id, name, kind, settings, secret_id, enabled, created_at, changed_at, changed_by
from notification_channels
where tenant_id = $1 and name = $2

-- name: channel_by_id
select channel_id, tenant_id, name, kind, settings, secret_id, enabled, created_at, changed_at, changed_by
from notification_channels
where tenant_id = $1 and channel_id = $2

-- name: channels
select channel_id, tenant_id, name, kind, settings, secret_id, enabled, created_at, changed_at, changed_by
from notification_channels
where tenant_id = $1 and ($2::text is null or name > $2)
order by name limit $3

-- name: delete_channel
delete from notification_channels where tenant_id = $1 and name = $2 returning secret_id

-- name: has_foreign_routes
-- Whether a route of the channel sends events of other tenants.
select exists (
  select 1 from notification_routes route
  join notification_channels channel using (channel_id)
  where channel.tenant_id = $1 and channel.name = $2 and route.tenants <> '{}')

-- name: put_route
-- Inserts nothing if the tenant has $18 routes. A route that is enabled again gets only events from then on. Messages
-- that quiet hours have delayed are decided again.
with kept as (
  insert into notification_routes as route
    (tenant_id, name, channel_id, enabled, tenants, kinds, severity, jobs, tags, owners, group_by, wait, min_interval,
     repeat_after, quiet, recoveries, active_since, created_at, changed_at, changed_by)
  select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::jsonb, $16, bellringer.now(),
         bellringer.now(), bellringer.now(), $17
  where exists (select 1 from notification_routes where tenant_id = $1 and name = $2)
    or bellringer.room_for($1, 'notification route', $18)
  on conflict (tenant_id, name) do update
  set channel_id = excluded.channel_id, enabled = excluded.enabled, tenants = excluded.tenants, kinds = excluded.kinds,
      severity = excluded.severity, jobs = excluded.jobs, tags = excluded.tags, owners = excluded.owners,
      group_by = excluded.group_by, wait = excluded.wait, min_interval = excluded.min_interval,
      repeat_after = excluded.repeat_after, quiet = excluded.quiet, recoveries = excluded.recoveries,
      active_since = case when excluded.enabled and not route.enabled then excluded.active_since
        else route.active_since end,
      changed_at = excluded.changed_at, changed_by = excluded.changed_by
  returning route_id),
due as (
  update notification_incidents incident set next_at = bellringer.now()
  from kept
  where incident.route_id = kept.route_id and incident.held and incident.next_at is not null)
select route_id from kept

-- name: route
select route.*, channel.name as channel, channel.kind as channel_kind, tenant.name as tenant
from notification_routes route
join notification_channels channel using (channel_id)
join tenants tenant on tenant.tenant_id = route.tenant_id
where route.tenant_id = $1 and route.name = $2

-- name: routes
select route.*, channel.name as channel, channel.kind as channel_kind, tenant.name as tenant
from notification_routes route
join notification_channels channel using (channel_id)
join tenants tenant on tenant.tenant_id = route.tenant_id
where route.tenant_id = $1 and ($2::text is null or route.name > $2)
order by route.name limit $3

-- name: delete_route
delete from notification_routes where tenant_id = $1 and name = $2

-- name: active_routes
select route.*, channel.name as channel, channel.kind as channel_kind, tenant.name as tenant
from notification_routes route
join notification_channels channel using (channel_id)
join tenants tenant on tenant.tenant_id = route.tenant_id
where route.enabled and channel.enabled
order by route.route_id

-- name: lock_position
-- One pass at a time: no row if another node is in one.
select tx::text as tx, event_id, moved_at < bellringer.now() - interval '1 minute' as is_old from notification_position
for update skip locked

-- name: move_position
update notification_position set tx = $1::text::xid8, event_id = $2, moved_at = bellringer.now()

-- name: move_to_end
-- While there are no routes, so that the first one does not begin with old events.
update notification_position
set tx = commit_horizon(), event_id = 0, moved_at = bellringer.now()

-- name: tenants
select tenant_id, name from tenants

-- name: new_events
-- The next events of these tenants in commit order; only those below the horizon, so that none can appear before
-- them later.
select event.event_id, event.at, event.kind, event.tenant_id, tenant.name as tenant, event.job_id, job.name as job,
       task.name as task, coalesce(job.owner, checkin.owner) as owner, coalesce(job.tags, checkin.tags, '{}') as tags,
       event.scheduled_for, event.slot, event.attempt, event.data, event.tx::text as tx,
       coalesce(concat_ws(': ', letter.error ->> 'type', letter.error ->> 'message'), '') as error
from (
  select found.* from unnest($1::integer[]) given (tenant_id)
  cross join lateral (
    select * from events event
    where event.tenant_id = given.tenant_id and (event.tx, event.event_id) > ($2::text::xid8, $3::bigint)
      and event.tx < commit_horizon()
    order by event.tx, event.event_id limit $4) found
  order by found.tx, found.event_id limit $4) event
join tenants tenant on tenant.tenant_id = event.tenant_id
left join jobs job on job.job_id = event.job_id
left join checkins checkin on checkin.checkin_id = event.job_id
left join lateral (
  select run.task_id from runs run
  where job.job_id is null and run.job_id = event.job_id and run.scheduled_for = event.scheduled_for
    and run.slot = event.slot) run on true
left join tasks task on task.task_id = coalesce(job.task_id, run.task_id)
left join dead_letters letter on letter.job_id = event.job_id and letter.scheduled_for = event.scheduled_for
  and letter.slot = event.slot and event.kind = 'dead'
order by event.tx, event.event_id

-- name: incidents_for
-- Incidents that events may concern: open ones of a group ($1, $2: routes and keys) or with a subject ($3), the newest
-- closed one of a group; and those with a message that is due.
select incident.* from notification_incidents incident
where incident.resolved_at is null and incident.subjects ?| $3::text[]
union
select incident.* from unnest($1::bigint[], $2::text[]) given (route_id, group_key)
cross join lateral (
  select * from notification_incidents incident
  where incident.route_id = given.route_id and incident.group_key = given.group_key
  order by incident.incident_id desc limit 1) incident
union
(select incident.* from notification_incidents incident
 where incident.next_at <= $4 and incident.route_id = any ($6::bigint[])
 order by incident.next_at limit $5)

-- name: put_incidents
insert into notification_incidents
  (incident_id, tenant_id, route_id, group_key, opened_at, resolved_at, last_at, severity, count, unsent, subjects,
    more,
   recovered, sent, sent_at, next_at, held)
select given.incident_id, given.tenant_id, given.route_id, given.group_key, given.opened_at, given.resolved_at,
       given.last_at, given.severity, given.count, given.unsent, given.subjects, given.more, given.recovered,
         given.sent,
       given.sent_at, given.next_at, given.held
from jsonb_populate_recordset(null::notification_incidents, $1::text::jsonb) given
order by given.resolved_at is null, given.incident_id
on conflict (incident_id) do update
set resolved_at = excluded.resolved_at, last_at = excluded.last_at, severity = excluded.severity,
    count = excluded.count, unsent = excluded.unsent, subjects = excluded.subjects, more = excluded.more,
    recovered = excluded.recovered, sent = excluded.sent, sent_at = excluded.sent_at, next_at = excluded.next_at,
    held = excluded.held

-- name: add_message
insert into notifications (tenant_id, channel_id, route_id, incident_ids, reason, message, made_at)
values ($1, $2, $3, $4, $5, $6::text::jsonb, bellringer.now())
returning notification_id

-- name: unsent
select notification_id, tenant_id, channel_id, message from notifications
where job_id is null
order by notification_id limit $1

-- name: record_run
update notifications set job_id = $2, scheduled_for = $3, slot = $4 where notification_id = $1 and job_id is null

-- name: is_superseded
-- Whether a later message covers every incident of this one.
select exists (
  select 1 from notifications mine
  join notifications later on later.incident_ids @> mine.incident_ids and later.notification_id > mine.notification_id
    and later.channel_id = mine.channel_id
  where mine.notification_id = $1 and mine.incident_ids <> '{}')

-- name: history
select notification.notification_id, channel.name as channel, route.name as route, notification.incident_ids,
       notification.reason, notification.message, notification.made_at, notification.job_id,
       notification.scheduled_for, notification.slot
from notifications notification
join notification_channels channel using (channel_id)
left join notification_routes route on route.route_id = notification.route_id
where notification.tenant_id = $1 and notification.notification_id < $2
  and ($3::text is null or channel.name = $3)
order by notification.notification_id desc limit $4

-- name: incidents
select incident.incident_id, route.name as route, incident.group_key, incident.opened_at, incident.resolved_at,
       incident.last_at, incident.severity, incident.count, incident.subjects, incident.more, incident.sent,
       incident.sent_at, incident.next_at, incident.held
from notification_incidents incident
join notification_routes route on route.route_id = incident.route_id
where incident.tenant_id = $1 and incident.incident_id < $2 and (not $3 or incident.resolved_at is null)
order by incident.incident_id desc limit $4

-- name: forget
with old_messages as (delete from notifications where made_at < $1)
delete from notification_incidents where resolved_at < $1
