-- name: ensure_days
select bellringer.ensure_days($1::date[])

-- name: days
select relation.relname as name from pg_inherits child
join pg_class relation on relation.oid = child.inhrelid
where child.inhparent = 'bellringer.runs'::regclass and relation.relname ~ '^runs_[0-9]{8}$'
order by 1

-- name: in_use
select exists (select 1 from queue where scheduled_for >= $1 and scheduled_for < $2)
         or exists (select 1 from timers where scheduled_for >= $1 and scheduled_for < $2 and attempt > 0)
         or exists (select 1 from dead_letters where scheduled_for >= $1 and scheduled_for < $2)
         or exists (select 1 from discarded_dead_letters where scheduled_for >= $1 and scheduled_for < $2)

-- name: detach_day
select bellringer.detach_day($1)

-- name: forget_dead
delete from dead_letters letter using tenants tenant
where tenant.tenant_id = letter.tenant_id
  and letter.died_at < $1::timestamptz - make_interval(secs => coalesce((tenant.retention ->> 'dead')::float8, $2))

-- name: forget_discarded
delete from discarded_dead_letters where discarded_at <= $1

-- name: forget_gaps
delete from gaps where to_at < $1

-- name: forget_events
delete from events where at < $1

-- name: forget_keys
delete from send_keys where expires_at < bellringer.now() - interval '1 hour'

-- name: shards_with_empty_cohorts
select held.shard from unnest($1::smallint[]) held (shard)
where exists (
  select from cohorts c
  where c.shard = held.shard
    and not exists (select 1 from members m where m.shard = c.shard and m.schedule_id = c.schedule_id))

-- name: forget_cohorts
-- Cohorts without members. Needs the shard's lock, because a member may be joining concurrently.
delete from cohorts c
where c.shard = $1 and not exists (select 1 from members m where m.shard = c.shard and m.schedule_id = c.schedule_id)

-- name: forget_jobs
select bellringer.forget_jobs($1, $2)

-- name: forget_schedules
select bellringer.forget_schedules($1)

-- name: drop_day
select bellringer.drop_day($1)
