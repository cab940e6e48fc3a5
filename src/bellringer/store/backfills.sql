-- name: open
select * from bellringer.open_backfills($1, $2, $3)

-- name: ensure_days
select bellringer.ensure_days($1::date[])

-- name: measure
select measured, refused from bellringer.measure($1, $2, $3, $4, $5, $6, $7)

-- name: fill
select made, moved, refused from bellringer.fill($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: create
-- Of the job as the caller read it: its occurrences were counted by those schedules.
insert into backfills (tenant_id, job_id, shard, cause, from_at, to_at, newest_first, reprocess, parallelism, rate, total, state,
                       who, created_at, ended_at)
select j.tenant_id, j.job_id, j.shard, 'backfill', $4, $5, $6, $7, $8, $9, $10::bigint, case when $10 = 0 then 'done' else 'running' end,
       $11, bellringer.now(), case when $10 = 0 then bellringer.now() end
from jobs j where j.job_id = $1 and j.tenant_id = $2 and j.revision = $3 and j.deleted_at is null
returning backfill_id

-- name: get
select b.backfill_id, b.job_id, j.name as job, b.cause::text as cause, b.state, b.from_at, b.to_at, b.cursor, b.newest_first,
       b.reprocess, b.parallelism, b.rate, b.total, b.made, b.passed, b.who, b.why, b.created_at, b.ended_at
from backfills b join jobs j on j.job_id = b.job_id where b.backfill_id = $1 and b.tenant_id = $2

-- name: list
-- The newest of a tenant, those before $2 where it is given.
select b.backfill_id, b.job_id, j.name as job, b.cause::text as cause, b.state, b.from_at, b.to_at, b.cursor, b.newest_first,
       b.reprocess, b.parallelism, b.rate, b.total, b.made, b.passed, b.who, b.why, b.created_at, b.ended_at
from (select * from backfills where tenant_id = $1 and ($2::bigint is null or backfill_id < $2)
      order by backfill_id desc limit $3) b
join jobs j on j.job_id = b.job_id order by b.backfill_id desc

-- name: of_job
select b.backfill_id, b.job_id, j.name as job, b.cause::text as cause, b.state, b.from_at, b.to_at, b.cursor, b.newest_first,
       b.reprocess, b.parallelism, b.rate, b.total, b.made, b.passed, b.who, b.why, b.created_at, b.ended_at
from bellringer.backfills_of_job($1, $4, $2, $3) b
join jobs j on j.job_id = b.job_id order by b.backfill_id desc

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

-- name: ran
select at, good from bellringer.ran($1, $2, $3, $4, $5)
