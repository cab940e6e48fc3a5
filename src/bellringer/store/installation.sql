-- What all tenants share: tasks, pools and shards. Every read goes by a key or stops at a limit.

-- name: tasks
-- Only what a worker has told of: a name that a job alone has is its tenant's.
select t.name, t.doc, t.defaults,
       (select count(*) from workers w where w.state = 'live' and t.task_id = any (w.task_ids)) as workers
from tasks t where t.schema <> '{}' and t.name > $1 order by t.name limit $2

-- name: task
select t.name, t.doc, t.defaults, t.schema,
       (select count(*) from workers w where w.state = 'live' and t.task_id = any (w.task_ids)) as workers,
       array(select row(w.worker_id, w.name) from workers w where w.state = 'live' and t.task_id = any (w.task_ids)
             order by w.worker_id limit 50) as who
from tasks t where t.schema <> '{}' and t.name = $1

-- name: pools
-- Those that somebody has described or works for; $3: all, for who may see the names that tenants have made up. Ready runs are
-- counted up to 10,000.
with live as materialized (select w.worker_id, w.pools from workers w where w.state in ('live', 'draining')),
here as materialized (
  select p.*, (select count(*) from live l where l.pools ? p.name) as workers,
         (select coalesce(sum((l.pools ->> p.name)::int), 0) from live l where l.pools ? p.name) as slots
  from pools p where ($1::text is null or p.name = $1) and p.name > $2)
select h.name, h.description, h.paused_at, h.paused_by, h.paused_reason, h.concurrency, h.rate, h.timeout, h.created_at, h.workers, h.slots,
       (select count(*) from queue q where q.pool_id = h.pool_id and q.worker_id = any (array(select l.worker_id from live l))) as busy,
       (select count(*) from (
          select 1 from queue q where q.pool_id = h.pool_id and q.worker_id is null and q.blocked = 0
            and q.available_at <= bellringer.now() limit 10000) r)
       + (select count(*) from (
          select 1 from queue q where q.pool_id = h.pool_id and q.worker_id is null and q.blocked = 32
            and q.available_at <= bellringer.now() limit 10000) r) as ready,
       extract(epoch from bellringer.now() - o.at)::float8 as oldest
from here h cross join lateral (select bellringer.oldest_waiting(h.pool_id) as at) o
where $3 or h.declared or h.workers > 0
order by h.name limit $4

-- name: keep_pool
-- A pause that holds already keeps when it began and by whom.
insert into pools as p (name, declared, description, paused_at, paused_by, paused_reason, concurrency, rate, timeout)
values ($1, true, $2, case when $3 then bellringer.now() end, case when $3 then $4 end, case when $3 then $5 end, $6, $7, $8)
on conflict (name) do update set declared = true, description = $2,
  paused_at = case when $3 then coalesce(p.paused_at, bellringer.now()) end,
  paused_by = case when $3 then coalesce(p.paused_by, $4) end,
  paused_reason = case when $3 then $5 end, concurrency = $6, rate = $7, timeout = $8

-- name: signals
select pool, ready, sent, busy, oldest, workers, slots, concurrency from bellringer.signals()

-- name: timeouts
select name, timeout from pools where name = any ($1::text[]) and timeout is not null

-- name: shards
select l.shard, case when l.expires_at > clock_timestamp() then l.holder end as holder,
       case when l.expires_at > clock_timestamp() then n.name end as node, l.token, l.region,
       c.next_at, t.due_at as timer_at,
       greatest(coalesce(extract(epoch from bellringer.now() - least(c.next_at, t.due_at)), 0), 0)::float8 as late
from leases l left join nodes n on n.node_id = l.holder
left join lateral (select next_at from cohorts where shard = l.shard order by next_at limit 1) c on true
left join lateral (select due_at from timers where shard = l.shard order by due_at limit 1) t on true
order by l.shard
