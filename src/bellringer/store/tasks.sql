-- Tasks of the installation. Every read uses a key or stops at a limit.

-- name: tasks
-- Only tasks that a worker has described, or that the tenant $3 has paused: other names were made up by tenants and are
-- private.
select task.task_id, task.name, task.doc, task.defaults,
       (select count(*) from workers worker
        where worker.state = 'live' and task.task_id = any (worker.task_ids)) as workers
from tasks task
where (task.schema <> '{}'
       or exists (select 1 from task_pauses pause where pause.tenant_id = $3 and pause.task_id = task.task_id))
  and task.name > $1
order by task.name limit $2

-- name: task
select task.task_id, task.name, task.doc, task.defaults, task.schema,
       (select count(*) from workers worker
        where worker.state = 'live' and task.task_id = any (worker.task_ids)) as workers,
       array(
         select row(worker.worker_id, worker.name) from workers worker
         where worker.state = 'live' and task.task_id = any (worker.task_ids)
         order by worker.worker_id limit 50) as who
from tasks task
where task.name = $1 and (task.schema <> '{}' or task.task_id = $2)

-- name: live
-- The tasks that live workers know, and the pools of these workers.
select distinct task.name as task, served.pool
from (
  select worker.task_ids, worker.pools from workers worker
  where worker.state = 'live'
  order by worker.worker_id desc limit 500) worker
cross join lateral jsonb_object_keys(worker.pools) served (pool)
cross join unnest(worker.task_ids) given (task_id)
join tasks task on task.task_id = given.task_id limit 50000

-- name: described
-- Whether a worker has ever described this task.
select exists (select 1 from tasks where name = $1 and schema <> '{}')
