-- The state of a job from its own columns; `troubles` has the states late and failing.
create or replace function job_state(
  p_paused_at timestamptz, p_enabled boolean,
  p_done_at timestamptz) returns text language sql immutable parallel safe as $$
  select case when p_paused_at is not null then 'paused' when not p_enabled then 'disabled'
              when p_done_at is not null then 'done' else 'enabled' end
$$;

-- The following three functions return the next p_most jobs of a state, in the order of the list, from an index that
-- holds only those jobs. They are plain SQL without settings, so that the planner inlines them and removes the branches
-- of other states. A deleted job may still have a row in `troubles`; it counts against p_most.
create or replace function in_trouble(
  p_tenant integer, p_state text, p_after uuid, p_most bigint) returns table (job_id uuid) language sql stable as $$
  (select trouble.job_id from bellringer.troubles trouble
   where p_state = 'failing' and trouble.tenant_id = p_tenant and trouble.kind = 'dead'
     and (p_after is null or trouble.job_id > p_after)
   order by trouble.job_id)
  union all
  (select trouble.job_id from bellringer.troubles trouble
   where p_state = 'late' and trouble.tenant_id = p_tenant and trouble.kind = 'late'
     and (p_after is null or trouble.job_id > p_after)
   order by trouble.job_id)
  union all
  (select trouble.job_id from bellringer.troubles trouble
   where p_state = 'late' and trouble.tenant_id = p_tenant and trouble.kind = 'missed'
     and (p_after is null or trouble.job_id > p_after)
   order by trouble.job_id)
  union all
  (select trouble.job_id from bellringer.troubles trouble
   where p_state = 'late' and trouble.tenant_id = p_tenant and trouble.kind = 'skipping'
     and (p_after is null or trouble.job_id > p_after)
   order by trouble.job_id)
  union all
  (select trouble.job_id from bellringer.troubles trouble
   where p_state = 'late' and trouble.tenant_id = p_tenant and trouble.kind = 'unknown_task'
     and (p_after is null or trouble.job_id > p_after)
   order by trouble.job_id)
  order by job_id limit p_most
$$;

-- A page of the jobs of a tenant in one state, in the order of their ids.
create or replace function jobs_by_id(
  p_tenant integer, p_state text, p_after uuid, p_most bigint) returns setof jobs language sql stable as $$
  (select * from bellringer.jobs job
   where (p_state is null or p_state = 'enabled') and job.tenant_id = p_tenant and job.deleted_at is null
     and (p_after is null or job.job_id > p_after)
   order by job.job_id limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'paused' and job.paused_at is not null and job.tenant_id = p_tenant and job.deleted_at is null
     and (p_after is null or job.job_id > p_after)
   order by job.job_id limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'disabled' and not job.enabled and job.tenant_id = p_tenant and job.deleted_at is null
     and (p_after is null or job.job_id > p_after)
   order by job.job_id limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'done' and job.done_at is not null and job.tenant_id = p_tenant and job.deleted_at is null
     and (p_after is null or job.job_id > p_after)
   order by job.job_id limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'orphaned' and job.orphaned_at is not null and job.tenant_id = p_tenant and job.deleted_at is null
     and (p_after is null or job.job_id > p_after)
   order by job.job_id limit p_most)
  union all
  (select job.* from bellringer.in_trouble(p_tenant, p_state, p_after, p_most) trouble
   join lateral (
     select * from bellringer.jobs job where job.job_id = trouble.job_id offset 0) job on job.job_id = trouble.job_id
   where p_state in ('late', 'failing') and job.tenant_id = p_tenant
   order by job.job_id limit p_most)
$$;

-- By name, few jobs in trouble are sorted. If there are many, all jobs are read in the order of their names, because a
-- job in trouble is then never far.
create or replace function jobs_by_name(
  p_tenant integer, p_state text, p_after text, p_most bigint) returns setof jobs language sql stable as $$
  (select * from bellringer.jobs job
   where (p_state is null or p_state = 'enabled' or (p_state in ('late', 'failing')
            and (select count(*) from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4 + 1)) > p_most / 4))
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'paused' and job.paused_at is not null
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'disabled' and not job.enabled
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'done' and job.done_at is not null
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
  union all
  (select * from bellringer.jobs job
   where p_state = 'orphaned' and job.orphaned_at is not null
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
  union all
  (select job.* from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4) trouble
   cross join lateral (select * from bellringer.jobs job where job.job_id = trouble.job_id offset 0) job
   where p_state in ('late', 'failing')
     and (select count(*) from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4 + 1)) <= p_most / 4
     and job.tenant_id = p_tenant and job.deleted_at is null and (p_after is null or job.name_key > p_after)
       order by job.name_key limit p_most)
$$;

-- The next p_most jobs that match the filter, among the next p_scan jobs of the state by id or name. If fewer match and
-- more jobs may follow, a last row with is_stop has the position for the next call. With p_orphaned, only orphans are
-- read, or only other jobs.
create or replace function list_jobs(
  p_tenant integer, p_by_name boolean, b_job uuid, b_name text, p_q text, p_tag text, p_state text, p_pool text,
  p_task text, p_owner text, p_like text, p_most integer, p_scan integer, p_app text default null,
  p_orphaned boolean default null)
returns table (job_id uuid, name_key text, is_stop boolean)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
declare
  f_task integer := task_id_of(p_task);
  f_pool smallint := pool_id_of(p_pool);
  f_app  integer := (select app.app_id from apps app where app.tenant_id = p_tenant and app.name = p_app);
  source text := case when p_orphaned then 'orphaned' else p_state end;    -- which index the jobs are read from
  n      bigint;
begin
  if p_by_name then
    return query
    select job.job_id, job.name_key, false from jobs_by_name(p_tenant, source, b_name, p_scan) job
    where (p_q is null or strpos(job.name_key, p_q) > 0) and (p_tag is null or job.tags @> array[p_tag])
      and (p_state is null or p_state in ('late', 'failing')
           or p_state = job_state(job.paused_at, job.enabled, job.done_at))
      and (p_state is null or p_state not in ('late', 'failing')
           or exists (                                   -- all jobs may have been read
             select 1 from troubles trouble
             where trouble.job_id = job.job_id and (trouble.kind = 'dead') = (p_state = 'failing') offset 0))
      and (p_pool is null or job.pool_id = f_pool) and (p_task is null or job.task_id = f_task)
      and (p_owner is null or job.owner = p_owner) and (p_like is null or job.name_key like p_like)
      and (p_app is null or job.app_id = f_app)
      and (p_orphaned is null or p_orphaned = (job.orphaned_at is not null))
    order by job.name_key limit p_most;
  else
    return query
    select job.job_id, job.name_key, false from jobs_by_id(p_tenant, source, b_job, p_scan) job
    where (p_q is null or strpos(job.name_key, p_q) > 0) and (p_tag is null or job.tags @> array[p_tag])
      and job.deleted_at is null
      and (p_state is null or p_state in ('late', 'failing')
           or p_state = job_state(job.paused_at, job.enabled, job.done_at))
      and (p_pool is null or job.pool_id = f_pool) and (p_task is null or job.task_id = f_task)
        and (p_owner is null or job.owner = p_owner)
      and (p_like is null or job.name_key like p_like) and (p_app is null or job.app_id = f_app)
      and (p_orphaned is null or p_orphaned = (job.orphaned_at is not null))
      and (p_state is null or source = p_state or p_state not in ('late', 'failing')
           or exists (
             select 1 from troubles trouble
             where trouble.job_id = job.job_id and (trouble.kind = 'dead') = (p_state = 'failing') offset 0))
    order by job.job_id limit p_most;
  end if;
  get diagnostics n = row_count;
  if n < p_most and p_by_name then
    return query
    select job.job_id, job.name_key, true
    from (
      select job.name_key from jobs_by_name(p_tenant, source, b_name, p_scan) job
      order by job.name_key offset p_scan - 1 limit 1) last
    join jobs job on job.tenant_id = p_tenant and job.name_key = last.name_key and job.deleted_at is null;
  elsif n < p_most then
    return query
    select job.job_id, job.name_key, true
    from (select job.job_id from jobs_by_id(p_tenant, source, b_job, p_scan) job order by job.job_id offset p_scan - 1
      limit 1) last
    join jobs job on job.job_id = last.job_id;
  end if;
end $$;
