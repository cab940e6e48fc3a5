-- name: register
select o_job_id as job_id, o_revision as revision, o_active_since as active_since
from bellringer.register($1::jsonb, $2, $3, $4, $5, $6, $7, $8)

-- name: pause
select bellringer.pause($1, $2, $3, $4, $5)

-- name: resume
select bellringer.resume($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: retire
select bellringer.retire($1, $2, $3)

-- name: get
select j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, j.revision,
       j.created_at, j.updated_at, j.once_at, j.delay,
       (select min(c.next_at) from unnest(j.schedule_ids) i (schedule_id) join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id
         where j.enabled and j.paused_at is null) as next_at,
       (select min(m.due_at) from timers m where m.job_id = j.job_id) as timer_at
from jobs j join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where j.job_id = any ($1::uuid[]) and j.tenant_id = $2 and j.deleted_at is null

-- name: find
select job_id, revision from jobs where tenant_id = $1 and lower(name) = lower($2) and deleted_at is null

-- name: find_many
-- The database alone knows what its small letters are.
select u.name as given, j.job_id, j.revision from unnest($2::text[]) u (name)
join jobs j on j.tenant_id = $1 and lower(j.name) = lower(u.name) and j.deleted_at is null

-- name: list
select j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, j.revision,
       j.created_at, j.updated_at, j.once_at, j.delay,
       (select min(c.next_at) from unnest(j.schedule_ids) i (schedule_id) join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id
         where j.enabled and j.paused_at is null) as next_at,
       (select min(m.due_at) from timers m where m.job_id = j.job_id) as timer_at
from jobs j join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where j.tenant_id = $1 and j.deleted_at is null and ($2::uuid is null or j.job_id > $2)
order by j.job_id limit $3

-- name: lapsed
-- Pauses whose time is over.
select job_id, tenant_id from jobs where paused_until <= bellringer.now() and paused_until is not null limit $1

-- name: revisions
select revision, effective_at, what, who, why, definition from job_revisions where job_id = $1 order by revision desc limit $2
