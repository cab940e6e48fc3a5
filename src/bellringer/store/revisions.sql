-- Revisions of jobs.

-- name: newest
select revision, effective_at, what, who, why, definition from revisions_of($1) order by revision desc limit $2

-- name: before
select revision, effective_at, what, who, why from revisions_of($1)
where $2::integer is null or revision < $2
order by revision desc limit $3

-- name: one
-- An earlier state of a job: the row of `jobs` is rebuilt from the revision's document.
select revision.effective_at, job.*, task.name as task, pool.name as pool, job_limit.key as limit_key,
       job_limit.most as limit_most, lease.region, null::timestamptz as next_at, null::timestamptz as timer_at,
       null::text as app, null::text as app_version, null::text[] as followers,
       coalesce((select graph.nodes from graphs graph where graph.graph_id = (job.spec ->> 'graph')::integer),
                0) as nodes
from revisions_of($1) revision
cross join lateral jsonb_populate_record(null::bellringer.jobs,
                                         revision.definition
                                           || jsonb_build_object('job_id', $1, 'revision', revision.revision, 'what',
                                               revision.what, 'who', revision.who, 'why', revision.why, 'created_at',
                                               revision.effective_at, 'updated_at', revision.effective_at)) job
left join leases lease on lease.shard = job.shard
join tasks task on task.task_id = job.task_id
join pools pool on pool.pool_id = job.pool_id
left join limits job_limit on job_limit.key_id = job.key_id and job_limit.key not like 'job %'
where revision.revision = $2 and job.tenant_id = $3

-- name: many
-- The same for several jobs, each at a revision of its own, with the latest change of the definition after it.
select job.*, task.name as task, pool.name as pool, job_limit.key as limit_key, job_limit.most as limit_most,
       null::text as region, null::timestamptz as next_at, null::timestamptz as timer_at, null::text as app,
       null::text as app_version, null::text[] as followers,
       coalesce((select graph.nodes from graphs graph where graph.graph_id = (job.spec ->> 'graph')::integer),
                0) as nodes,
       edit.who as edited_by, edit.effective_at as edited_at
from unnest($1::uuid[], $2::integer[]) given (job_id, revision)
cross join lateral (
  select * from revisions_of(given.job_id) revision where revision.revision = given.revision) revision
cross join lateral jsonb_populate_record(null::bellringer.jobs,
                                         revision.definition
                                           || jsonb_build_object('job_id', given.job_id, 'revision', revision.revision,
                                               'created_at', revision.effective_at, 'updated_at',
                                               revision.effective_at)) job
join tasks task on task.task_id = job.task_id
join pools pool on pool.pool_id = job.pool_id
left join limits job_limit on job_limit.key_id = job.key_id and job_limit.key not like 'job %'
left join lateral (
  select later.who, later.effective_at from revisions_of(given.job_id) later
  where later.revision > given.revision and later.what = 'changed'
  order by later.revision desc limit 1) edit on true
where job.tenant_id = $3
