-- Audits the jobs that one statement creates with one insert. The actor is read once, unless the statement creates the
-- jobs of several requests: then bellringer.actors has the actor of each job, by its id.
create or replace function audit_new_jobs() returns trigger language plpgsql security definer
  set search_path = bellringer, pg_temp as $$
begin
  with given as materialized (
    select nullif(current_setting('bellringer.actors', true), '')::jsonb as by_job,
           nullif(current_setting('bellringer.actor', true), '')::jsonb as of_all)
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, revision)
  select bellringer.now(), job.tenant_id, coalesce(actor ->> 'who', job.who), actor ->> 'origin',
         actor ->> 'request_id', 'job.' || job.what, 'job', job.job_id, job.revision
  from given cross join added job
  cross join lateral (
    select case when by_job is null then of_all else by_job -> job.job_id::text end as actor offset 0) own;
  return null;
end $$;

-- Audits a change of a job. The entry names the new revision instead of copying the definition.
create or replace function audit_job() returns trigger language plpgsql security definer
  set search_path = bellringer, pg_temp as $$
begin
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, revision)
  select bellringer.now(), new.tenant_id, coalesce(a.who, new.who), a.origin, a.request_id, 'job.'
    || new.what, 'job', new.job_id, new.revision
  from actor() a;
  return null;
end $$;

-- Audits changes of a table that users change. Trigger arguments: the kind of object; the columns that identify a row;
-- the columns to ignore because the program changes them.
create or replace function audited() returns trigger language plpgsql security definer
  set search_path = bellringer, pg_temp as $$
declare
  was    jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) - string_to_array(tg_argv[2], ',') end;
  is_now jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) - string_to_array(tg_argv[2], ',') end;
  it     jsonb := coalesce(is_now, was);
  done   text := case tg_op when 'INSERT' then 'created' when 'DELETE' then 'deleted' else 'changed' end;
begin
  if was = is_now then return null; end if;
  if tg_op = 'UPDATE' and was ->> 'deleted_at' is null and is_now ->> 'deleted_at' is not null then done
    := 'deleted'; end if;
  if tg_table_name = 'calendars' and tg_op = 'INSERT' then     -- a changed calendar is a new row with the next version
    select to_jsonb(c) into was from calendars c
    where c.tenant_id = new.tenant_id and c.name = new.name and c.version = new.version - 1 and c.deleted_at is null;
    if found then done := 'changed'; end if;
  end if;
  insert into audit (at, tenant_id, who, origin, request_id, action, kind, target, before, after)
  select bellringer.now(), coalesce((it ->> 'tenant_id')::integer, 0),
         coalesce(a.who, case when tg_op = 'INSERT' then
           coalesce(it ->> 'who', it ->> 'changed_by', it ->> 'made_by', it ->> 'created_by') end, 'bellringer'),
         a.origin, a.request_id, tg_argv[0] || '.' || done, tg_argv[0],
         (select string_agg(it ->> c.name, ' ' order by c.place)
           from unnest(string_to_array(tg_argv[1], ',')) with ordinality c (name, place)),
         redacted(was, is_now), redacted(is_now, was)
  from actor() a;
  return null;
end $$;

-- Refuses changes of the audit tables (BR005). Only retention deletes rows, by whole seals (see forget_audit).
create or replace function reject_change() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' and current_setting('bellringer.forgetting', true) = 'audit' then return old; end if;
  raise exception 'the audit is never changed' using errcode = 'BR005';
end $$;
