-- Pauses of tasks, and the load of each task of a tenant.

-- name: find
-- A task that the tenant may name: a worker has described it, it is built in, or the tenant has named it itself.
select task_id from tasks where name = $2 and (named_by is null or named_by = $1)

-- name: pause
select bellringer.pause_task($1, $2, $3, $4, $5)

-- name: resume
select bellringer.resume_task($1, $2, $3, $4)

-- name: hold
select bellringer.hold_task_runs($1, $2, $3, $4)

-- name: release
select bellringer.release_task_runs($1, $2, $3)

-- name: end_over
select bellringer.end_task_pauses()

-- name: load
select load.task_id, load.ready, load.retrying, load.running, load.held, load.dead, load.oldest
from bellringer.task_load($1, $2) load

-- name: pauses
select pause.task_id, task.name, pause.paused_at, pause.paused_by, pause.reason, pause.until_at, pause.resumed_at,
       pause.release_rate
from task_pauses pause
join tasks task on task.task_id = pause.task_id
where pause.tenant_id = $1
order by task.name limit 1000

-- name: count
select count(*) from task_pauses where resumed_at is null
