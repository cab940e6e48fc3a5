-- What jobs are and were, revision by revision.

-- name: newest
select revision, effective_at, what, who, why, definition from revisions_of($1) order by revision desc limit $2

-- name: before
select revision, effective_at, what, who, why from revisions_of($1)
where $2::integer is null or revision < $2 order by revision desc limit $3

-- name: one
-- A job as it was: its row is made again out of the revision, and read as any other.
select o.revision, o.effective_at, o.what, o.who, o.why,
       j.job_id, j.name, t.name as task, j.spec, j.schedules, j.schedule_ids, p.name as pool, j.priority, j.misfire, j.catchup, j.overlap,
       j.cap, l.key as limit_key, l.most as limit_most, j.jitter, j.jitter_by, j.late_after,
       j.starts_at, j.ends_at, j.enabled, j.paused_at, j.paused_by, j.paused_reason, j.paused_until, j.owner, j.tags, s.region,
       j.created_at, j.updated_at, j.once_at, j.delay, j.expected_duration, j.routed, j.learned_at, null::timestamptz as next_at, null::timestamptz as timer_at,
       coalesce((select g.nodes from graphs g where g.graph_id = (j.spec ->> 'graph')::integer), 0) as nodes
from revisions_of($1) o cross join lateral jsonb_populate_record(null::bellringer.jobs, o.definition || jsonb_build_object(
  'job_id', $1, 'created_at', o.effective_at, 'updated_at', o.effective_at)) j
left join leases s on s.shard = j.shard
join tasks t on t.task_id = j.task_id join pools p on p.pool_id = j.pool_id
left join limits l on l.key_id = j.key_id and l.key not like 'job %'
where o.revision = $2 and j.tenant_id = $3
