-- name: register
select bellringer.register($1::jsonb, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb)

-- name: pause
select bellringer.pause($1, $2, $3, $4, $5)

-- name: resume
select bellringer.resume($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: delete
select bellringer.delete_job($1, $2, $3)

-- name: get
-- Jobs by id, in the given order. Every lookup is a lateral select with `offset 0`, so that only primary keys fit:
-- before the first ANALYZE of a table that has grown, the planner would prefer the tenant's index or a scan.
select job.*, (select task.name from tasks task where task.task_id = job.task_id) as task,
       (select pool.name from pools pool where pool.pool_id = job.pool_id) as pool, job_limit.key as limit_key,
       job_limit.most as limit_most, lease.region,
       coalesce((select graph.nodes from graphs graph where graph.graph_id = (job.spec ->> 'graph')::integer),
                0) as nodes,
       (select min(cohort.next_at) from unnest(job.schedule_ids) given (schedule_id)
        cross join lateral (
          select cohort.next_at from cohorts cohort
          where cohort.shard = job.shard and cohort.schedule_id = given.schedule_id offset 0) cohort
        where job.enabled and job.paused_at is null and job.done_at is null
          and cohort.next_at < end_of_time()) as next_at,
       (select min(timer.due_at) from timers timer where timer.job_id = job.job_id) as timer_at, app.name as app,
       case when job.orphaned_at is null then nullif(app.version, '') else job.orphaned_version end as app_version,
       array(
         select other.name from job_followers follower
         cross join lateral (select name from jobs where job_id = follower.job_id offset 0) other
         where follower.tenant_id = job.tenant_id and follower.upstream_key = job.name_key
         order by other.name limit 100) as followers
from unnest($1::uuid[])
with ordinality given (id, nth)
cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
left join lateral (select app.name, app.version from apps app where app.app_id = job.app_id offset 0) app on true
left join leases lease on lease.shard = job.shard
left join lateral (
  select * from limits job_limit
  where job_limit.key_id = job.key_id offset 0) job_limit on job_limit.key not like 'job %'
where job.tenant_id = $2 and job.deleted_at is null
order by given.nth

-- name: find
select job_id, revision from jobs where tenant_id = $1 and name_key = lower($2) and deleted_at is null

-- name: find_many
-- The database decides what lower() returns. It is computed in a subquery: under row-level security an index is used
-- only with leakproof conditions, and lower() is not leakproof.
select u.name as given, j.job_id, j.revision
from (select name, lower(name) as name_key from unnest($2::text[]) u (name) offset 0) u
join jobs j on j.tenant_id = $1 and j.name_key = u.name_key and j.deleted_at is null

-- name: page
-- Ordered by name if $2 is true, otherwise by id.
select job_id, name_key, is_stop
from bellringer.list_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $14, $15, $12, $13)

-- name: request_cancel
-- Asks the running runs of a deleted job to stop.
update queue set cancel_requested = true
where job_id = $1 and tenant_id = $2 and (worker_id is not null or blocked & OPEN_WORKFLOW = OPEN_WORKFLOW)

-- name: expired_pauses
-- Ordered by paused_until, so that the planner uses its index in any case.
select job_id, tenant_id from jobs
where paused_until <= bellringer.now() and paused_until is not null
order by paused_until limit $1

-- name: finish
select * from bellringer.finish_jobs($1, $2, $3, $4, $5, $6)

-- name: delete_done
select * from bellringer.delete_done_jobs($1, $2, $3)

-- name: of_code
-- Jobs that code has declared and that can still fire: those of no app, which were declared before apps were recorded,
-- and those of the app $3. `served`: a live worker knows their task.
select job.job_id, job.name, task.name as task,
       exists (
         select 1 from workers worker
         where worker.state in ('live', 'draining') and job.task_id = any (worker.task_ids)) as served
from jobs job
join tasks task on task.task_id = job.task_id
where job.tenant_id = $1 and job.owner = 'code' and (job.app_id is null or job.app_id = $3)
  and job.orphaned_at is null and job.deleted_at is null and job.done_at is null and job.enabled
  and job.paused_at is null
  and (job.schedule_ids <> '{}' or job.once_at is not null or job.delay is not null or job.after is not null)
order by job.job_id limit $2

-- name: idle
-- Jobs that change within $3 only if someone writes to them: none of their runs is unfinished or due by then, no
-- catch-up is open, no pause ends, and no maintenance step marks them as done, deletes or prunes them.
select job.job_id from unnest($1::uuid[]) given (id)
cross join lateral (select * from jobs job where job.job_id = given.id offset 0) job
where job.tenant_id = $2 and job.deleted_at is null and job.after is null
  and (job.paused_until is null or job.paused_until > bellringer.now() + $3::interval)
  and (job.done_at is null and coalesce(job.once_at, job.ends_at, end_of_time()) > bellringer.now() + $3::interval
       or job.done_at > bellringer.now() - interval '1 day' and job.after_completion = 'keep')
  and not exists (select 1 from queue run where run.job_id = job.job_id offset 0)
  and not exists (
    select 1 from timers timer
    where timer.job_id = job.job_id and timer.due_at <= bellringer.now() + $3::interval offset 0)
  and not exists (
    select 1 from unnest(job.schedule_ids) given (schedule_id)
    cross join lateral (
      select cohort.next_at from cohorts cohort
      where cohort.shard = job.shard and cohort.schedule_id = given.schedule_id offset 0) cohort
    where cohort.next_at <= bellringer.now() + $3::interval
       or cohort.next_at = end_of_time() and job.done_at is null)
  and not exists (
    select 1 from backfills backfill
    where backfill.job_id = job.job_id and backfill.state in ('running', 'paused') offset 0)
