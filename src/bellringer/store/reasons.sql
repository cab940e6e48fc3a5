-- What reasons are found from. Every read goes by a key or stops at a limit.

-- name: around
-- A job, and one run of it where $2 is given, with all that it waits for.
with k as (select $1::uuid as job_id, $2::timestamptz as scheduled_for, $3::bigint as slot),
here as materialized (
  select k.*, q.job_id is not null and q.worker_id is null as waits, m.job_id is not null as in_timer, q.worker_id,
         coalesce(q.attempt_floor, m.attempt_floor, 0) as attempt_floor, coalesce(q.blocked, 0) as blocked,
         coalesce(q.task_id, case when m.job_id is not null and m.spec is not null then m.task_id end, j.task_id, m.task_id) as task_id,
         coalesce(q.pool_id, m.pool_id, j.pool_id) as pool_id, coalesce(q.shard, m.shard, j.shard) as shard,
         q.tenant_id, coalesce(q.priority, m.priority) as priority, q.available_at, q.key_id, q.cap, q.sent_at, j.tags, j.overlap
  from k
  left join jobs j on j.job_id = k.job_id and j.tenant_id = $4 and j.deleted_at is null
  left join queue q on q.job_id = k.job_id and q.scheduled_for = k.scheduled_for and q.slot = k.slot and q.tenant_id = $4
  left join timers m on m.job_id = k.job_id and m.scheduled_for = k.scheduled_for and m.slot = k.slot and m.tenant_id = $4),
live as materialized (
  select worker_id, name, pools, task_ids, dispatch from workers
  where state = 'live' and seen_at > clock_timestamp() - $5::interval order by worker_id limit 500)
select bellringer.now() as now, h.in_timer, h.attempt_floor, h.blocked, h.shard, t.name as task, p.name as pool,
       g.concurrency as bound_concurrency, coalesce(g.under_way, 0) as bound_under_way, g.rate as bound_rate, g.credit as bound_credit,
       p.paused_at as pool_paused_at, p.paused_by as pool_paused_by, p.paused_reason as pool_paused_reason,
       w.name as worker, w.state as worker_state, extract(epoch from clock_timestamp() - w.seen_at)::float8 as worker_age,
       bellringer.scheduler_of(h.shard) as scheduler, h.sent_at, bellringer.waited_for() as waits_for,
       (select coalesce(jsonb_agg(jsonb_build_object('name', v.name, 'pools', v.pools, 'dispatch', v.dispatch,
           'knows', coalesce(h.task_id = any (v.task_ids), false))), '[]')
         from live v) as workers,
       array(select distinct x.name from live v cross join unnest(v.task_ids) i (task_id) join tasks x on x.task_id = i.task_id
             order by 1 limit 2000) as tasks,
       bellringer.places_taken(h.pool_id, array(
         select v.worker_id from live v where v.pools ? p.name and h.task_id = any (v.task_ids))) as taken,
       case when h.waits then (
         select count(*) from (                 -- those of its tenant that a claim takes first; other tenants have turns of their own
           select available_at from (
             (select a.available_at from queue a
              where a.pool_id = h.pool_id and a.tenant_id = h.tenant_id and a.worker_id is null and a.blocked = 0 and a.priority > h.priority
              order by a.priority desc, a.available_at limit $6)
             union all
             (select a.available_at from queue a
              where a.pool_id = h.pool_id and a.tenant_id = h.tenant_id and a.worker_id is null and a.blocked = 0 and a.priority = h.priority
                and a.available_at < h.available_at
              order by a.available_at limit $6)) both_lanes
           where available_at <= bellringer.now() limit $6) s)
       else 0 end as ahead,
       l.key as limit_key, l.most as limit_most, h.cap as limit_cap, coalesce(h.priority, 0) < 0 as behind,
       array(select row(u.job_id, u.scheduled_for, u.slot) from queue u where u.key_id = h.key_id and u.worker_id is not null
             order by u.job_id, u.scheduled_for limit $6) as under_way,
       f.name as freeze, f.to_at as freeze_until, f.reason as freeze_why,
       o.suspended_at, case when h.waits then o.cap end as cap,
       case when h.waits and o.cap is not null then (
         select count(*) from workers v cross join lateral (
           select 1 from queue u where u.worker_id = v.worker_id and u.tenant_id = $4 limit o.cap) r
         where v.state in ('live', 'draining') or v.seen_at > clock_timestamp() - interval '1 hour')
       else 0 end as in_flight,
       b.scheduled_for as before_at, b.slot as before_slot, s.scheduled_for as successor_at, e.error,
       exists (select 1 from dead_letters d where d.job_id = h.job_id and d.scheduled_for = h.scheduled_for and d.slot = h.slot) as dead_letter
from here h
left join tasks t on t.task_id = h.task_id
left join pools p on p.pool_id = h.pool_id
left join lateral bellringer.bounds_of(h.pool_id) g on true
left join workers w on w.worker_id = h.worker_id
left join (select suspended_at, bellringer.cap_of(quotas) as cap from tenants where tenant_id = $4) o on true
left join limits l on l.key_id = h.key_id
left join lateral (
  select f.name, f.to_at, f.reason from freezes f
  where f.tenant_id = $4 and f.from_at <= bellringer.now() and f.to_at > bellringer.now() and (f.tags = '{}' or f.tags && h.tags)
  order by f.to_at desc limit 1) f on true
left join lateral (
  select o.scheduled_for, o.slot from queue o
  where h.blocked & 2 = 2 and o.job_id = h.job_id and (o.scheduled_for, o.slot) < (h.scheduled_for, h.slot)
  order by o.scheduled_for, o.slot limit 1) b on true
left join lateral (
  select n.scheduled_for from runs n
  where h.overlap = 'replace' and n.job_id = h.job_id and n.scheduled_for > h.scheduled_for and n.scheduled_for <= bellringer.now()
    and n.slot = 0 and n.cause = 'schedule' and n.born_as <> 'skipped'
  order by n.scheduled_for limit 1) s on true
left join lateral (
  select a.error from attempts a
  where a.job_id = h.job_id and a.scheduled_for = h.scheduled_for and a.slot = h.slot
  order by a.attempt desc limit 1) e on true

-- name: then
-- The revision in force at an instant (one that begins at the instant comes too late for it), the gap or the catch-up that
-- covers it, the freeze that decides there, the first run of the time from there, a backfill's run of the very instant,
-- and whether its day is still kept.
select r.definition, b.backfill_id, b.state as backfill_state, b.made, b.total, g.from_at, g.to_at, g.count, g.reason, g.into_at, n.scheduled_for as near_at, n.slot as near_slot,
       f.name as freeze, f.to_at as freeze_until, f.reason as freeze_why, f.policy as freeze_policy,
       (select max(o.slot) from runs o where o.job_id = $1 and o.tenant_id + 0 = $3 and o.scheduled_for = $2 and o.slot > $5) as backfill_slot,
       bellringer.day_of($2::timestamptz) < bellringer.day_of(c.made_at)
         or bellringer.day_of($2::timestamptz) > bellringer.day_of(bellringer.now())
         or to_regclass('runs_' || to_char(bellringer.day_of($2::timestamptz), 'YYYYMMDD')) is not null as kept
from cluster c
left join lateral (
  select o.definition from revisions_of($1) o where o.effective_at < $2 order by o.revision desc limit 1) r on true
left join lateral (
  select * from (select * from gaps where job_id = $1 and from_at <= $2 order by from_at desc limit 100) o
  where o.to_at > $2 limit 1) g on true
left join lateral (
  select backfill_id, state, made, total from backfills
  where job_id = $1 and cause = 'catchup' and state in ('running', 'paused') and from_at <= $2 and to_at > $2
  order by backfill_id limit 1) b on true
left join lateral (
  select f.name, f.to_at, f.reason, f.policy from freezes f join jobs j on j.job_id = $1
  where f.tenant_id = $3 and f.from_at <= $2 and f.to_at > $2 and (f.tags = '{}' or f.tags && j.tags)
  order by array_position(array['skip', 'collapse', 'defer'], f.policy), f.to_at desc limit 1) f on true
left join lateral (
  select scheduled_for, slot from runs
  where job_id = $1 and tenant_id + 0 = $3 and scheduled_for >= $2 and scheduled_for < $2 + $4::interval
  order by scheduled_for, slot limit 1) n on true
