-- The apps of a tenant after p_after by name, or the app p_name, with the number of their jobs and orphans, each
-- counted up to p_count.
create or replace function list_apps(p_tenant integer, p_after text, p_most integer, p_count integer, p_name text)
returns table (name text, version text, policy text, created_at timestamptz, declared_at timestamptz, jobs bigint,
               orphans bigint)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  select app.name, nullif(app.version, ''), app.orphans, app.created_at, app.declared_at,
         (select count(*)
          from (
            select 1 from jobs job
            where job.app_id = app.app_id and job.orphaned_at is null and job.deleted_at is null limit p_count) job),
         (select count(*)
          from (
            select 1 from jobs job
            where job.app_id = app.app_id and job.orphaned_at is not null and job.deleted_at is null
            limit p_count) job)
  from apps app
  where app.tenant_id = p_tenant and (p_after is null or app.name > p_after) and (p_name is null or app.name = p_name)
  order by app.name limit p_most;
end $$;
