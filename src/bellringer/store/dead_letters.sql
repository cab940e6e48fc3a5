-- Dead letters: lists and groups.

-- name: page
select job_id, scheduled_for, slot, died_at, scanned, stop_died, stop_job, stop_at, stop_slot
from bellringer.list_dead_letters($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: items
-- Dead letters by their keys, in the order given; an error beyond 2 KiB is shortened.
select dead_letter.job_id, dead_letter.scheduled_for, dead_letter.slot, job.name as job, task.name as task,
       dead_letter.attempt, dead_letter.died_at, left(dead_letter.reason, 1000) as reason,
       case when dead_letter.error is null or octet_length(dead_letter.error::text) <= 2048 then dead_letter.error
            else jsonb_strip_nulls(jsonb_build_object('type', left(dead_letter.error ->> 'type', 200), 'message',
                                                      left(dead_letter.error ->> 'message', 300), 'reason',
                                                      left(dead_letter.error ->> 'reason', 300), 'cut',
                                                      true)) end as error,
       dead_letter.fingerprint
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[])
with ordinality key (job_id, scheduled_for, slot, nth)
cross join lateral (
  select * from dead_letters dead_letter
  where dead_letter.job_id = key.job_id and dead_letter.scheduled_for = key.scheduled_for
    and dead_letter.slot = key.slot and dead_letter.tenant_id + 0 = $1 offset 0) dead_letter
join tasks task on task.task_id = dead_letter.task_id
left join lateral (
  select job.name from jobs job where job.job_id = dead_letter.job_id and job.tenant_id + 0 = $1 offset 0) job on true
order by key.nth

-- name: groups
select fingerprint, count, first_died, last_died, reason, error, job_ids, ats, slots
from bellringer.group_dead_letters($1, $2, $3, $4)

-- name: job_names
select job_id, name from jobs where job_id = any ($2::uuid[]) and tenant_id + 0 = $1
