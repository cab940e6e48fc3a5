-- name: settings
-- Only by index: the planner would scan a partition that was empty when it was last analyzed.
select set_config('enable_seqscan', 'off', true)

-- name: tenant
select tenant_id from tenants where name = $1

-- name: now
select bellringer.now()

-- name: bounds
-- The database's time, and the oldest day whose runs are still kept.
select bellringer.now() as now,
       (select min(start_of(to_date(right(c.relname, 8), 'YYYYMMDD')))
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'bellringer.runs'::regclass and c.relname ~ '^runs_[0-9]{8}$') as kept

-- name: jobs
-- Includes jobs that were deleted in the window, or up to a minute before it, because they may still owe a run.
select job_id, name from jobs
where tenant_id = $1 and job_id > $2 and created_at < $4
  and (deleted_at is null or deleted_at > $3::timestamptz - interval '1 minute')
  and ($5::uuid is null or job_id = $5) and ($6::text is null or name_key = lower($6))
order by job_id limit $7

-- name: revisions
-- `since` never decreases: effective_at is the start of a transaction, and two transactions may have overlapped. Reads
-- only the fields that determine fire times, because arguments may be large.
select job_id, revision, since, until, schedules, lives, paused, starts_at, ends_at
from (select *, lead(since) over (partition by job_id order by revision) as until
      from (select *, max(effective_at) over (partition by job_id order by revision) as since
            from (select job_id, revision, effective_at, d.schedules, d.enabled
              and d.deleted_at is null as lives, d.paused_at is not null as paused,
                         d.starts_at, d.ends_at
                  from job_revisions cross join lateral jsonb_to_record(definition) d (
                    schedules text, enabled boolean, deleted_at text, paused_at text,
                      starts_at timestamptz, ends_at timestamptz)
                  where job_id = any ($1::uuid[])
                  union all
                  select job_id, revision, updated_at, schedules::text, enabled
                    and deleted_at is null, paused_at is not null, starts_at, ends_at
                  from jobs where job_id = any ($1::uuid[])) o) r) s
where until is null or until > $2::timestamptz - interval '1 minute'
order by job_id, revision

-- name: schedules
-- The ids of these schedules in gaps and catch-ups.
select schedule_id, kind, expression, timezone, anchor, seconds, dst, calendar
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::text[])
  u (kind, expression, timezone, anchor, seconds, dst, calendar)
join schedules s using (kind, expression, timezone, anchor, seconds, dst, calendar)

-- name: days_off
select digest, dates, weekend, hours from days_off where digest = any ($1::text[])

-- name: catchups
select job_id, schedule_id as number, from_at as start, to_at as end, cursor, newest_first,
  state in ('running', 'paused') as is_open
from backfills where job_id = any ($1::uuid[]) and cause = 'catchup' and to_at > $2 and from_at < $3
order by job_id, backfill_id

-- name: runs
-- A page of the runs of these jobs in the given order, each job after its own key. The lateral join is a nested loop,
-- which keeps the order; the caller checks it. Without `exists`, because the planner might hash all attempts. `remark`
-- is "early" if an attempt started before its time, or the reason why the run was skipped. The queue is read only if no
-- attempt shows that the run has started.
select r.job_id, r.scheduled_for, r.slot, r.fired_at, r.revision, r.cause, r.cancelled,
       case when a.early then 'early' else a.skipped end as remark, coalesce(a.started, q.started, false) as started,
       coalesce(a.finished, false) as finished
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) u (job_id, at, slot)
cross join lateral (
  select r.job_id, r.scheduled_for, r.slot, r.fired_at, r.revision, r.cause::text,
         r.initial_state = 'cancelled' as cancelled
  from runs r where r.job_id = u.job_id and (r.scheduled_for, r.slot) > (u.at, u.slot)
    and r.scheduled_for >= $4 and r.scheduled_for < $5 and r.cause in ('schedule', 'catchup')
  order by r.scheduled_for, r.slot limit $6) r
left join lateral (
  select bool_or(a.started_at < a.scheduled_for) as early, nullif(bool_or(a.started_at is not null), false) as started,
         bool_or(a.ends_as is not null) as finished,
         (array_agg(coalesce(a.error ->> 'reason',
           '') order by a.attempt desc) filter (where a.ends_as = 'skipped'))[1] as skipped
  from attempts a where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot) a on true
left join lateral (
  select q.worker_id is not null or q.attempt > 0 as started from queue q
  where a.started is null and q.job_id = r.job_id and q.scheduled_for = r.scheduled_for
    and q.slot = r.slot offset 0) q on true
limit $6

-- name: unstarted
-- Runs of a tenant in the queue without an attempt that could have started before $5, by key after ($2, $3, $4).
-- Excludes runs that wait for a known reason: the job or pool is paused, an earlier run of the job is unfinished, a
-- freeze holds the run, its limit is used up, or the tenant is suspended. Also excludes catch-ups and backfills, which
-- have lower priority, unless no worker knows their task.
select q.job_id, q.scheduled_for, q.slot, q.available_at, q.blocked, j.name as job, t.name as task, p.name as pool,
       exists (select 1 from workers w where w.state = 'live' and w.pools ? p.name) as is_served,
       exists (select 1 from workers w where w.state = 'live' and w.pools ? p.name
         and q.task_id = any (w.task_ids)) as is_known
from queue q
join tasks t on t.task_id = q.task_id
join pools p on p.pool_id = q.pool_id
left join jobs j on j.job_id = q.job_id
where (q.job_id, q.scheduled_for, q.slot) > ($2, $3, $4) and q.tenant_id + 0 = $1 and q.available_at <= $5
  and q.scheduled_for >= $6 and q.scheduled_for < $7
  and q.worker_id is null and q.attempt = 0
  and q.blocked & (PAUSED | PREDECESSOR | FROZEN | OPEN_WORKFLOW | TASK_PAUSED) = 0
    and p.paused_at is null
  and (q.priority >= 0 or q.cause not in ('catchup', 'backfill') or q.blocked & TASK_UNKNOWN = TASK_UNKNOWN)
  and not (q.key_id is not null and exists (
    select 1 from queue o where o.key_id = q.key_id and (o.worker_id is not null or o.blocked & UNDER_WAY <> 0)))
  and not exists (select 1 from task_pauses s where s.tenant_id = $1 and s.task_id = q.task_id)
  and not exists (select 1 from tenants s where s.tenant_id = $1 and s.suspended_at is not null)
  and ($8::uuid is null or q.job_id = $8) and ($9::text is null or j.name_key = lower($9))
order by q.job_id, q.scheduled_for, q.slot limit $10

-- name: stranded
select s.job_id, s.scheduled_for, s.reason, s.since, coalesce(j.name, t.name, '') as job
from bellringer.stranded(interval '30 seconds', 1000000) s
left join queue q on q.job_id = s.job_id and q.scheduled_for = s.scheduled_for and q.slot = s.slot
left join tasks t on t.task_id = q.task_id
left join jobs j on j.job_id = s.job_id
where s.tenant_id = $1 and ($2::uuid is null or s.job_id = $2) and ($3::text is null or j.name_key = lower($3))
order by s.job_id, s.scheduled_for, s.slot

-- name: unrequested
-- Runs that a worker ended as cancelled although no one had requested it; `settle` records this with the attempt.
select a.job_id, a.scheduled_for, a.finished_at, coalesce(j.name, t.name, '') as job
from attempts a
left join runs r on r.job_id = a.job_id and r.scheduled_for = a.scheduled_for and r.slot = a.slot
left join tasks t on t.task_id = r.task_id
left join jobs j on j.job_id = a.job_id
where a.tenant_id = $1 and a.ends_as = 'cancelled' and (a.finished_at, a.job_id) > ($2, $3)
  and a.scheduled_for >= $4 and a.scheduled_for < $5 and a.outcome = 'cancelled' and a.worker_id is not null
  and not coalesce((a.error ->> 'requested')::boolean, false)
  and ($6::uuid is null or a.job_id = $6) and ($7::text is null or j.name_key = lower($7))
order by a.finished_at, a.job_id limit $8

-- name: followers
select job.job_id, job.name as job, job.after ->> 'job' as upstream
from job_followers follower join jobs job on job.job_id = follower.job_id
where follower.tenant_id = $1 and ($2::uuid is null or job.job_id = $2)
  and ($3::text is null or job.name_key = lower($3))
order by job.job_id

-- name: unfollowed
-- Ended runs of the job that $1 starts after, by key after ($2, $3), for which $1 has no run. Only ends of the current
-- revision are judged, a minute after it began: a settle that began before does not see it.
select ended.scheduled_for, ended.slot, ended.ends_as::text as ends_as
from jobs job
join job_followers follower on follower.job_id = job.job_id
join jobs upstream on upstream.tenant_id = follower.tenant_id and upstream.name_key = follower.upstream_key
  and upstream.deleted_at is null
cross join lateral (
  select attempt.scheduled_for, attempt.slot, attempt.ends_as from attempts attempt
  where attempt.job_id = upstream.job_id and (attempt.scheduled_for, attempt.slot) > ($2, $3)
    and attempt.scheduled_for >= $4 and attempt.scheduled_for < $5
    and attempt.finished_at > greatest(job.updated_at, upstream.updated_at, job.starts_at) + interval '1 minute'
    and (job.ends_at is null or attempt.finished_at < job.ends_at)
    and is_follow_up(follower.outcome, attempt.ends_as::text)
    and not exists (
      select 1 from runs run
      where run.job_id = job.job_id and run.scheduled_for = attempt.scheduled_for
        and run.slot = follower_slot(upstream.job_id, attempt.slot) offset 0)
  order by attempt.scheduled_for, attempt.slot limit $6) ended
where job.job_id = $1 and job.enabled and job.done_at is null and job.deleted_at is null

-- name: gaps
select g.* from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::integer[]) u (job_id, at, upto,
  schedule_id)
cross join lateral (
  select g.job_id, g.from_at, g.to_at, g.schedule_id from gaps g
  where g.job_id = u.job_id and (g.from_at, g.to_at, g.schedule_id) > (u.at, u.upto, u.schedule_id) and g.to_at > $5
    and g.from_at < $6
  order by g.from_at, g.to_at, g.schedule_id limit $7) g
limit $7

-- name: repeatable
-- Runs in the window that ended after a restore, and may have been executed by the lost database too: they were
-- unfinished at the recovery point, or due after it.
select count(distinct (attempt.job_id, attempt.scheduled_for, attempt.slot))
from restores restore
join attempts attempt on attempt.scheduled_for >= $2 and attempt.scheduled_for < least($3, restore.finished_at)
  and attempt.finished_at > restore.finished_at and attempt.outcome is not null
join runs run on run.job_id = attempt.job_id and run.scheduled_for = attempt.scheduled_for and run.slot = attempt.slot
where attempt.tenant_id = $1 and (run.fired_at <= restore.recovered_to or run.scheduled_for >= restore.recovered_to)

-- name: shortest_retention
-- The shortest retention in the rules of a tenant, in seconds; null: it has none. Older runs may be deleted.
select min(rule.value::float8) from tenants tenant
cross join lateral (
  select own.value from jsonb_each_text(tenant.retention - 'jobs') own
  union all
  select of_job.value from jsonb_each(coalesce(tenant.retention -> 'jobs', '{}')) job
  cross join lateral jsonb_each_text(job.value) of_job) rule
where tenant.tenant_id = $1
