-- name: full_indexes
-- Indexes that hold every row of a table: they are dropped for the load and built afterwards, several times as fast.
select index.indexrelid::regclass::text as name, pg_get_indexdef(index.indexrelid) as definition,
       c.conname as constraint_name, pg_get_constraintdef(c.oid) as constraint_definition
from pg_index index left join pg_constraint c on c.conindid = index.indexrelid and c.contype = 'p'
where index.indrelid = $1::text::regclass
  and (index.indpred is null or pg_get_expr(index.indpred, index.indrelid) = '(deleted_at IS NULL)')

-- name: jobs
-- Job n of $1. Every $2th job follows one of the schedules $3, $4 jobs each; the others follow the schedules $5.
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedules, schedule_ids, pool_id, priority, misfire,
                  overlap, created_at, updated_at)
select job_id, 1, get_byte(uuid_send(job_id), 15) % 64, 'job ' || n, $6, jsonb_build_object(
         'kwargs', jsonb_build_object('customer', n, 'what', 'the nightly report'), 'timeout', 600.0),
       '[{"cron": "0 3 * * *", "tz": "UTC"}]',
       array[coalesce(case when n % $2 = 0 then ($3::integer[])[1 + (n / $2 - 1) / $4] end,
                      ($5::integer[])[1 + n % cardinality($5::integer[])])],
       $7, 5, 'fire_once', 'skip', bellringer.now(), bellringer.now()
from (select n::integer, gen_random_uuid() as job_id from generate_series(1, $1::integer) n offset 0) job

-- name: members
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                     active_since)
select shard, schedule_ids[1], job_id, tenant_id, task_id, revision, pool_id, priority, 0, 1,
       bellringer.now() - interval '1 hour'
from jobs

-- name: cohorts
-- The cohorts of schedule $1[n] stand at $2[n].
insert into cohorts (shard, schedule_id, next_at)
select cohort.shard, cohort.schedule_id, given.at
from (select distinct shard, schedule_id from members) cohort
join unnest($1::integer[], $2::timestamptz[]) given (schedule_id, at) using (schedule_id)

-- name: timers
-- Timers of sends. Every $2th of them, $3 per minute, is due in the minutes from $4; $1 others within 30 days from $5.
insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, spec)
select job_id, due_at, 0, due_at, get_byte(uuid_send(job_id), 15) % 64, $7, 5, 1, $6, 'send', jsonb_build_object(
         'kwargs', jsonb_build_object('customer', n, 'what', 'the reminder'), 'timeout', 600.0)
from (
  select n, gen_random_uuid() as job_id,
         case when n % $2 = 0 and n / $2 <= $8::integer
              then $4::timestamptz + (n / $2 - 1) / $3 * interval '1 minute'
              else $5::timestamptz + random() * interval '30 days' end as due_at
  from generate_series(1, $1::integer + $8::integer) n offset 0) timer

-- name: ready_runs
-- $2 ready runs of random jobs among $1.
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority,
                  cause, initial_state)
select job.job_id, $3::timestamptz - pick.n * interval '1 ms', 0, $3, 1, 1, job.task_id, job.revision, job.shard,
       job.pool_id, job.priority, 'schedule', 'queued'
from (select n, 1 + floor(random() * $1::integer)::integer as number
      from generate_series(1, $2::integer) n offset 0) pick
cross join lateral (select * from jobs where tenant_id = 1 and name_key = 'job ' || pick.number
                      and deleted_at is null) job

-- name: ready_queue
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority,
                   cause)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, revision, shard, pool_id, priority, cause
from runs

-- name: some_runs
select job_id, scheduled_for, slot from queue order by md5(scheduled_for::text) limit $1

-- name: some_timers
-- Waiting timers at random places of the primary key.
select timer.* from generate_series(1, $1::integer) n
cross join lateral (
  select job_id, scheduled_for, slot from timers where job_id >= md5(n::text)::uuid order by job_id limit 1) timer

-- name: bytes
select pg_database_size(current_database()),
       pg_total_relation_size('jobs') + pg_total_relation_size('members') + pg_total_relation_size('cohorts'),
       pg_total_relation_size('timers')

-- name: make_due
-- Moves cohorts of $1 jobs or more to an instant.
with chosen as (
  select schedule_id from (
    select schedule_id, sum(members) over (order by schedule_id) - members as before
    from (select schedule_id, sum(members) as members from cohort_sizes where schedule_id = any ($3::integer[])
          group by 1) size) given
  where before < $1::bigint)
update cohorts set next_at = $2::timestamptz where schedule_id in (select schedule_id from chosen)

-- name: fired_at
select count(*) from runs where scheduled_for = $1

-- name: install_earlier
-- As if Bellringer had been installed on the day that begins at {start}: the days since then get partitions.
do $$
declare parent text;
begin
  update cluster set made_at = {start};
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    execute format('drop table %I', parent || '_past');
    execute format('create table %I partition of %I for values from (minvalue) to (%L)',
                   parent || '_past', parent, {start});
  end loop;
end $$

-- name: places
create table bench_places as
select (row_number() over (order by job_id) - 1)::integer as place, job_id, shard, task_id, pool_id, priority, revision
from jobs

-- name: history
-- $2 ended runs of the day that begins at $1, with one attempt each; one of 200 died.
with place as (select count(*)::integer as places from bench_places),
given as materialized (
  select n, $1::timestamptz + n * (interval '1 day' / $2::integer) as at, n % 200 = 0 as died,
         floor(random() * places)::integer as place
  from generate_series(0, $2::integer - 1) n cross join place),
insert_runs as (
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                    priority, cause, initial_state)
  select job.job_id, given.at, 0, given.at, 1, 1, job.task_id, job.revision, job.shard, job.pool_id, job.priority,
         'schedule', 'queued'
  from given join bench_places job using (place))
insert into attempts (job_id, scheduled_for, slot, attempt, started_at, finished_at, tenant_id, worker_id, revision,
                      outcome, ends_as, error, result)
select job.job_id, given.at, 0, 1, given.at + interval '5 ms', given.at + interval '1 s', 1, 1, job.revision,
       case when died then 'failed' else 'ok' end::outcome,
       case when died then 'dead' else 'succeeded' end::run_state,
       case when died then '{"type": "RuntimeError", "message": "the shelf is empty"}'::jsonb end,
       case when not died then '{"rows": 12}'::jsonb end
from given join bench_places job using (place)

-- name: ended_runs
-- $1 runs at random times from $2 on, within $3.
select run.* from generate_series(1, $1::integer) n
cross join lateral (
  select job_id, scheduled_for, slot from runs
  where tenant_id = 1 and scheduled_for >= $2::timestamptz + $3::interval * (abs(hashint4(n)) / 2147483648.0)
  order by scheduled_for limit 1) run

-- name: history_bytes
select sum(pg_total_relation_size(c.oid))::bigint from pg_class c
where c.relnamespace = 'bellringer'::regnamespace and c.relname ~ '^(runs|attempts)_\d+$'
