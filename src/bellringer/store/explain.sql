-- Facts for explanations. Every read uses a key or stops at a limit.

-- name: facts
-- A job and, with $2, one of its runs, with everything that the run waits for.
with target as (select $1::uuid as job_id, $2::timestamptz as scheduled_for, $3::bigint as slot),
here as materialized (
  select target.*, queued.job_id is not null and queued.worker_id is null as waits,
         timer.job_id is not null as in_timer, queued.worker_id, queued.claimed_at,
         coalesce(queued.attempt_floor, timer.attempt_floor, 0) as attempt_floor,
         coalesce(queued.blocked, 0) as blocked,
         coalesce(queued.task_id, case when timer.job_id is not null and timer.spec is not null then timer.task_id end,
                  job.task_id, timer.task_id) as task_id,
         coalesce(queued.pool_id, timer.pool_id, job.pool_id) as pool_id,
         coalesce(queued.shard, timer.shard, job.shard) as shard,
         queued.job_id is null and timer.job_id is null as is_over, queued.tenant_id,
         coalesce(queued.priority, timer.priority) as priority, queued.available_at, queued.key_id, queued.cap,
         queued.sent_at, coalesce(queued.expires_at, timer.expires_at) as expires_at, job.tags, job.overlap
  from target
  left join jobs job on job.job_id = target.job_id and job.tenant_id = $4 and job.deleted_at is null
  left join queue queued on queued.job_id = target.job_id and queued.scheduled_for = target.scheduled_for
    and queued.slot = target.slot and queued.tenant_id = $4
  left join timers timer on timer.job_id = target.job_id and timer.scheduled_for = target.scheduled_for
    and timer.slot = target.slot and timer.tenant_id = $4),
live as materialized (
  select worker_id, name, pools, task_ids, dispatch from workers
  where state = 'live' and seen_at > clock_timestamp() - $5::interval
  order by worker_id limit 500)
select bellringer.now() as now, here.in_timer, here.attempt_floor, here.blocked, here.shard, task.name as task,
       pool.name as pool, pool_limit.concurrency as bound_concurrency,
       coalesce(pool_limit.under_way, 0) as bound_under_way, pool_limit.rate as bound_rate,
       pool_limit.credit as bound_credit, pool.paused_at as pool_paused_at, pool.paused_by as pool_paused_by,
       pool.paused_reason as pool_paused_reason, task_pause.paused_at as task_paused_at,
       task_pause.paused_by as task_paused_by, task_pause.reason as task_paused_reason,
       task_pause.until_at as task_paused_until, task_pause.release_rate as task_release_rate,
       'worker-' || worker.worker_id as worker, worker.state as worker_state,
       extract(epoch from clock_timestamp() - worker.seen_at)::float8 as worker_age,
       coalesce(here.worker_id is not null and here.claimed_at < bellringer.now() - interval '15 s'
                  and coalesce(worker.confirmed_at, '-infinity') < greatest(here.claimed_at,
                      bellringer.now() - interval '30 s'),
                false) as unconfirmed,
       bellringer.scheduler_of(here.shard) as scheduler, here.sent_at, here.expires_at,
       bellringer.component_waited_for() as waits_for,
       (select coalesce(jsonb_agg(jsonb_build_object('name', 'worker-' || live.worker_id, 'pools', live.pools,
                                                     'dispatch', live.dispatch, 'knows',
                                                     coalesce(here.task_id = any (live.task_ids), false))),
                        '[]')
        from live) as workers,
       array(
         select distinct known_task.name from live
         cross join unnest(live.task_ids) given (task_id)
         join tasks known_task on known_task.task_id = given.task_id
         order by 1 limit 2000) as tasks,
       bellringer.slots_taken(here.pool_id,
                              array(
                                select live.worker_id from live
                                where live.pools ? pool.name and here.task_id = any (live.task_ids))) as taken,
       case when here.waits then (
              -- those of its tenant that a claim takes first; other tenants have turns of their own
              select count(*)
              from (
                select available_at
                from (
                  (select queued.available_at from queue queued
                   where queued.pool_id = here.pool_id and queued.tenant_id = here.tenant_id
                     and queued.worker_id is null and queued.blocked = 0 and queued.priority > here.priority
                   order by queued.priority desc, queued.available_at limit $6)
                  union all
                  (select queued.available_at from queue queued
                   where queued.pool_id = here.pool_id and queued.tenant_id = here.tenant_id
                     and queued.worker_id is null and queued.blocked = 0 and queued.priority = here.priority
                     and queued.available_at < here.available_at
                   order by queued.available_at limit $6)) both_lanes
                where available_at <= bellringer.now() limit $6) earlier)
            else 0 end as ahead,
       job_limit.key as limit_key, job_limit.most as limit_most, here.cap as limit_cap,
       coalesce(here.priority, 0) < 0 as background,
       array(
         select row(queued.job_id, queued.scheduled_for, queued.slot) from queue queued
         where queued.key_id = here.key_id and queued.worker_id is not null
         order by queued.job_id, queued.scheduled_for limit $6) as under_way,
       active.name as freeze, active.to_at as freeze_until, active.reason as freeze_why, tenant.suspended_at,
       case when here.waits then tenant.cap end as cap,
       case when here.waits and tenant.cap is not null then (
              select count(*) from workers worker
              cross join lateral (
                select 1 from queue queued
                where queued.worker_id = worker.worker_id and queued.tenant_id = $4 limit tenant.cap) queued
              where worker.state in ('live', 'draining') or worker.seen_at > clock_timestamp() - interval '1 hour')
            else 0 end as in_flight,
       predecessor.scheduled_for as before_at, predecessor.slot as before_slot,
       coalesce(predecessor.waits, false) as predecessor_waits, successor.scheduled_for as successor_at,
       last_attempt.error,
       exists (
         select 1 from dead_letters dead_letter
         where dead_letter.job_id = here.job_id and dead_letter.scheduled_for = here.scheduled_for
           and dead_letter.slot = here.slot) as dead_letter
from here
left join tasks task on task.task_id = here.task_id
left join pools pool on pool.pool_id = here.pool_id
left join task_pauses task_pause on task_pause.tenant_id = $4 and task_pause.task_id = here.task_id
  and (task_pause.until_at is null or task_pause.until_at > bellringer.now())
  and (task_pause.resumed_at is null or here.blocked & TASK_PAUSED = TASK_PAUSED)
left join lateral bellringer.pool_limits(here.pool_id) pool_limit on true
left join workers worker on worker.worker_id = here.worker_id
left join (select suspended_at, bellringer.tenant_cap(quotas) as cap from tenants where tenant_id = $4) tenant on true
left join limits job_limit on job_limit.key_id = here.key_id
left join lateral (
  select active.name, active.to_at, active.reason from freezes active
  where active.tenant_id = $4 and active.from_at <= bellringer.now() and active.to_at > bellringer.now()
    and (active.tags = '{}' or active.tags && here.tags)
  order by active.to_at desc limit 1) active on true
left join lateral (
  select queued.scheduled_for, queued.slot,
         queued.worker_id is null and queued.attempt = 0 and queued.blocked & OPEN_WORKFLOW = 0 as waits
  from queue queued
  where (here.blocked & PREDECESSOR = PREDECESSOR or here.is_over) and queued.job_id = here.job_id
    and (queued.scheduled_for, queued.slot) < (here.scheduled_for, here.slot)
  order by queued.scheduled_for, queued.slot limit 1) predecessor on true
left join lateral (
  select run.scheduled_for from runs run
  where here.overlap = 'replace' and run.job_id = here.job_id and run.scheduled_for > here.scheduled_for
    and run.scheduled_for <= bellringer.now() and run.slot = 0 and run.cause = 'schedule'
    and run.initial_state <> 'skipped'
  order by run.scheduled_for limit 1) successor on true
left join lateral (
  select attempt.error from attempts attempt
  where attempt.job_id = here.job_id and attempt.scheduled_for = here.scheduled_for and attempt.slot = here.slot
  order by attempt.attempt desc limit 1) last_attempt on true

-- name: last_outage
-- The newest gap of a job, if no scheduler fired it in time and it ended less than $2 ago.
select gap.from_at, gap.to_at, gap.count, gap.reason, gap.into_at
from (select * from gaps where job_id = $1 order by from_at desc limit 1) gap
where gap.reason = 'misfire' and gap.to_at > bellringer.now() - $2::interval

-- name: facts_at
-- The revision in force before an instant, the gap or catch-up that covers it, the freeze that applies, the first run
-- from there, a backfill's run of the instant, and whether history of its day still exists.
select revision.definition, backfill.backfill_id, backfill.state as backfill_state, backfill.made, backfill.total,
       gap.from_at, gap.to_at, gap.count, gap.reason, gap.into_at, nearest.scheduled_for as near_at,
       nearest.slot as near_slot, active.name as freeze, active.to_at as freeze_until, active.reason as freeze_why,
       active.policy as freeze_policy,
       (select max(run.slot) from runs run
        where run.job_id = $1 and run.tenant_id + 0 = $3 and run.scheduled_for = $2 and run.slot > $5
          and run.slot < FOLLOWER_SLOT_BASE) as backfill_slot,
       bellringer.day_of($2::timestamptz) < bellringer.day_of(cluster.made_at)
         or bellringer.day_of($2::timestamptz) > bellringer.day_of(bellringer.now())
         or to_regclass('runs_' || to_char(bellringer.day_of($2::timestamptz), 'YYYYMMDD')) is not null as kept
from cluster
left join lateral (
  select revision.definition from revisions_of($1) revision
  where revision.effective_at < $2
  order by revision.revision desc limit 1) revision on true
left join lateral (
  select * from (select * from gaps where job_id = $1 and from_at <= $2 order by from_at desc limit 100) gap
  where gap.to_at > $2 limit 1) gap on true
left join lateral (
  select backfill_id, state, made, total from backfills
  where job_id = $1 and cause = 'catchup' and state in ('running', 'paused') and from_at <= $2 and to_at > $2
  order by backfill_id limit 1) backfill on true
left join lateral (
  select active.name, active.to_at, active.reason, active.policy from freezes active
  join jobs job on job.job_id = $1
  where active.tenant_id = $3 and active.from_at <= $2 and active.to_at > $2
    and (active.tags = '{}' or active.tags && job.tags)
  order by array_position(array['skip', 'collapse', 'defer'], active.policy), active.to_at desc limit 1) active on true
left join lateral (
  select scheduled_for, slot from runs
  where job_id = $1 and tenant_id + 0 = $3 and scheduled_for >= $2 and scheduled_for < $2 + $4::interval
  order by scheduled_for, slot limit 1) nearest on true

-- name: restores
-- The restores that may have lost executions of a run: it was unfinished at the recovery point, or due after it.
select restore.recovered_to, restore.finished_at
from runs run
join restores restore on run.scheduled_for < restore.finished_at
  and (run.fired_at <= restore.recovered_to or run.scheduled_for >= restore.recovered_to)
where run.job_id = $1 and run.scheduled_for = $2 and run.slot = $3
  and not exists (
    select 1 from attempts attempt
    where attempt.job_id = run.job_id and attempt.scheduled_for = run.scheduled_for and attempt.slot = run.slot
      and attempt.ends_as is not null and attempt.finished_at <= restore.recovered_to)
order by restore.finished_at desc limit 1
