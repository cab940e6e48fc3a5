-- The declarations of apps: which version of an app is current, which jobs it declares, and which it no longer does.

-- Records that p_version of an app declares its jobs, and makes it the current version unless a newer one is. A version
-- is newer if it was first seen, or activated, later. Returns the app as it was before, with its row locked; number is
-- null if a newer version is current, and then nothing was written.
create or replace function take_app(
  p_tenant integer, p_app text, p_version text, p_orphans text, p_who text, p_at timestamptz) returns apps
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  before apps;
  own    integer;
begin
  insert into apps (tenant_id, name, version, number, orphans, created_at, created_by, declared_at)
  values (p_tenant, p_app, p_version, 1, p_orphans, p_at, p_who, p_at)
  on conflict (tenant_id, name) do nothing;
  select * into before from apps where tenant_id = p_tenant and name = p_app for update;
  select number into own from app_versions where app_id = before.app_id and version = p_version;
  if own < before.number then
    before.number := null;
    return before;
  end if;
  if own is null then
    own := before.number + case when before.version = p_version then 0 else 1 end;   -- the app may be new
    insert into app_versions (app_id, version, tenant_id, number, first_seen_at)
    values (before.app_id, p_version, p_tenant, own, p_at);
  end if;
  update apps set version = p_version, number = own, orphans = p_orphans, declared_at = p_at
  where app_id = before.app_id;
  return before;
end $$;

-- Guarantees  Applies the declaration of an app, or nothing: creates and changes jobs (p_jobs, as register
--             takes them; null: none), notes which jobs the app declares, marks the app's other jobs as orphans,
--             applies the orphan policy to them, and writes the events adopted, orphaned and overridden. Returns the
--             names of adopted and orphaned jobs. If a newer version of the app is current, writes nothing and returns
--             that version.
-- Raises      What register raises.
-- Locks       In this order: the row of the app, the rows of jobs in the order of their ids, then as register.
-- Caller      d_* has all declared jobs, the new ones included: the revision that has the declared definition (the one
--             that register will give it, if it is in p_jobs), and `enabled` as the code says. p_left has further jobs,
--             of this app or of none, that become orphans. With p_complete, all other jobs of the app do. p_overridden
--             has the data of events by job id.
create or replace function declare_app(
  p_tenant integer, p_app text, p_version text, p_orphans text, p_who text, d_job uuid[], d_revision integer[],
  d_enabled boolean[], p_left uuid[], p_complete boolean, p_overridden jsonb, p_jobs jsonb default null,
  p_shards smallint[] default '{}', p_asof timestamptz default null, h_schedule integer[] default '{}',
  h_next timestamptz[] default '{}', k_schedule integer[] default '{}', k_at timestamptz[] default '{}',
  out since timestamptz, out superseded_by text, out adopted text[], out orphaned text[])
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s'
PLAN_BY_KEY as $$
declare
  t       timestamptz;
  app     apps;
  orphans uuid[];
begin
  perform assert_tenant(p_tenant);
  if coalesce(current_setting('bellringer.actor', true), '') = '' then
    perform set_config('bellringer.actor', jsonb_build_object('who', p_who)::text, true);
  end if;
  perform 1 from apps where tenant_id = p_tenant and name = p_app for update;
  t := bellringer.clock();                               -- after the wait for the lock
  app := take_app(p_tenant, p_app, p_version, p_orphans, p_who, t);
  if app.number is null then
    superseded_by := app.version;
    return;
  end if;
  orphans := array(
    select job.job_id from jobs job
    where p_complete and job.app_id = app.app_id and job.deleted_at is null and job.done_at is null
      and job.orphaned_at is null
    except select unnest(d_job)) || p_left;
  perform 1 from jobs job
  where job.job_id = any (orphans || array(              -- declared jobs that change; the others are not locked
      select declared.job_id from unnest(d_job, d_revision, d_enabled) declared (job_id, revision, enabled)
      cross join lateral (select * from jobs stored where stored.job_id = declared.job_id offset 0) stored
      where (stored.app_id, stored.declared_revision, stored.declared_enabled) is distinct from
              (app.app_id, declared.revision, declared.enabled) or stored.orphaned_at is not null))
    and job.tenant_id = p_tenant
  order by job.job_id for update;
  adopted := adopt_jobs(app.app_id, p_tenant, p_who, p_version, t, d_job);
  if p_jobs is not null then
    since := register(p_jobs, p_shards, p_asof, p_who, h_schedule, h_next, k_schedule, k_at);
  end if;
  update jobs job
  set app_id = app.app_id, declared_revision = declared.revision, declared_enabled = declared.enabled,
      orphaned_at = null, orphaned_version = null
  from unnest(d_job, d_revision, d_enabled) declared (job_id, revision, enabled)
  where job.job_id = declared.job_id and job.tenant_id = p_tenant and job.deleted_at is null
    and ((job.app_id, job.declared_revision, job.declared_enabled) is distinct from
           (app.app_id, declared.revision, declared.enabled) or job.orphaned_at is not null);
  orphaned := orphan_jobs(app.app_id, p_tenant, p_who, p_version, app.version, p_orphans, t, orphans);
  if p_orphans <> app.orphans then                       -- a new policy applies to earlier orphans, too
    perform apply_orphan_policy(p_tenant, p_orphans, p_who, array(
      select job.job_id from jobs job
      where job.app_id = app.app_id and job.orphaned_at is not null and job.deleted_at is null));
  end if;
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  select t, p_tenant, 'overridden', job.job_id, t, given.value from jsonb_each(p_overridden) given
  cross join lateral (
    select job.job_id, job.tenant_id from jobs job where job.job_id = given.key::uuid offset 0) job
  where job.tenant_id = p_tenant order by job.job_id on conflict do nothing;
end $$;

-- Writes the event `adopted` for declared jobs that were orphans or belonged to another app. Returns their names.
create or replace function adopt_jobs(
  p_app integer, p_tenant integer, p_who text, p_version text, p_at timestamptz, p_declared uuid[]) returns text[]
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
begin
  with found as materialized (
    select job.job_id, job.name, job.orphaned_at, owner.name as owner from jobs job
    cross join lateral (select name from apps owner where owner.app_id = job.app_id offset 0) owner
    where job.job_id = any (p_declared) and job.tenant_id = p_tenant and job.deleted_at is null
      and (job.app_id <> p_app or job.orphaned_at is not null)
    order by job.job_id)
  insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
  select p_at, p_tenant, 'adopted', found.job_id, p_at,
         jsonb_build_object('app', app.name, 'version', nullif(p_version, ''), 'by', p_who, 'from_app', found.owner,
                            'orphaned_at', found.orphaned_at)
  from found cross join (select name from apps where app_id = p_app) app
  on conflict do nothing;
  return array(
    select job.name from jobs job
    where job.job_id = any (p_declared) and job.tenant_id = p_tenant and job.deleted_at is null
      and job.app_id is not null and (job.app_id <> p_app or job.orphaned_at is not null)
    order by job.name_key);
end $$;

-- Marks jobs as orphans of an app, writes their events and applies the policy. p_last is the version that declared them
-- last. Returns their names.
create or replace function orphan_jobs(
  p_app integer, p_tenant integer, p_who text, p_version text, p_last text, p_policy text, p_at timestamptz,
  p_orphans uuid[]) returns text[]
language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
declare
  marked uuid[];
  names  text[];
begin
  with found as (
    update jobs job
    set app_id = p_app, orphaned_at = p_at,
        orphaned_version = case when job.app_id is not null then nullif(p_last, '') end
    where job.job_id = any (p_orphans) and job.tenant_id = p_tenant and job.deleted_at is null and job.done_at is null
      and job.orphaned_at is null and coalesce(job.app_id, p_app) = p_app
    returning job.job_id, job.name, job.orphaned_version),
  written as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, data)
    select p_at, p_tenant, 'orphaned', found.job_id, p_at,
           jsonb_build_object('app', app.name, 'version', nullif(p_version, ''), 'by', p_who,
                              'last_version', found.orphaned_version, 'policy', p_policy)
    from found cross join (select name from apps where app_id = p_app) app
    order by found.job_id on conflict do nothing)
  select array_agg(found.job_id order by found.job_id), array_agg(found.name order by found.name)
  into marked, names from found;
  perform apply_orphan_policy(p_tenant, p_policy, p_who, marked);
  return coalesce(names, '{}');
end $$;

-- Pauses or deletes orphans. A job that is paused already stays as it is, so a later resume is the operator's decision.
create or replace function apply_orphan_policy(p_tenant integer, p_policy text, p_who text, p_orphans uuid[])
returns void language plpgsql set search_path = bellringer, pg_temp
PLAN_BY_KEY as $$
declare
  orphan uuid;
begin
  if p_policy = 'pause' then
    for orphan in
      select job.job_id from jobs job
      where job.job_id = any (p_orphans) and job.paused_at is null order by job.job_id
    loop
      perform pause(orphan, p_tenant, p_who, 'orphaned: the code of its app no longer declares this job', null);
      update jobs set orphan_paused_by = p_who where job_id = orphan;
    end loop;
  elsif p_policy = 'delete' then
    for orphan in select job.job_id from jobs job where job.job_id = any (p_orphans) order by job.job_id loop
      perform delete_job(orphan, p_tenant, p_who);
    end loop;
  end if;
end $$;

-- Makes a version that an app has had before current again, for a rollback. Running and new processes of that version
-- then declare its jobs. Returns false if the app has no such version. Locks the row of the app.
create or replace function activate_app_version(p_tenant integer, p_app text, p_version text, p_who text)
returns boolean
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
declare
  app apps;
begin
  perform assert_tenant(p_tenant);
  select * into app from apps where tenant_id = p_tenant and name = p_app for update;
  if not exists (select 1 from app_versions where app_id = app.app_id and version = p_version) then
    return false;
  end if;
  if app.version <> p_version then
    update app_versions set number = app.number + 1, activated_at = bellringer.clock(), activated_by = p_who
    where app_id = app.app_id and version = p_version;
    update apps set version = p_version, number = app.number + 1 where app_id = app.app_id;
  end if;
  return true;
end $$;
