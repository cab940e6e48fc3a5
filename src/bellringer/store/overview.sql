-- How it goes for a tenant: bounded counts, and what the last runs did.

-- name: sums
-- Each counted up to $2.
select now, jobs, paused, failing, late, dead, live, slots, busy from bellringer.sums_of($1, $2)

-- name: scheduler
-- By the real clock, as leases go. Asked by who stands outside of the walls; how late the shards are is told without whose jobs they hold.
select (select count(*) from nodes where seen_at > clock_timestamp() - $1::interval) as nodes, count(*) as total,
       count(*) filter (where l.expires_at > clock_timestamp() and l.holder is not null) as held,
       bellringer.waited_for() as waits_for,
       coalesce(greatest(max(extract(epoch from bellringer.now() - least(c.next_at, t.due_at))), 0), 0)::float8 as firing
from leases l
left join lateral (select next_at from cohorts where shard = l.shard order by next_at limit 1) c on true
left join lateral (select due_at from timers where shard = l.shard order by due_at limit 1) t on true

-- name: troubles
-- The latest of each kind.
select t.job_id, t.kind, t.since, t.scheduled_for, j.name as job
from unnest(array['dead', 'missed', 'late']) k (kind)
cross join lateral (
  select * from troubles t where t.tenant_id = $1 and t.kind = k.kind order by t.since desc limit $2) t
cross join lateral (select name from jobs j where j.job_id = t.job_id and j.deleted_at is null offset 0) j

-- name: pools
select pool, paused, workers, slots, ready, busy, since from bellringer.waiting_of($1, $2)

-- name: started
-- By steps of so many seconds.
select to_timestamp(floor(extract(epoch from minute) / $3::integer) * $3::integer) as at, sum(started)::bigint as started, sum(late)::bigint as late
from usage where tenant_id = $1 and minute >= $2 group by 1

-- name: died
-- The newest $4.
select to_timestamp(floor(extract(epoch from d.at) / $3::integer) * $3::integer) as at, count(*) as died
from bellringer.deaths_of($1, $2, $4) d (at) group by 1

-- name: tries
select job_id, scheduled_for, slot, task, jitter_by, attempt, outcome, ends_as, started_at, finished_at, is_node
from bellringer.tries_of($1, $2, $3, $4)

-- name: some_jobs
-- The newest.
select job_id from jobs where tenant_id = $1 and deleted_at is null order by job_id desc limit $2
