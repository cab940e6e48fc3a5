-- name: register
select bellringer.register($1::jsonb, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: lock_shards
-- With the patience that registration has by itself.
select set_config('lock_timeout', '5s', true), bellringer.lock_shards_shared('{}', $1::smallint[])

-- name: pause
select bellringer.pause($1, $2, $3, $4, $5)

-- name: resume
select bellringer.resume($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: retire
select bellringer.retire($1, $2, $3)

-- name: get
-- In the order given. Each look-up is one by a key that no other plan fits, and jobs stand behind a fence: before the first analyze of
-- a table that has grown, the planner prefers the tenant's index, or to read all of what was small.
select j.job_id, j.name, (select t.name from tasks t where t.task_id = j.task_id) as task, j.spec, j.schedules, j.schedule_ids,
       (select p.name from pools p where p.pool_id = j.pool_id) as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, s.region, j.revision,
       j.created_at, j.updated_at, j.once_at, j.delay, j.expected_duration, j.routed, j.learned_at,
       coalesce((select g.nodes from graphs g where g.graph_id = (j.spec ->> 'graph')::integer), 0) as nodes,
       (select min(c.next_at) from unnest(j.schedule_ids) i (schedule_id)
        cross join lateral (select c.next_at from cohorts c where c.shard = j.shard and c.schedule_id = i.schedule_id offset 0) c
        where j.enabled and j.paused_at is null) as next_at,
       (select min(m.due_at) from timers m where m.job_id = j.job_id) as timer_at
from unnest($1::uuid[]) with ordinality u (id, nth) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
left join leases s on s.shard = j.shard
left join lateral (select * from limits l where l.key_id = j.key_id offset 0) l on l.key not like 'job %'
where j.tenant_id = $2 and j.deleted_at is null order by u.nth

-- name: find
select job_id, revision from jobs where tenant_id = $1 and name_key = lower($2) and deleted_at is null

-- name: find_many
-- The database alone knows what its small letters are. They are made apart: behind row-level security an index is asked only by
-- what cannot tell of the rows, and lower() might.
select u.name as given, j.job_id, j.revision
from (select name, lower(name) as name_key from unnest($2::text[]) u (name) offset 0) u
join jobs j on j.tenant_id = $1 and j.name_key = u.name_key and j.deleted_at is null

-- name: page
-- Of jobs by their names ($2) or ids.
select job_id, name_key, is_stop from bellringer.list_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: stop_runs
-- What a deleted job has under way is asked to stop.
update queue set cancel_requested = true where job_id = $1 and tenant_id = $2 and (worker_id is not null or blocked & 128 = 128)

-- name: lapsed
-- Pauses whose time is over, the first first: so it is their index that is read, whatever the planner believes.
select job_id, tenant_id from jobs where paused_until <= bellringer.now() and paused_until is not null order by paused_until limit $1
