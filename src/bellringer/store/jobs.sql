-- name: register
select bellringer.register($1::jsonb, $2, $3, $4, $5, $6, $7, $8)

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
-- By their ids alone, behind a fence: before the first analyze of a table that has grown, the planner prefers the tenant's index.
select j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, s.region, j.revision,
       j.created_at, j.updated_at, j.once_at, j.delay, j.expected_duration, j.routed, j.learned_at,
       (select min(c.next_at) from unnest(j.schedule_ids) i (schedule_id) join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id
         where j.enabled and j.paused_at is null) as next_at,
       (select min(m.due_at) from timers m where m.job_id = j.job_id) as timer_at
from unnest($1::uuid[]) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
left join leases s on s.shard = j.shard
join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where j.tenant_id = $2 and j.deleted_at is null

-- name: find
select job_id, revision from jobs where tenant_id = $1 and name_key = lower($2) and deleted_at is null

-- name: find_many
-- The database alone knows what its small letters are. They are made apart: behind row-level security an index is asked only by
-- what cannot tell of the rows, and lower() might.
select u.name as given, j.job_id, j.revision
from (select name, lower(name) as name_key from unnest($2::text[]) u (name) offset 0) u
join jobs j on j.tenant_id = $1 and j.name_key = u.name_key and j.deleted_at is null

-- name: list
select j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, s.region, j.revision,
       j.created_at, j.updated_at, j.once_at, j.delay, j.expected_duration, j.routed, j.learned_at,
       (select min(c.next_at) from unnest(j.schedule_ids) i (schedule_id) join cohorts c on c.shard = j.shard and c.schedule_id = i.schedule_id
         where j.enabled and j.paused_at is null) as next_at,
       (select min(m.due_at) from timers m where m.job_id = j.job_id) as timer_at
from unnest($1::uuid[]) u (id) cross join lateral (select * from jobs j where j.job_id = u.id offset 0) j
left join leases s on s.shard = j.shard
join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where j.tenant_id = $2 and j.deleted_at is null
order by case when $3 then j.name_key end collate "C", j.job_id

-- name: page_by_id
-- The next jobs that a filter lets through, among the next $12 by their ids.
select s.job_id, s.name_key from (
  select * from jobs j where j.tenant_id = $1 and j.deleted_at is null and ($2::uuid is null or j.job_id > $2) and $3::text is null
  order by j.job_id limit $12) s
left join tasks t on t.task_id = s.task_id left join pools p on p.pool_id = s.pool_id
where ($4::text is null or strpos(s.name_key, $4) > 0) and ($5::text is null or s.tags @> array[$5])
  and ($6::text is null or $6 = case when $6 in ('late', 'failing') then (
         select case k.kind when 'dead' then 'failing' else 'late' end from troubles k where k.job_id = s.job_id offset 0)
       when s.paused_at is not null then 'paused' when s.enabled then 'enabled' else 'disabled' end)
  and ($7::text is null or p.name = $7) and ($8::text is null or t.name = $8) and ($9::text is null or s.owner = $9)
  and ($10::text is null or s.name_key like $10)
order by s.job_id limit $11

-- name: page_by_name
select s.job_id, s.name_key from (
  select * from jobs j where j.tenant_id = $1 and j.deleted_at is null and $2::uuid is null and ($3::text is null or j.name_key > $3)
  order by j.name_key limit $12) s
left join tasks t on t.task_id = s.task_id left join pools p on p.pool_id = s.pool_id
where ($4::text is null or strpos(s.name_key, $4) > 0) and ($5::text is null or s.tags @> array[$5])
  and ($6::text is null or $6 = case when $6 in ('late', 'failing') then (
         select case k.kind when 'dead' then 'failing' else 'late' end from troubles k where k.job_id = s.job_id offset 0)
       when s.paused_at is not null then 'paused' when s.enabled then 'enabled' else 'disabled' end)
  and ($7::text is null or p.name = $7) and ($8::text is null or t.name = $8) and ($9::text is null or s.owner = $9)
  and ($10::text is null or s.name_key like $10)
order by s.name_key limit $11

-- name: scanned_by_id
-- How far such a page has looked, if that was not to the end.
select j.job_id, j.name_key from jobs j where j.tenant_id = $1 and j.deleted_at is null and ($2::uuid is null or j.job_id > $2) and $3::text is null
order by j.job_id offset $4 - 1 limit 1

-- name: scanned_by_name
select j.job_id, j.name_key from jobs j where j.tenant_id = $1 and j.deleted_at is null and $2::uuid is null and ($3::text is null or j.name_key > $3)
order by j.name_key offset $4 - 1 limit 1

-- name: stop_runs
-- What a deleted job has under way is asked to stop.
update queue set cancel_requested = true where job_id = $1 and tenant_id = $2 and worker_id is not null

-- name: lapsed
-- Pauses whose time is over.
select job_id, tenant_id from jobs where paused_until <= bellringer.now() and paused_until is not null limit $1

-- name: revisions
select revision, effective_at, what, who, why, definition from job_revisions where job_id = $1 order by revision desc limit $2

-- name: revisions_before
select revision, effective_at, what, who, why from job_revisions
where job_id = $1 and ($2::integer is null or revision < $2) order by revision desc limit $3

-- name: revision
-- A job as it was: its row is made again out of the revision, and read as any other.
select o.revision, o.effective_at, o.what, o.who, o.why,
       j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, s.region,
       j.created_at, j.updated_at, j.once_at, j.delay, j.expected_duration, j.routed, j.learned_at, null::timestamptz as next_at, null::timestamptz as timer_at
from job_revisions o cross join lateral jsonb_populate_record(null::bellringer.jobs, o.definition || jsonb_build_object(
  'job_id', o.job_id, 'created_at', o.effective_at, 'updated_at', o.effective_at)) j
left join leases s on s.shard = j.shard
join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where o.job_id = $1 and o.revision = $2 and j.tenant_id = $3
