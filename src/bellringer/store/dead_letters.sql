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

-- name: discarded
-- Dead letters that were discarded after $2, the latest first, before the position ($5, $6, $7, $8). The second part is
-- for those of an operation, which have an index of their own.
select discarded.job_id, discarded.scheduled_for, discarded.slot, job.name as job, task.name as task,
       discarded.attempt, discarded.died_at, left(discarded.reason, 1000) as reason,
       case when discarded.error is null or octet_length(discarded.error::text) <= 2048 then discarded.error
            else jsonb_strip_nulls(jsonb_build_object('type', left(discarded.error ->> 'type', 200), 'message',
                                                      left(discarded.error ->> 'message', 300), 'reason',
                                                      left(discarded.error ->> 'reason', 300), 'cut',
                                                      true)) end as error,
       discarded.fingerprint, discarded.discarded_at, discarded.discarded_by, discarded.operation_id
from (
  (select * from discarded_dead_letters discarded
   where $4::bigint is null and discarded.tenant_id = $1 and discarded.discarded_at > $2
     and discarded.discarded_at <= coalesce($5::timestamptz, 'infinity')
     and ($3::text is null or discarded.fingerprint = $3)
     and ($5 is null or (discarded.discarded_at, discarded.job_id, discarded.scheduled_for, discarded.slot)
                        < ($5, $6::uuid, $7::timestamptz, $8::bigint))
   order by discarded.discarded_at desc, discarded.job_id desc, discarded.scheduled_for desc, discarded.slot desc
   limit $9)
  union all
  (select * from discarded_dead_letters discarded
   where discarded.tenant_id = $1 and discarded.operation_id = $4 and discarded.discarded_at > $2
     and ($3::text is null or discarded.fingerprint = $3)
     and ($5 is null or (discarded.discarded_at, discarded.job_id, discarded.scheduled_for, discarded.slot)
                        < ($5, $6::uuid, $7::timestamptz, $8::bigint))
   order by discarded.discarded_at desc, discarded.job_id desc, discarded.scheduled_for desc, discarded.slot desc
   limit $9)) discarded
join tasks task on task.task_id = discarded.task_id
left join lateral (
  select job.name from jobs job where job.job_id = discarded.job_id and job.tenant_id + 0 = $1 offset 0) job on true
order by discarded.discarded_at desc, discarded.job_id desc, discarded.scheduled_for desc, discarded.slot desc

-- name: discarded_keys
(select discarded.job_id, discarded.scheduled_for, discarded.slot from discarded_dead_letters discarded
 where $4::bigint is null and discarded.tenant_id = $1 and discarded.discarded_at > $2
   and ($3::text is null or discarded.fingerprint = $3)
 limit $5)
union all
(select discarded.job_id, discarded.scheduled_for, discarded.slot from discarded_dead_letters discarded
 where discarded.tenant_id = $1 and discarded.operation_id = $4 and discarded.discarded_at > $2
   and ($3::text is null or discarded.fingerprint = $3)
 limit $5)
