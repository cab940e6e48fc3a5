-- Moves due timers into the queue: one-shots and fixed delays become runs, far retries come back.
--
-- Guarantee: a due timer is deleted in the transaction that creates its run, returns its retry, or records its gap, so
-- nothing fires twice. Timers of deleted jobs are dropped. A run of a paused job is created as PAUSED. Whatever its
-- policy, a freeze only defers these runs, and runs that would overlap wait: a one-shot has no next time, and a fixed
-- delay no rhythm.
--
-- Locks, in this order: the advisory locks of the shards, exclusive, so that a pause or a change of the same job comes
-- before or after; the rows of their leases, shared (`fence`); the timers, skipping rows that are locked.
--
-- The caller must:
-- - give only shards that have a due timer: each costs two locks;
-- - if `refused` is not empty, forget these shards: their lease is lost, and nothing was written;
-- - call again while `moved` = p_limit: at most p_limit timers are handled, the earliest of each shard first;
-- - on a unique violation, repeat the call with p_careful: it leaves out timers whose run exists. The inserts have no
--   ON CONFLICT, which would need a join to find out which runs are new.
--
-- `moved` counts all timers that were handled, `fired` new runs, `missed` new gaps. Workers are notified of the times
-- at which the new rows of the queue become claimable; see `notify_workers`.
create or replace function fire_timers(
  p_holder uuid, p_shards smallint[], p_tokens bigint[], p_lead interval, p_limit integer, p_careful boolean,
  out fired integer, out moved integer, out first_due_at timestamptz, out refused smallint[], out missed bigint)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s' PLAN_KEPT PLAN_BY_KEY as $$
declare
  until     timestamptz := bellringer.now() + p_lead;
  due_rows  tid[];
  due_days  date[];
  available timestamptz[];
  pools     smallint[];
begin
  fired := 0; moved := 0; missed := 0;
  perform lock_shards(p_shards);
  refused := fence(p_holder, p_shards, p_tokens);
  if cardinality(refused) > 0 then return; end if;

  select array_agg(due.row_id), array_agg(distinct day_of(due.scheduled_for))
  from (
    select timer.row_id, timer.scheduled_for from unnest(p_shards) held (shard) cross join lateral (
      select ctid as row_id, scheduled_for from timers where shard = held.shard and due_at <= until
      order by due_at limit p_limit for update skip locked) timer
    limit p_limit) due
  into due_rows, due_days;
  if due_rows is null then return; end if;
  perform ensure_days(due_days);           -- after an outage, the days of due timers may have no partition

  with due_timers as (
    delete from timers where ctid = any (due_rows) returning *),
  decided as materialized (
    select timer.job_id, timer.scheduled_for, timer.slot, timer.due_at, timer.shard, timer.pool_id, timer.priority,
           timer.attempt, timer.attempt_floor, timer.tenant_id, timer.revision, timer.cause, timer.rearms, timer.spec,
           coalesce(case when timer.spec is null then job.task_id end, timer.task_id) as task_id,
           job.key_id, job.cap, p_tokens[array_position(p_shards, timer.shard)] as token,
           case when job.paused_at is not null or timer.cause = 'workflow' and is_paused(timer.job_id)
                then PAUSED else 0 end
             | case when job.key_id is null then 0 else LIMITED end
             | case when is_first and timer.cause = 'schedule'
                     and frozen_until(timer.job_id, timer.tenant_id, timer.due_at) is not null then FROZEN else 0 end
             | case when job.overlap <> 'allow' and exists (select 1 from queue run where run.job_id = timer.job_id)
                    then PREDECESSOR else 0 end as blocked,
           case when is_first then timer.due_at + job.late_after end as late_at,
           case when is_first then timer.scheduled_for + expiry_of(timer.spec, job.expires_in)
                else timer.expires_at end as expires_at, timer.resume_from,
           coalesce(job.misfire = 'skip' and timer.cause = 'schedule' and is_first and not timer.rearms
                    and timer.due_at < bellringer.now() - grace(), false) as is_misfired
    from due_timers timer
    left join jobs job on job.job_id = timer.job_id
    cross join lateral (select timer.attempt = 0 as is_first) attempt
    where job.deleted_at is null
      and not (is_first and timer.rearms and job.delay is null)    -- the job has no fixed delay any more
      and not (p_careful and case when is_first
        then exists (select 1 from runs run where run.job_id = timer.job_id
                       and run.scheduled_for = timer.scheduled_for and run.slot = timer.slot)
        else exists (select 1 from queue run where run.job_id = timer.job_id
                       and run.scheduled_for = timer.scheduled_for and run.slot = timer.slot) end)),
  insert_runs as (
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                      priority, cause, initial_state, spec)
    select job_id, scheduled_for, slot, bellringer.now(), token, tenant_id, task_id, revision, shard, pool_id,
           priority, cause, case when blocked & ~LIMITED <> 0 then 'blocked' else 'queued' end::run_state, spec
    from decided where attempt = 0 and not is_misfired),
  insert_queue as (
    insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,
                       priority, attempt, attempt_floor, cause, rearms, spec, blocked, key_id, cap, late_at,
                       expires_at, resume_from)
    select job_id, scheduled_for, slot, due_at, tenant_id, task_id, revision, shard, pool_id,
           priority, attempt, attempt_floor, cause, rearms, spec, blocked, key_id, cap, late_at,
           expires_at, resume_from
    from decided where not is_misfired),
  insert_gaps as (
    insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
    select job_id, scheduled_for, scheduled_for + interval '1 microsecond', 1, 'misfire', bellringer.now()
    from decided where is_misfired
    on conflict do nothing)
  select count(*) filter (where attempt = 0 and not is_misfired), count(*) filter (where is_misfired),
         min(due_at), array_agg(due_at) filter (where not is_misfired),
         array_agg(pool_id) filter (where not is_misfired)
  into fired, missed, first_due_at, available, pools from decided;
  moved := cardinality(due_rows);
  perform notify_workers(available, pools);
end $$;
