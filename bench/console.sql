-- name: jobs
-- Copies of those that were made through the API, under names and ids of their own.
with known as (select row_number() over (order by job_id) - 1 as place, count(*) over () as many, j.* from jobs j where name like 'model %')
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, schedule_ids, pool_id, priority, misfire, overlap, owner, tags,
                  created_at, updated_at, routed)
select u.job_id, k.tenant_id, u.shard, 'job ' || ($3::int + ord), k.task_id, k.spec, k.schedules, k.schedule_ids, k.pool_id, k.priority, k.misfire,
       k.overlap, k.owner, k.tags, k.created_at, k.updated_at, k.routed
from unnest($1::uuid[], $2::smallint[]) with ordinality u (job_id, shard, ord) join known k on k.place = ord % k.many

-- name: states
-- One of a thousand rests; one of a hundred fails, and one is late.
update jobs set paused_at = bellringer.now(), paused_by = 'bench' where name like 'job %000';
insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)
select job_id, tenant_id, case when name like '%5' then 'dead' else 'late' end, bellringer.now(), bellringer.now(), bellringer.now()
from jobs where name like 'job %25' or name like 'job %50'

-- name: members
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap, active_since)
select shard, schedule_ids[1], job_id, tenant_id, task_id, revision, pool_id, priority, 0, 1, bellringer.now() - interval '31 days'
from jobs where paused_at is null
on conflict do nothing

-- name: cohorts
insert into cohorts (shard, schedule_id, next_at)
select distinct m.shard, m.schedule_id, c.next_at from members m join (select schedule_id, min(next_at) as next_at from cohorts group by 1) c using (schedule_id)
on conflict do nothing

-- name: places
-- Where runs find their jobs by a number.
create table bench_places as select (row_number() over (order by job_id) - 1)::int as place, job_id, shard, task_id, pool_id, priority, revision, tenant_id
from jobs;
alter table bench_places add primary key (place);
analyze bench_places

-- name: runs
-- Runs $1 to $2 of $3, evenly over the 30 days before $4. Every fiftieth is of one job; the others go round.
with numbered as (
  select n, case when n % 50 = 0 then 0 else (n::bigint * 7919 % (select count(*) from bench_places))::int end as place,
         $4::timestamptz - interval '30 days' + interval '30 days' * (n::float8 / $3) as at
  from generate_series($1::bigint, $2::bigint - 1) n)
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, initial_state)
select p.job_id, n.at, 0, n.at, 1, p.tenant_id, p.task_id, p.revision, p.shard, p.pool_id, p.priority, 'schedule', 'queued'
from numbered n join bench_places p using (place)

-- name: attempts
-- What became of the runs of a range: one attempt each, and one of 200 died of it. The newest thousand wait.
insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, outcome, ends_as, error, result)
select job_id, scheduled_for, slot, 1, scheduled_for + interval '200 ms', scheduled_for + interval '200 ms' + took * interval '1 ms', tenant_id,
       case when died then 'failed' else 'ok' end::outcome, case when died then 'dead' else 'succeeded' end::run_state,
       case when died then jsonb_build_object('type', 'RuntimeError', 'message', 'shelf ' || took % 20 || ' is empty') end,
       case when not died then '{"rows": 12}'::jsonb end
from (select r.*, abs(hashint8((extract(epoch from scheduled_for) * 1000000)::bigint)) % 3000 as took,
             abs(hashint8((extract(epoch from scheduled_for) * 1000000)::bigint)) / 3000 % 200 = 0 as died
      from runs r where scheduled_for >= $1 and scheduled_for < $2 and scheduled_for < $3) o

-- name: letters
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error, fingerprint)
select a.job_id, a.scheduled_for, a.slot, a.tenant_id, r.task_id, 1, a.finished_at, 'exhausted', a.error, md5(a.error ->> 'message')
from attempts a join runs r using (job_id, scheduled_for, slot) where a.ends_as = 'dead' and a.finished_at > $1::timestamptz - interval '3 days'

-- name: queue
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, revision, shard, pool_id, priority, cause from runs where scheduled_for >= $1

-- name: usage
insert into usage (minute, pool_id, tenant_id, started, late, busy_ms)
select date_trunc('minute', $1::timestamptz) - n * interval '1 minute', p.pool_id, p.tenant_id, $2::bigint / 43200 + 1, n % 7, 1500 * ($2::bigint / 43200 + 1)
from generate_series(0, 1440) n cross join (select distinct pool_id, tenant_id from bench_places) p on conflict do nothing

-- name: age
-- Jobs and their copies are as old as the runs, so that the calendar has past entries.
update bellringer.jobs set created_at = created_at - make_interval(days => $1)
