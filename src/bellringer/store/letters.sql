-- Dead letters: lists and groups.

-- name: page
select job_id, scheduled_for, slot, died_at, scanned, stop_died, stop_job, stop_at, stop_slot
from bellringer.list_letters($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: items
-- Dead letters by their keys, in the order given; an error beyond 2 KiB is cut to its words.
select d.job_id, d.scheduled_for, d.slot, j.name as job, t.name as task, d.attempt, d.died_at, left(d.reason, 1000) as reason,
       case when d.error is null or octet_length(d.error::text) <= 2048 then d.error
            else jsonb_strip_nulls(jsonb_build_object('type', left(d.error ->> 'type', 200), 'message', left(d.error ->> 'message', 300),
                                                      'reason', left(d.error ->> 'reason', 300), 'cut', true)) end as error, d.fingerprint
from unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) with ordinality k (job_id, scheduled_for, slot, nth)
cross join lateral (select * from dead_letters d where d.job_id = k.job_id and d.scheduled_for = k.scheduled_for and d.slot = k.slot
                      and d.tenant_id + 0 = $1 offset 0) d
join tasks t on t.task_id = d.task_id
left join lateral (select j.name from jobs j where j.job_id = d.job_id and j.tenant_id + 0 = $1 offset 0) j on true
order by k.nth

-- name: groups
select fingerprint, count, first_died, last_died, reason, error, job_ids, ats, slots from bellringer.letter_groups($1, $2, $3, $4)

-- name: job_names
select job_id, name from jobs where job_id = any ($2::uuid[]) and tenant_id + 0 = $1
