-- name: settings
-- Read only, and by the keys: a partition that was empty when it was last analysed would be read whole for every run.
select set_config('default_transaction_read_only', 'on', false), set_config('enable_seqscan', 'off', false)

-- name: tenant
select tenant_id from tenants where name = $1

-- name: bounds
-- The database's time, and the oldest day whose runs are still kept.
select bellringer.now() as now,
       (select min(start_of(to_date(right(c.relname, 8), 'YYYYMMDD')))
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'bellringer.runs'::regclass and c.relname ~ '^runs_[0-9]{8}$') as kept

-- name: jobs
-- Deleted ones too, as long as they lived in the window; a minute more, for what was owed at the end.
select job_id, name from jobs
where tenant_id = $1 and job_id > $2 and created_at < $4 and (deleted_at is null or deleted_at > $3::timestamptz - interval '1 minute')
  and ($5::uuid is null or job_id = $5) and ($6::text is null or name_key = lower($6))
order by job_id limit $7

-- name: revisions
-- The times of revisions never go back here: each is the beginning of a transaction, of which two may have crossed.
-- Only what changes the instants is taken, in one look at each document: arguments may be large.
select job_id, revision, since, until, schedules, lives, paused, starts_at, ends_at
from (select *, lead(since) over (partition by job_id order by revision) as until
      from (select *, max(effective_at) over (partition by job_id order by revision) as since
            from (select job_id, revision, effective_at, d.schedules, d.enabled and d.deleted_at is null as lives, d.paused_at is not null as paused,
                         d.starts_at, d.ends_at
                  from job_revisions cross join lateral jsonb_to_record(definition) d (
                    schedules text, enabled boolean, deleted_at text, paused_at text, starts_at timestamptz, ends_at timestamptz)
                  where job_id = any ($1::uuid[])
                  union all
                  select job_id, revision, updated_at, schedules::text, enabled and deleted_at is null, paused_at is not null, starts_at, ends_at
                  from jobs where job_id = any ($1::uuid[])) o) r) s
where until is null or until > $2::timestamptz - interval '1 minute'
order by job_id, revision

-- name: schedules
-- The numbers that these schedules are known by in gaps and catch-ups.
select schedule_id, kind, expression, timezone, anchor, seconds, dst, calendar
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::text[], $7::text[])
  u (kind, expression, timezone, anchor, seconds, dst, calendar)
join schedules s using (kind, expression, timezone, anchor, seconds, dst, calendar)

-- name: days_off
select digest, dates, weekend from days_off where digest = any ($1::text[])

-- name: catchups
select job_id, schedule_id as number, from_at as start, to_at as end, cursor, newest_first, state in ('running', 'paused') as is_open
from backfills where job_id = any ($1::uuid[]) and cause = 'catchup' and to_at > $2 and from_at < $3
order by job_id, backfill_id

-- name: runs
-- A page of the runs of these jobs, job by job in the order given, each after its own key. The lateral is a nested loop
-- by need, which keeps the order; whoever reads checks it. Not `exists`, for which the planner may hash all attempts.
-- `remark`: "early", if an attempt started before its time, or why the run was skipped.
select r.* from unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) u (job_id, at, slot)
cross join lateral (
  select r.job_id, r.scheduled_for, r.slot, r.fired_at, r.revision, r.cause::text, r.born_as = 'cancelled' as cancelled,
         (select case when a.started_at < a.scheduled_for then 'early' else coalesce(a.error ->> 'reason', '') end from attempts a
          where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot
            and (a.started_at < a.scheduled_for or a.ends_as = 'skipped') order by a.attempt desc limit 1) as remark
  from runs r where r.job_id = u.job_id and (r.scheduled_for, r.slot) > (u.at, u.slot)
    and r.scheduled_for >= $4 and r.scheduled_for < $5 and r.cause in ('schedule', 'catchup')
  order by r.scheduled_for, r.slot limit $6) r
limit $6

-- name: gaps
select g.* from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::integer[]) u (job_id, at, upto, schedule_id)
cross join lateral (
  select g.job_id, g.from_at, g.to_at, g.schedule_id from gaps g
  where g.job_id = u.job_id and (g.from_at, g.to_at, g.schedule_id) > (u.at, u.upto, u.schedule_id) and g.to_at > $5 and g.from_at < $6
  order by g.from_at, g.to_at, g.schedule_id limit $7) g
limit $7
