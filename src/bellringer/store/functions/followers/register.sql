-- Followers: jobs that start after another job. `jobs.after` is their definition; `job_followers` is what the end of a
-- run reads.

-- Updates job_followers for jobs that `register` has just written. p_renamed has the changed jobs whose name changed,
-- as [tenant, previous name_key, new name]: their followers keep following them, by a new revision. The caller has
-- locked these followers.
--
-- Raises  BR008 if a job would start after itself, directly or through others (detail: the names along the cycle).
-- Locks   LOCK_FOLLOWERS of the tenants, in order and as the last lock: two registrations that form a cycle together
--         are checked one after the other.
create or replace function register_followers(
  p_batches job_batch[], p_changed uuid[], p_renamed jsonb, p_at timestamptz, p_who text) returns void
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
declare
  follower record;
  path     text[];
  upstream record;
begin
  if p_changed is not null then
    delete from job_followers where job_id = any (p_changed);
  end if;
  if p_renamed is not null then
    with moved as (
      update jobs job
      set after = jsonb_set(job.after, '{job}', renamed.value -> 2), revision = job.revision + 1, updated_at = p_at,
          what = 'changed', who = p_who, why = 'the job that it starts after was renamed'
      from jsonb_array_elements(p_renamed) renamed
      join job_followers named on named.tenant_id = (renamed.value ->> 0)::integer
        and named.upstream_key = renamed.value ->> 1
      where job.job_id = named.job_id
      returning job.job_id, job.shard, job.schedule_ids, job.revision),
    scheduled as (
      update members member set revision = moved.revision from moved
      where member.shard = moved.shard and member.schedule_id = any (moved.schedule_ids)
        and member.job_id = moved.job_id)
    update timers timer set revision = moved.revision from moved
    where timer.job_id = moved.job_id and timer.spec is null;
    update job_followers named set upstream_key = lower(renamed.value ->> 2)
    from jsonb_array_elements(p_renamed) renamed
    where named.tenant_id = (renamed.value ->> 0)::integer and named.upstream_key = renamed.value ->> 1;
  end if;
  insert into job_followers (job_id, tenant_id, upstream_key, outcome)
  select given.job_id, (batch.template).tenant_id, lower((batch.template).after ->> 'job'),
         (batch.template).after ->> 'on'
  from unnest(p_batches) batch cross join lateral batch_jobs(batch.jobs) given
  where (batch.template).after is not null;
  if not found then return; end if;

  perform pg_advisory_xact_lock(LOCK_FOLLOWERS, tenant.tenant_id)
  from (select distinct (batch.template).tenant_id from unnest(p_batches) batch order by 1) tenant;
  for follower in
    select given.job_id, given.name, (batch.template).tenant_id, lower((batch.template).after ->> 'job') as upstream_key
    from unnest(p_batches) batch cross join lateral batch_jobs(batch.jobs) given
    where (batch.template).after is not null
  loop
    path := array[follower.name];
    upstream := follower;
    loop
      select job.job_id, job.name, job.tenant_id, next.upstream_key from jobs job
      left join job_followers next on next.job_id = job.job_id
      where job.tenant_id = follower.tenant_id and job.name_key = upstream.upstream_key and job.deleted_at is null
      into upstream;
      exit when upstream.job_id is null;
      path := path || upstream.name;
      if upstream.job_id = follower.job_id then
        raise exception 'the job would start after itself' using errcode = 'BR008',
          detail = to_jsonb(path)::text;
      end if;
      exit when upstream.upstream_key is null;
    end loop;
  end loop;
end $$;

-- The changed jobs of p_batches whose name changes, as `register_followers` takes them; null: none that matters.
create or replace function renamed_upstreams(p_batches job_batch[]) returns jsonb
language plpgsql set search_path = bellringer, pg_temp PLAN_BY_KEY as $$
begin
  if not exists (select from job_followers) then return null; end if;
  return (
    select jsonb_agg(jsonb_build_array(stored.tenant_id, stored.name_key, given.name))
    from unnest(p_batches) batch cross join lateral batch_jobs(batch.jobs) given
    cross join lateral (
      select job.tenant_id, job.name_key from jobs job where job.job_id = given.job_id offset 0) stored
    where batch.expected > 0 and stored.name_key <> lower(given.name));
end $$;

-- The followers of the jobs in p_renamed (see `register_followers`).
create or replace function followers_of_renamed(p_renamed jsonb) returns uuid[]
language sql stable set search_path = bellringer, pg_temp as $$
  select array(
    select named.job_id from jsonb_array_elements(p_renamed) renamed
    join job_followers named on named.tenant_id = (renamed.value ->> 0)::integer
      and named.upstream_key = renamed.value ->> 1)
$$;
