-- name: open
select * from bellringer.open_backfills($1, $2, $3)

-- name: ensure_days
select bellringer.ensure_days($1::date[])

-- name: set_totals
select measured, refused, missed from bellringer.set_backfill_totals($1, $2, $3, $4, $5, $6, $7)

-- name: create_runs
select made, moved, refused from bellringer.create_backfill_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: create
-- Inserts nothing if the job has another revision than the caller read, because the occurrences were counted from its
-- schedules.
insert into backfills (tenant_id, job_id, shard, cause, from_at, to_at, newest_first, reprocess, parallelism, rate,
                       total, state, who, created_at, ended_at)
select job.tenant_id, job.job_id, job.shard, 'backfill', $4, $5, $6, $7, $8, $9, $10::bigint,
       case when $10 = 0 then 'done' else 'running' end, $11, bellringer.now(),
       case when $10 = 0 then bellringer.now() end
from jobs job
where job.job_id = $1 and job.tenant_id = $2 and job.revision = $3 and job.deleted_at is null
returning backfill_id

-- name: get
select backfill.backfill_id, backfill.job_id, job.name as job, backfill.cause::text as cause, backfill.state,
       backfill.from_at, backfill.to_at, backfill.cursor, backfill.newest_first, backfill.reprocess,
       backfill.parallelism, backfill.rate, backfill.total, backfill.made, backfill.passed, backfill.who, backfill.why,
       backfill.created_at, backfill.ended_at
from backfills backfill
join jobs job on job.job_id = backfill.job_id
where backfill.backfill_id = $1 and backfill.tenant_id = $2

-- name: list
-- The newest backfills of a tenant; with $2, those before it.
select backfill.backfill_id, backfill.job_id, job.name as job, backfill.cause::text as cause, backfill.state,
       backfill.from_at, backfill.to_at, backfill.cursor, backfill.newest_first, backfill.reprocess,
       backfill.parallelism, backfill.rate, backfill.total, backfill.made, backfill.passed, backfill.who, backfill.why,
       backfill.created_at, backfill.ended_at
from (
  select * from backfills
  where tenant_id = $1 and ($2::bigint is null or backfill_id < $2)
  order by backfill_id desc limit $3) backfill
join jobs job on job.job_id = backfill.job_id
order by backfill.backfill_id desc

-- name: of_job
select backfill.backfill_id, backfill.job_id, job.name as job, backfill.cause::text as cause, backfill.state,
       backfill.from_at, backfill.to_at, backfill.cursor, backfill.newest_first, backfill.reprocess,
       backfill.parallelism, backfill.rate, backfill.total, backfill.made, backfill.passed, backfill.who, backfill.why,
       backfill.created_at, backfill.ended_at
from bellringer.backfills_of_job($1, $4, $2, $3) backfill
join jobs job on job.job_id = backfill.job_id
order by backfill.backfill_id desc

-- name: running
select bellringer.unfinished(b, $2) from backfills b where b.backfill_id = $1

-- name: failed
select ends_as, count from bellringer.failed_runs($1, $2, $3)

-- name: pause
update backfills set state = 'paused' where backfill_id = $1 and tenant_id = $2 and state = 'running'

-- name: resume
update backfills set state = 'running' where backfill_id = $1 and tenant_id = $2 and state = 'paused'

-- name: end
select bellringer.end_backfill($1, $2, $3, $4)

-- name: instants_with_runs
select at, good from bellringer.instants_with_runs($1, $2, $3, $4, $5)
