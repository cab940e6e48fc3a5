-- Check-ins and their pings.

-- name: get
select checkin_id, tenant_id, name, description, schedule, grace, owner, tags, state, paused_at, due_at, deadline_at,
       started_at, pinged_at, succeeded_at, down_since, duration, pings, created_at, changed_at, changed_by
from checkins
where tenant_id = $1 and name = $2

-- name: list
select checkin_id, tenant_id, name, description, schedule, grace, owner, tags, state, paused_at, due_at, deadline_at,
       started_at, pinged_at, succeeded_at, down_since, duration, pings, created_at, changed_at, changed_by
from checkins
where tenant_id = $1 and ($2::text is null or name > $2)
order by name limit $3

-- name: lock_by_token
select checkin_id, tenant_id, name, description, schedule, grace, owner, tags, state, paused_at, due_at, deadline_at,
       started_at, pinged_at, succeeded_at, down_since, duration, pings, created_at, changed_at, changed_by
from checkins
where token_hash = $1
for update

-- name: id_by_token
select checkin_id, tenant_id from checkins where token_hash = $1

-- name: lock_by_name
select checkin_id, tenant_id, name, description, schedule, grace, owner, tags, state, paused_at, due_at, deadline_at,
       started_at, pinged_at, succeeded_at, down_since, duration, pings, created_at, changed_at, changed_by
from checkins
where tenant_id = $1 and name = $2
for update

-- name: add
-- Inserts nothing if the tenant has $11 check-ins, or one of this name.
insert into checkins (checkin_id, tenant_id, name, description, schedule, grace, owner, tags, token_hash, created_at,
                      changed_at, changed_by)
select $1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9, bellringer.now(), bellringer.now(), $10
where bellringer.room_for($2, 'check-in', $11)
on conflict (tenant_id, name) do nothing
returning checkin_id

-- name: change
update checkins
set description = $3, schedule = $4::text::jsonb, grace = $5, owner = $6, tags = $7, paused_at = $8, state = $9,
    due_at = $10, deadline_at = $11, started_at = $12, down_since = $13, changed_at = bellringer.now(), changed_by = $14
where tenant_id = $1 and checkin_id = $2

-- name: set_token
update checkins set token_hash = $3, changed_at = bellringer.now(), changed_by = $4 where tenant_id = $1 and name = $2

-- name: delete
delete from checkins where tenant_id = $1 and name = $2

-- name: record_ping
update checkins
set state = $2, due_at = $3, deadline_at = $4, started_at = $5, pinged_at = $6, succeeded_at = $7, down_since = $8,
    duration = $9, pings = $10
where checkin_id = $1

-- name: add_ping
insert into checkin_pings (tenant_id, checkin_id, at, kind, exit_code, duration, origin, body)
values ($1, $2, $3, $4, $5, $6, $7, $8)

-- name: forget_pings_of
delete from checkin_pings
where checkin_id = $1
  and ping_id <= (select ping_id from checkin_pings where checkin_id = $1 order by ping_id desc offset $2 limit 1)

-- name: add_event
insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
values ($1, $2, $3, $4, $5, $6::text::jsonb)
on conflict do nothing

-- name: miss
-- Marks check-ins whose deadline has passed as down, each with one event. Skips rows that a ping has locked: the ping
-- decides.
with overdue as materialized (
  select checkin_id, deadline_at from checkins where deadline_at <= bellringer.now()
  order by deadline_at limit $1 for update skip locked),
missed as (
  update checkins checkin set state = 'down', down_since = bellringer.now(), deadline_at = null
  from overdue
  where checkin.checkin_id = overdue.checkin_id
  returning checkin.checkin_id, checkin.tenant_id, checkin.name, checkin.grace, checkin.started_at,
            checkin.succeeded_at, overdue.deadline_at - checkin.grace as due_at)
insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
select bellringer.now(), tenant_id, 'checkin_missed', checkin_id, due_at,
       jsonb_build_object(
         'checkin', name, 'due', due_at, 'grace', extract(epoch from grace), 'last', succeeded_at, 'reason',
         case when started_at is null then 'no ping' else 'started, not finished' end)
from missed
order by checkin_id on conflict do nothing
returning event_id

-- name: pings
select ping_id, at, kind, exit_code, duration, origin, body from checkin_pings
where tenant_id = $1 and checkin_id = $2 and ping_id < $3
order by ping_id desc limit $4

-- name: prune_pings
delete from checkin_pings where at < $1
