-- Settle: record how attempts ended, fenced by worker and attempt. Fewer rows settled than given means that someone
-- else owns the others now; their reports came too late and are dropped.
set local search_path to bellringer;

-- Arm the next run of a job with a fixed delay.
create function rearm(p_job uuid) returns void
language sql set search_path = bellringer, pg_temp as $$
  insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision, cause, rearms)
  select job_id, bellringer.now() + delay, 0, bellringer.now() + delay, shard, pool_id, priority, tenant_id, task_id, revision, 'schedule', true
  from jobs where job_id = p_job and delay is not null and enabled and paused_at is null and deleted_at is null
    and (ends_at is null or ends_at >= bellringer.now() + delay)
  on conflict do nothing
$$;

-- Let the next run go that waits for an earlier one of its job: called, in a new statement, by whoever ends runs; p_live are
-- the jobs of those that were no catch-up or backfill. What was due while such a run was unfinished, and is of a job that
-- skips or coalesces, ends here: it must not profit from being looked at a moment late.
create function free(p_jobs uuid[], p_live uuid[]) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  u record;
  n integer;
begin
  if not exists (select 1 from queue where blocked & 2 = 2) then return 0; end if;
  for u in
    select q.ctid as tid, q.job_id, q.scheduled_for, q.slot, j.overlap from queue q join jobs j on j.job_id = q.job_id
    where cardinality(p_live) > 0 and q.job_id = any (p_live) and q.blocked & 18 = 18 and q.available_at <= bellringer.now() and j.overlap in ('skip', 'collapse')
    order by q.job_id, q.scheduled_for, q.slot
  loop
    if u.overlap = 'skip' then
      perform skip_overlapped(array[u.tid]);
    else
      perform collapse_overlapped(u.job_id, u.scheduled_for, u.slot);
    end if;
  end loop;
  update queue set blocked = blocked & ~18
  where blocked & 2 = 2 and ctid = any (array(
    select w.ctid from (select distinct unnest(p_jobs) as job_id) e cross join lateral (
      select q.ctid, q.scheduled_for, q.slot from queue q where q.job_id = e.job_id and q.blocked & 2 = 2
      order by q.scheduled_for, q.slot limit 1) w
    where not exists (                                   -- what a freeze holds is only before what comes later
      select 1 from queue o where o.job_id = e.job_id and o.blocked & 2 = 0
        and (o.blocked & 8 = 0 or (o.scheduled_for, o.slot) < (w.scheduled_for, w.slot)))));
  get diagnostics n = row_count;
  return n;
end $$;

-- End runs whose time came while an earlier one was unfinished. The one in the way may have ended this very moment.
create function skip_overlapped(p_rows tid[]) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare n integer;
begin
  with gone as (
    delete from queue q where q.ctid = any (p_rows) and q.blocked & 16 = 16 and q.worker_id is null
    returning q.job_id, q.scheduled_for, q.slot, q.tenant_id, q.revision)
  insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, ends_as, error)
  select g.job_id, g.scheduled_for, g.slot, 0, bellringer.now(), g.tenant_id, g.revision, 'skipped',
         jsonb_build_object('reason', 'overlap', 'run', jsonb_build_object(
           'scheduled_for', coalesce(o.scheduled_for, e.scheduled_for), 'slot', coalesce(o.slot, e.slot)))
  from gone g
  left join lateral (
    select q.scheduled_for, q.slot from queue q
    where q.job_id = g.job_id and q.cause not in ('catchup', 'backfill') and (q.scheduled_for, q.slot) <> (g.scheduled_for, g.slot)
      and (q.blocked & 10 = 0 or (q.scheduled_for, q.slot) < (g.scheduled_for, g.slot))
    order by q.blocked & 2, q.scheduled_for, q.slot limit 1) o on true
  left join lateral (
    select a.scheduled_for, a.slot from attempts a
    where o.slot is null and a.job_id = g.job_id and a.scheduled_for <= g.scheduled_for and a.ends_as <> 'skipped'
    order by a.scheduled_for desc, a.slot desc limit 1) e on true
  on conflict do nothing;
  get diagnostics n = row_count;
  return n;
end $$;

-- e_ran is how long each attempt ran, e_ago how long ago it ended, by the worker's monotonic clock.
-- e_ends is null for another attempt after e_wait seconds; near ones go back to the queue, far ones wait in timers,
-- except where the next run of the job waits for this one: the tick looks for it in the queue alone.
-- An e_ends of 'running' says that a workflow run is opened: it goes on without its worker. p_nodes: nodes of workflows, or workflow
-- runs, are among them; others need not look.
-- `worker_id + 0` hides the held index: the planner would read all rows of the worker for each row that ended.
create function settle(p_worker integer, e_job uuid[], e_at timestamptz[], e_slot bigint[], e_attempt integer[],
                       e_outcome text[], e_ends text[], e_wait double precision[], e_counted boolean[], e_ran double precision[], e_ago double precision[],
                       e_error text[], e_result text[], e_reason text[], e_fingerprint text[], p_nodes boolean default false) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  n_ended integer;
  n_again integer := 0;
  n_live  uuid[];
  w_flow  uuid[];                                        -- nodes of workflows that have ended
  w_node  bigint[];
  w_state text[];
begin
  if p_nodes then perform lock_tops(e_job); end if;
  if array_position(e_ends, null) is not null then
    -- A pause or a deletion of these jobs comes before or after, not between. The rows are locked in key order, because
    -- two statements follow, and a reaper may be settling the same rows.
    perform 1 from jobs j where j.job_id = any (e_job) order by j.job_id for share;
    perform 1 from unnest(e_job, e_at, e_slot) e (job_id, at, slot)
    join queue q on q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot
    order by q.job_id, q.scheduled_for, q.slot for update of q;
  end if;

  with ended as (
    delete from queue q using unnest(e_job, e_at, e_slot, e_attempt, e_outcome, e_ends, e_ran, e_ago, e_error, e_result, e_reason, e_fingerprint)
      e (job_id, at, slot, attempt, outcome, ends, ran, ago, error, result, reason, fingerprint)
    where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
      and (e.ends <> 'running' or q.cancel_requested
           or exists (select 1 from jobs j where j.job_id = q.job_id and j.deleted_at is not null))
    returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.tenant_id, q.task_id, q.revision, q.rearms, q.cause, e.outcome,
              coalesce(nullif(e.ends, 'running'), 'cancelled') as ends, e.ran, e.ago, e.error, e.result, e.reason, e.fingerprint),
  written as (
    insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, revision, attempt, outcome,
                          ends_as, error, result)
    select job_id, scheduled_for, slot, bellringer.now() - (ran + ago) * interval '1 second',
           bellringer.now() - ago * interval '1 second', tenant_id, p_worker, revision,
           attempt, outcome::outcome, ends::run_state, error::jsonb, result::jsonb
    from ended),
  died as (
    insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, error, fingerprint)
    select job_id, scheduled_for, slot, tenant_id, task_id, attempt, bellringer.now(), reason, error::jsonb, fingerprint
    from ended where ends = 'dead' and cause <> 'workflow' on conflict do nothing),
  told as (                                              -- what carries an event is no event itself, or it would never end
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select bellringer.now(), tenant_id, 'dead', job_id, scheduled_for, slot, attempt,
           jsonb_build_object('reason', reason, 'error', error::jsonb ->> 'type')
    from ended where ends = 'dead' and cause not in ('webhook', 'workflow') on conflict do nothing),
  armed as (
    insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, revision, cause, rearms)
    select j.job_id, bellringer.now() + j.delay, 0, bellringer.now() + j.delay, j.shard, j.pool_id, j.priority, j.tenant_id, j.task_id,
           j.revision, 'schedule', true
    from ended e join jobs j on j.job_id = e.job_id
    where e.rearms and j.delay is not null and j.enabled and j.paused_at is null and j.deleted_at is null
      and (j.ends_at is null or j.ends_at >= bellringer.now() + j.delay)
    on conflict do nothing)
  select count(*), array_agg(job_id) filter (where cause not in ('catchup', 'backfill', 'workflow')),
         array_agg(job_id) filter (where cause = 'workflow'), array_agg(slot) filter (where cause = 'workflow'),
         array_agg(ends) filter (where cause = 'workflow')
  from ended into n_ended, n_live, w_flow, w_node, w_state;

  if array_position(e_ends, null) is not null then
    with given as materialized (
      select e.*, e.wait > 60 and not exists (select 1 from jobs j where j.job_id = e.job_id and j.overlap <> 'allow') as far
      from unnest(e_job, e_at, e_slot, e_attempt, e_outcome, e_ends, e_wait, e_counted, e_ran, e_ago, e_error)
        e (job_id, at, slot, attempt, outcome, ends, wait, counted, ran, ago, error) where e.ends is null),
    near as (
      update queue q set worker_id = null, claimed_at = null, progress = null,
             available_at = bellringer.now() + e.wait * interval '1 second',
             attempt_floor = q.attempt_floor + (not e.counted)::int,
             task_id = coalesce((select j.task_id from jobs j where j.job_id = q.job_id and q.spec is null), q.task_id),
             blocked = case when exists (select 1 from jobs j where j.job_id = q.job_id and j.paused_at is not null)
                              or q.cause = 'workflow' and is_paused(q.job_id) then q.blocked | 1 else q.blocked end
      from given e
      where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
        and not e.far
      returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.tenant_id, q.revision, q.cause, e.outcome, e.ran, e.ago, e.error,
                e.wait, e.counted),
    far as (
      delete from queue q using given e
      where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
        and e.far
      returning q.*, e.outcome, e.ran, e.ago, e.error, e.wait, e.counted),
    later as (
      insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, attempt, attempt_floor, tenant_id, task_id,
                          revision, cause, rearms, spec)
      select job_id, scheduled_for, slot, bellringer.now() + wait * interval '1 second', shard, pool_id, priority, attempt,
             attempt_floor + (not counted)::int, tenant_id, task_id, revision, cause, rearms, spec
      from far),
    told as (
      insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
      select bellringer.now(), tenant_id, 'failed', job_id, scheduled_for, slot, attempt,
             jsonb_build_object('outcome', outcome, 'error', error::jsonb ->> 'type', 'retry_in', wait)
      from (select job_id, scheduled_for, slot, attempt, tenant_id, cause, outcome, error, wait, counted from near
            union all
            select job_id, scheduled_for, slot, attempt, tenant_id, cause, outcome, error, wait, counted from far) a
      where counted and outcome <> 'ok' and cause <> 'webhook' on conflict do nothing),
    written as (
      insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, revision, attempt, outcome, error)
      select job_id, scheduled_for, slot, bellringer.now() - (ran + ago) * interval '1 second',
           bellringer.now() - ago * interval '1 second', tenant_id, p_worker, revision,
             attempt, outcome::outcome, error::jsonb
      from (select job_id, scheduled_for, slot, attempt, tenant_id, revision, outcome, ran, ago, error from near
            union all
            select job_id, scheduled_for, slot, attempt, tenant_id, revision, outcome, ran, ago, error from far) a
      returning 1)
    select count(*) from written into n_again;
  end if;
  if n_ended > 0 then perform free(e_job, n_live); end if;
  if p_nodes and 'running' = any (e_ends) then
    n_again := n_again + (
      select open_flows(p_worker, array_agg(e.job_id), array_agg(e.at), array_agg(e.slot), array_agg(e.attempt))
      from unnest(e_job, e_at, e_slot, e_attempt, e_ends) e (job_id, at, slot, attempt, ends) where e.ends = 'running');
  end if;
  if w_flow is not null then perform advance(w_flow, w_node, w_state); end if;
  return n_ended + n_again;
end $$;

-- Rows that a worker took and did not start go back as if they had never been taken; those that were asked to stop
-- meanwhile end here.
create function give_back(p_worker integer, e_job uuid[], e_at timestamptz[], e_slot bigint[], e_attempt integer[]) returns integer
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  n_back  integer;
  n_ended integer;
  n_armed integer;
  n_live  uuid[];
  w_flow  uuid[];
  w_node  bigint[];
begin
  perform lock_tops(e_job);
  perform 1 from jobs j where j.job_id = any (e_job) order by j.job_id for share;
  perform 1 from unnest(e_job, e_at, e_slot) e (job_id, at, slot)
  join queue q on q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot
  order by q.job_id, q.scheduled_for, q.slot for update of q;

  update queue q set worker_id = null, claimed_at = null, attempt = q.attempt - 1,
         task_id = coalesce((select j.task_id from jobs j where j.job_id = q.job_id and q.spec is null), q.task_id),
         blocked = case when exists (select 1 from jobs j where j.job_id = q.job_id and j.paused_at is not null)
                          or q.cause = 'workflow' and is_paused(q.job_id) then q.blocked | 1 else q.blocked end
  from unnest(e_job, e_at, e_slot, e_attempt) e (job_id, at, slot, attempt)
  where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
    and not q.cancel_requested
    and not exists (select 1 from jobs j where j.job_id = q.job_id and j.deleted_at is not null);
  get diagnostics n_back = row_count;

  with gone as (
    delete from queue q using unnest(e_job, e_at, e_slot, e_attempt) e (job_id, at, slot, attempt)
    where q.job_id = e.job_id and q.scheduled_for = e.at and q.slot = e.slot and q.worker_id + 0 = p_worker and q.attempt = e.attempt
    returning q.job_id, q.scheduled_for, q.slot, q.tenant_id, q.revision, q.rearms, q.cause),
  ended as (
    insert into attempts (job_id, scheduled_for, slot, attempt, finished_at, tenant_id, revision, outcome, ends_as, error)
    select job_id, scheduled_for, slot, 0, bellringer.now(), tenant_id, revision, 'cancelled', 'cancelled',
           '{"reason": "cancelled before it was started"}'::jsonb
    from gone on conflict do nothing)
  select count(*), count(rearm(job_id)) filter (where rearms), array_agg(job_id) filter (where cause not in ('catchup', 'backfill', 'workflow')),
         array_agg(job_id) filter (where cause = 'workflow'), array_agg(slot) filter (where cause = 'workflow')
  from gone into n_ended, n_armed, n_live, w_flow, w_node;
  if n_ended > 0 then perform free(e_job, n_live); end if;
  if w_flow is not null then
    perform advance(w_flow, w_node, array_fill('cancelled'::text, array[cardinality(w_flow)]));
  end if;
  return n_back + n_ended;
end $$;
