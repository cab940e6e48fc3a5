-- Events, and the data that they are derived from.

-- name: report_late_runs
select checked, reported from bellringer.report_late_runs($1, $2)

-- name: report_late_occurrences
select bellringer.report_late_occurrences($1, $2)

-- name: report_unknown_tasks
select reported, recovered from bellringer.report_unknown_tasks($1, $2, $3)

-- name: report_unstarted
select reported, recovered from bellringer.report_unstarted($1, $2, $3, $4)

-- name: report_skips
select bellringer.report_skips($1, $2, $3)

-- name: add
insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
select $1, given.tenant_id, given.kind, given.job_id, given.scheduled_for, given.slot, given.attempt, given.data::jsonb
from unnest($2::integer[], $3::text[], $4::uuid[], $5::timestamptz[], $6::bigint[], $7::integer[],
            $8::text[]) given (tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
order by given.job_id, given.scheduled_for, given.slot, given.attempt, given.kind
on conflict do nothing
returning kind

-- name: add_blocked_loop
insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
values ($1, $2, 'blocked_loop', $3, $4, $5, $6, $7::jsonb)
on conflict (job_id, scheduled_for, slot, attempt, kind) do update
set data = excluded.data

-- name: blocked_loops
-- Reads only the newest 200 of the tenant, which is enough to explain a slow run while it is recent.
select event.event_id, event.at, event.kind, event.job_id, job.name as job, event.scheduled_for, event.slot,
       event.attempt, event.data
from (select * from events where tenant_id = $1 and kind = 'blocked_loop' order by event_id desc limit 200) event
left join jobs job on job.job_id = event.job_id
where (event.job_id = $2 and event.scheduled_for = $3 and event.slot = $4) or event.data -> 'beside' ? $5
order by event.event_id desc limit $6

-- name: report_stranded
-- Writes one event per run. Returns the number of stranded runs by reason, including those reported before.
with found as materialized (select * from bellringer.stranded($2, $3)),
reported as (
  insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
  select $1, tenant_id, 'stranded', job_id, scheduled_for, slot, attempt,
         jsonb_build_object('reason', reason, 'since', since)
  from found
  order by job_id, scheduled_for, slot on conflict do nothing)
select reason, count(*) from found
group by reason
union all
select 'cancelled_unasked', count(*)
from (
  select 1 from events
  where at > $1::timestamptz - interval '1 hour' and kind = 'stranded' and data ->> 'reason' = 'cancelled_unasked'
  limit $3) recent

-- name: recover
select checked, recorded, recovered from bellringer.recover($1)

-- name: slow_candidates
-- Runs that were claimed before $1 and have no `slow` event, of workers with a heartbeat within $3 (runs of a silent
-- worker are lost, not slow). If there are more than $2, each pass reads a random sample, so that runs that are always
-- slow do not hide others. Open workflow runs are included, which no worker holds; runs of nodes are excluded, because
-- without a job there is no usual duration.
select run.job_id, run.scheduled_for, run.slot, run.attempt, run.claimed_at
from (
  select run.* from queue run
  join workers worker on worker.worker_id = run.worker_id and worker.state in ('live', 'draining')
    and worker.seen_at > clock_timestamp() - $3::interval
  where run.worker_id is not null
  union all
  select run.* from queue run
  where run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW) run
where run.claimed_at < $1 and run.revision is not null
  and not exists (
    select 1 from events event
    where event.job_id = run.job_id and event.scheduled_for = run.scheduled_for and event.slot = run.slot
      and event.attempt = run.attempt and event.kind = 'slow')
order by random() limit $2

-- name: recent_durations
select job_id, tenant_id, schedule_ids, took as durations from bellringer.recent_durations($1, $2, $3)

-- name: newest
-- The newest events of a tenant before $2. Each filter has a statement of its own, so that each uses its index.
select event.event_id, event.at, event.kind, event.job_id, job.name as job, event.scheduled_for, event.slot,
       event.attempt, event.data
from events event
left join jobs job on job.job_id = event.job_id
where event.tenant_id = $1 and event.event_id < $2
order by event.event_id desc limit $3

-- name: newest_of_kind
select event.event_id, event.at, event.kind, event.job_id, job.name as job, event.scheduled_for, event.slot,
       event.attempt, event.data
from events event
left join jobs job on job.job_id = event.job_id
where event.tenant_id = $1 and event.event_id < $2 and event.kind = $4
order by event.event_id desc limit $3

-- name: newest_of_job
select event.event_id, event.at, event.kind, event.job_id, job.name as job, event.scheduled_for, event.slot,
       event.attempt, event.data
from bellringer.events_of_job($1, $4, $5, $2, $3) event
left join jobs job on job.job_id = event.job_id
order by event.event_id desc limit $3

-- name: after_positions
-- For each tenant, the events after (tx, event_id), up to the oldest open transaction, whose events will sort before
-- others that are already visible. The horizon is returned even if there are no events.
select snapshot.horizon::text::bigint as horizon, following.tenant_id, following.tx::text::bigint as tx,
       following.event_id, following.at, following.kind, following.job_id, following.job, following.scheduled_for,
       following.slot, following.attempt, following.data
from (select commit_horizon() as horizon) snapshot
left join lateral (
  select event.*, job.name as job from unnest($1::integer[], $2::text[], $3::bigint[]) reader (tenant_id, tx, event_id)
  cross join lateral (
    select * from events event
    where event.tenant_id = reader.tenant_id and (event.tx, event.event_id) > (reader.tx::xid8, reader.event_id)
      and event.tx < snapshot.horizon
    order by event.tx, event.event_id limit $4) event
  left join lateral (
    select job.name from jobs job
    where job.job_id = event.job_id and job.tenant_id = event.tenant_id offset 0) job on true) following on true
order by following.tenant_id, following.tx, following.event_id
