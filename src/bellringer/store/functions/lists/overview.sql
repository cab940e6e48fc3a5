-- Reads for the console: change counters, counts of a tenant, and waiting runs by pool. Each select stops at a limit,
-- in the order of an index; planner settings fix the plans, because the partition of a new day has no statistics.

-- A hash of a text, as a number that a browser can hold exactly.
create or replace function hash_number(p_text text) returns bigint language sql immutable parallel safe as
$$ select hashtextextended(p_text, 0) & 9007199254740991 $$;

-- For each tenant, numbers that differ when its runs, jobs, dead letters or events, or the workers and nodes have
-- changed. They are computed from the newest rows and a limited number of the others. `started` and `busy` come from
-- the usage that workers report with each heartbeat, and show runs that are too short to be seen here. The newest id of
-- a tenant is searched between two row values: with `tenant_id = …` the planner may read down all ids.
create or replace function change_counters(p_tenants integer[])
returns table (tenant_id integer, runs bigint, jobs bigint, dead bigint, workers bigint, events bigint)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_IN_INDEX_ORDER as $$
#variable_conflict use_column
begin
  return query
  with live as materialized (
    select worker.worker_id, worker.state, worker.asked from workers worker
    where worker.state in ('live', 'draining') limit 500),
  staff as materialized (
    select hash_number(concat((select string_agg(concat(live.worker_id, live.state, live.asked), ' ') from live),
                              (select string_agg(concat(node.node_id, node.shards, node.waits_for), ' ')
                               from (
                                 select * from nodes node
                                 where node.seen_at > clock_timestamp() - interval '30 s' limit 500) node))) as hash)
  select given.tenant_id,
         hash_number(concat_ws(' ', newest_run.at, newest_run.many, ready.counts, held.many, held.since, held.progress,
                               opened.many, opened.far, used.started, used.busy, ended.at)),
         coalesce(changed.audit_id, 0), hash_number(concat_ws(' ', dead_letters_seen.many, dead_letters_seen.died_at)),
         staff.hash, coalesce(newest_event.event_id, 0)
  from unnest(p_tenants) given (tenant_id)
  cross join staff
  left join lateral (
    select run.at,
           (select count(*)
            from (
              select 1 from runs peer
              where peer.tenant_id = given.tenant_id and peer.scheduled_for = run.at limit 1000) peer) as many
    from (
      select run.scheduled_for as at from runs run
      where run.tenant_id = given.tenant_id and run.scheduled_for > bellringer.now() - interval '1 day'
        and run.scheduled_for < bellringer.now() + interval '10 s'
      order by run.scheduled_for desc, run.shard desc limit 1) run) newest_run on true
  left join lateral (
    select string_agg(concat(pool.pool_id, ':', waiting.many, waiting.at), ' ') as counts
    from (select pool_id from pools limit 200) pool
    cross join lateral (
      select count(*) as many, max(queued.available_at) as at
      from (
        select queued.available_at from queue queued
        where queued.pool_id = pool.pool_id and queued.tenant_id = given.tenant_id and queued.worker_id is null
          and queued.blocked = 0 limit 200) queued) waiting) ready on true
  left join lateral (
    select count(*) as many, sum((extract(epoch from claimed.claimed_at) * 1000)::bigint) as since,
           sum(hashtext(claimed.progress::text)) as progress
    from (
      select queued.claimed_at, queued.progress from live
      cross join lateral (
        select * from queue queued
        where queued.worker_id = live.worker_id and queued.tenant_id = given.tenant_id limit 100) queued
      limit 2000) claimed) held on true
  left join lateral (                                    -- a workflow run may progress and end without a worker
    select count(*) as many, sum(hashtext(concat(flow.busy, ' ', flow.unfinished))) as far
    from (
      select flow_of(queued.job_id, queued.scheduled_for, queued.slot) as flow_id from queue queued
      where queued.tenant_id = given.tenant_id and queued.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW
      order by queued.job_id limit 200) queued
    cross join lateral (
      select flow.busy, flow.unfinished from flows flow
      where flow.flow_id = queued.flow_id offset 0) flow) opened on true
  left join lateral (
    select sum(used.started) as started, sum(used.busy_ms) as busy from usage used
    where used.tenant_id = given.tenant_id and used.minute >= bellringer.now() - interval '3 minutes') used on true
  left join lateral (
    select string_agg(attempt.finished_at::text, ' ') as at
    from unnest(array['dead', 'cancelled', 'skipped']::run_state[]) ending (ends_as)
    cross join lateral (
      select attempt.finished_at from attempts attempt
      where attempt.tenant_id = given.tenant_id and attempt.ends_as = ending.ends_as and attempt.ends_as <> 'succeeded'
        and attempt.scheduled_for > bellringer.now() - interval '1 day'
      order by attempt.finished_at desc limit 1) attempt) ended on true
  left join lateral (
    select entry.audit_id from audit entry
    where (entry.tenant_id, entry.audit_id) > (given.tenant_id, 0)
      and (entry.tenant_id, entry.audit_id) < (given.tenant_id + 1, 0)
    order by entry.tenant_id desc, entry.audit_id desc limit 1) changed on true
  left join lateral (
    select count(*) as many, max(dead_letter.died_at) as died_at
    from (
      select dead_letter.died_at from dead_letters dead_letter
      where dead_letter.tenant_id = given.tenant_id
      order by dead_letter.died_at desc limit 1000) dead_letter) dead_letters_seen on true
  left join lateral (
    select event.event_id from events event
    where (event.tenant_id, event.event_id) > (given.tenant_id, 0)
      and (event.tenant_id, event.event_id) < (given.tenant_id + 1, 0)
    order by event.tenant_id desc, event.event_id desc limit 1) newest_event on true;
end $$;

-- The number of jobs of a tenant, of paused, failing and late jobs and of dead letters, each counted up to p_most; and
-- the live workers with their slots.
create or replace function overview_counts(p_tenant integer, p_most integer)
returns table (now timestamptz, jobs bigint, paused bigint, failing bigint, late bigint, dead bigint, live bigint,
               slots bigint, busy bigint)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  select bellringer.now(),
         (select count(*)
          from (select 1 from jobs job where job.tenant_id = p_tenant and job.deleted_at is null limit p_most) job),
         (select count(*)
          from (
            select 1 from jobs job
            where job.tenant_id = p_tenant and job.paused_at is not null and job.deleted_at is null limit p_most) job),
         (select count(*)
          from (
            select 1 from troubles trouble
            where trouble.tenant_id = p_tenant and trouble.kind = 'dead' limit p_most) trouble),
         (select count(*)
          from (
            select 1 from troubles trouble
            where trouble.tenant_id = p_tenant and trouble.kind in ('late', 'missed', 'skipping', 'unknown_task')
            limit p_most) trouble),
         (select count(*)
          from (
            select 1 from dead_letters dead_letter where dead_letter.tenant_id = p_tenant limit p_most) dead_letter),
         counted.live, counted.slots, counted.busy
  from (
    select count(*) as live, coalesce(sum(worker.busy), 0)::bigint as busy,
           coalesce(sum(
                      (select sum(pool_slots.slots::bigint)
                       from jsonb_each_text(worker.pools) pool_slots (pool, slots))),
                    0)::bigint as slots
    from (select * from workers worker where worker.state in ('live', 'draining') limit 500) worker) counted;
end $$;

-- Ready and running runs of a tenant in each pool, and the time since when the oldest ready run waits, found among the
-- first run of each priority. Pools that are not declared are returned only if they have workers or runs of the tenant.
create or replace function waiting_by_pool(p_tenant integer, p_most integer)
returns table (pool text, paused boolean, workers bigint, slots bigint, ready bigint, busy bigint, since timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  with recursive live as materialized (
    select worker.worker_id, worker.pools from workers worker where worker.state in ('live', 'draining') limit 500),
  heads (pool_id, priority, at, n) as (
    select pool.pool_id, run.priority, run.available_at, 1 from pools pool
    cross join lateral (
      select run.priority, run.available_at from queue run
      where run.pool_id = pool.pool_id and run.tenant_id = p_tenant and run.worker_id is null and run.blocked = 0
      order by run.priority desc, run.available_at limit 1) run
    union all
    select heads.pool_id, run.priority, run.available_at, heads.n + 1 from heads
    cross join lateral (
      select run.priority, run.available_at from queue run
      where run.pool_id = heads.pool_id and run.tenant_id = p_tenant and run.worker_id is null and run.blocked = 0
        and run.priority < heads.priority
      order by run.priority desc, run.available_at limit 1) run
    where heads.n < 50),
  held as materialized (
    select run.pool_id, count(*) as busy from live
    cross join lateral (
      select run.pool_id from queue run
      where run.worker_id = live.worker_id and run.tenant_id = p_tenant limit p_most) run
    group by run.pool_id)
  select pool.name, pool.paused_at is not null, capacity.workers, capacity.slots, counted.ready, coalesce(held.busy, 0),
         oldest.since
  from pools pool
  cross join lateral (
    select count(*) as workers, coalesce(sum((live.pools ->> pool.name)::bigint), 0)::bigint as slots from live
    where live.pools ? pool.name) capacity
  cross join lateral (
    select count(*) as ready
    from (
      select 1 from queue run
      where run.pool_id = pool.pool_id and run.tenant_id = p_tenant and run.worker_id is null and run.blocked = 0
        and run.available_at <= bellringer.now() limit p_most) run) counted
  left join held on held.pool_id = pool.pool_id
  left join lateral (
    select min(heads.at) as since from heads
    where heads.pool_id = pool.pool_id and heads.at <= bellringer.now()) oldest on true
  where pool.declared or capacity.workers > 0 or counted.ready > 0 or held.busy > 0
  order by pool.name limit 100;
end $$;
