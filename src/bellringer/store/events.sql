-- What people want to be told of, and what it is judged by.

-- name: tell_waiting
select looked, told from bellringer.tell_waiting($1, $2)

-- name: tell_unborn
select bellringer.tell_unborn($1, $2)

-- name: tell
insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
select $1, u.tenant_id, u.kind, u.job_id, u.scheduled_for, u.slot, u.attempt, u.data::jsonb
from unnest($2::integer[], $3::text[], $4::uuid[], $5::timestamptz[], $6::bigint[], $7::integer[], $8::text[])
  u (tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
order by u.job_id, u.scheduled_for, u.slot, u.attempt, u.kind
on conflict do nothing returning kind

-- name: recover
select looked, noted, recovered from bellringer.recover($1)

-- name: running
-- Runs that were claimed before $1 and are not told of yet, of workers that were heard of within $3: what a silent one
-- holds is lost rather than slow. There are at most as many as workers have slots; where that
-- is more than $2, every pass looks at others, so that those that always take long hide none. A workflow run takes as long as all
-- its nodes, and nobody holds it meanwhile; the runs of its nodes have no job, and nothing is usual for them.
select q.job_id, q.scheduled_for, q.slot, q.attempt, q.claimed_at from (
  select q.* from queue q
  join workers w on w.worker_id = q.worker_id and w.state in ('live', 'draining') and w.seen_at > clock_timestamp() - $3::interval
  where q.worker_id is not null
  union all
  select q.* from queue q where q.blocked & 128 = 128) q
where q.claimed_at < $1 and q.revision is not null
  and not exists (select 1 from events e where e.job_id = q.job_id and e.scheduled_for = q.scheduled_for and e.slot = q.slot
                    and e.attempt = q.attempt and e.kind = 'slow')
order by random() limit $2

-- name: histories
select job_id, tenant_id, schedule_ids, took from bellringer.histories($1, $2, $3)

-- name: newest
-- The newest events of a tenant before $2; one statement for each filter, so that each has its index.
select e.event_id, e.at, e.kind, e.job_id, j.name as job, e.scheduled_for, e.slot, e.attempt, e.data
from events e left join jobs j on j.job_id = e.job_id
where e.tenant_id = $1 and e.event_id < $2 order by e.event_id desc limit $3

-- name: newest_of_kind
select e.event_id, e.at, e.kind, e.job_id, j.name as job, e.scheduled_for, e.slot, e.attempt, e.data
from events e left join jobs j on j.job_id = e.job_id
where e.tenant_id = $1 and e.event_id < $2 and e.kind = $4 order by e.event_id desc limit $3

-- name: newest_of_job
select e.event_id, e.at, e.kind, e.job_id, j.name as job, e.scheduled_for, e.slot, e.attempt, e.data
from bellringer.events_of_job($1, $4, $5, $2, $3) e left join jobs j on j.job_id = e.job_id
order by e.event_id desc limit $3
