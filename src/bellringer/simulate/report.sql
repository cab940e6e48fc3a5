-- What became of the runs of a simulated span.

-- name: sums
-- A run's last attempt that ended it counts: a redrive may follow a death.
select j.name as job, count(r.job_id) as runs,
       count(*) filter (where e.ends_as = 'succeeded') as ran,
       count(*) filter (where e.ends_as = 'dead') as dead,
       count(*) filter (where r.cause = 'catchup') as caught_up,
       count(*) filter (where r.job_id is not null and e.ends_as is null and r.initial_state <> 'skipped') as unfinished
from jobs j
left join runs r on r.job_id = j.job_id and r.scheduled_for >= $2 and r.scheduled_for < $3
  and r.cause in ('schedule', 'catchup')
left join lateral (
  select a.ends_as from attempts a
  where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot and a.ends_as is not null
  order by a.attempt desc limit 1) e on true
where j.tenant_id = $1
group by j.job_id, j.name order by j.name

-- name: skipped
-- Runs that ended without a word of a worker's: by a freeze, at their birth; by overlap, when their time came.
select j.name as job, coalesce(e.reason, r.reason, 'skipped') as reason, count(*) as count
from jobs j
join runs r on r.job_id = j.job_id and r.scheduled_for >= $2 and r.scheduled_for < $3
  and r.cause in ('schedule', 'catchup')
left join lateral (
  select a.ends_as, coalesce(a.error ->> 'reason', a.ends_as::text) as reason from attempts a
  where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot and a.ends_as is not null
  order by a.attempt desc limit 1) e on true
where j.tenant_id = $1 and (r.initial_state = 'skipped' or e.ends_as in ('skipped', 'cancelled'))
group by 1, 2 order by 1, 2
