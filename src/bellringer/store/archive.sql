-- Runs past retention on their way into the archive. BATCH in the name of a table is the number of its batch.

-- name: next
select batch_id, day, opened_at, state, after_tenant as tenant_id, after_at, after_shard, after_job, after_slot,
  parts, rows, bytes
from archive_batches
where state in ('open', 'archived')
order by problem is not null, batch_id limit 1

-- name: next_tenant
-- The next tenant with runs in the batch, by the index of the partition.
select run.tenant_id, coalesce(tenant.name, 'tenant-' || run.tenant_id) as name
from expired_runs_BATCH run
left join tenants tenant on tenant.tenant_id = run.tenant_id
where run.tenant_id >= $1
order by run.tenant_id limit 1

-- name: page
-- The next runs of a tenant, with the columns of runs.get.
select run.job_id, run.scheduled_for, run.slot, run.shard, job.name as job, task.name as task, pool.name as pool,
       run.priority, run.cause::text as cause, coalesce(run.reason, '') as reason, run.fired_at, run.token,
         run.revision,
       coalesce(run.spec, job.spec) as spec, null::timestamptz as available_at, null::integer as queue_attempt,
       null::integer as worker_id, null::timestamptz as claimed_at, 0 as blocked, false as cancel_requested,
       null::jsonb as progress, null::timestamptz as due_at, null::integer as timer_attempt,
       case when run.cause = 'schedule' then job.jitter_by end as jitter_by, run.of_slot,
       (select json_agg(json_build_object('attempt', attempt.attempt, 'outcome', attempt.outcome, 'ends_as',
                                          attempt.ends_as, 'started_at', attempt.started_at, 'finished_at',
                                          attempt.finished_at, 'worker_id', attempt.worker_id, 'worker',
                                          'worker-' || attempt.worker_id, 'revision', attempt.revision, 'error',
                                          attempt.error, 'result', attempt.result) order by attempt.finished_at,
                        attempt.attempt)
        from expired_attempts_BATCH attempt
        where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for
          and attempt.slot = run.slot) as attempts
from expired_runs_BATCH run
join tasks task on task.task_id = run.task_id
join pools pool on pool.pool_id = run.pool_id
left join jobs job on job.job_id = run.job_id
where run.tenant_id = $1
  and ($2::timestamptz is null or (run.scheduled_for, run.shard, run.job_id, run.slot) > ($2, $3, $4, $5))
order by run.scheduled_for, run.shard, run.job_id, run.slot limit $6

-- name: add_part
-- Records a written part and moves the position behind it, unless another scheduler has done so.
with moved as (
  update archive_batches
  set after_tenant = $3, after_at = $8, after_shard = $9, after_job = $10, after_slot = $11, parts = $2,
    rows = rows + $5,
      bytes = bytes + $6, problem = null
  where batch_id = $1 and parts = $2 - 1 and state = 'open'
  returning batch_id)
insert into archive_parts (batch_id, part, owner_id, path, rows, bytes, sha256)
select batch_id, $2, $3, $4, $5, $6, $7 from moved

-- name: parts
select part.part, part.path, part.rows, part.bytes, part.sha256, coalesce(tenant.name, '') as tenant
from archive_parts part
left join tenants tenant on tenant.tenant_id = part.owner_id
where part.batch_id = $1
order by part.part

-- name: count
select count(*) from expired_runs_BATCH

-- name: set_state
update archive_batches set state = $2, problem = null where batch_id = $1 and state <> 'dropped'

-- name: drop
select bellringer.drop_batch($1)

-- name: fail
update archive_batches set problem = $2, failed_at = clock_timestamp() where batch_id = $1

-- name: status
select batch_id, day, opened_at, state, parts, rows, bytes, problem, failed_at from archive_batches
where state <> 'dropped'
order by batch_id

-- name: waiting
select count(*) as batches, count(*) filter (where problem is not null) as failing,
       coalesce(extract(epoch from clock_timestamp() - min(opened_at)), 0)::float8 as oldest_seconds
from archive_batches
where state <> 'dropped'
