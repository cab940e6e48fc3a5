-- Workers that are not live, or do not exist, and still hold runs. The holders are found by a skip scan of the index.
create or replace function lost_workers_with_runs() returns setof integer
language plpgsql set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_IN_INDEX_ORDER as $$
begin
  return query
  with recursive holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holders.worker_id order by run.worker_id limit 1)
    from holders
    where holders.worker_id is not null)
  select holders.worker_id from holders
  where holders.worker_id is not null
    and not exists (
      select 1 from workers worker where worker.worker_id = holders.worker_id and worker.state in ('live', 'draining'));
end $$;

-- Claimed or sent runs that no worker is known to execute. reason: `worker_gone`, the worker is lost, has stopped or is
-- silent, and no reaper has returned the run; `unconfirmed`, a live worker has not confirmed for p_after that it knows
-- the row; `not_taken`, a broker has the run and no worker has taken it. A live worker confirms its rows every few
-- seconds, so that no rows of a healthy worker are returned.
create or replace function stranded(p_after interval, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, tenant_id integer,
               since timestamptz, worker_id integer, reason text)
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
#variable_conflict use_column
begin
  return query
  with recursive holders (worker_id) as (
    (select run.worker_id from queue run where run.worker_id is not null order by run.worker_id limit 1)
    union all
    select (select run.worker_id from queue run where run.worker_id > holders.worker_id order by run.worker_id limit 1)
    from holders
    where holders.worker_id is not null)
  (select run.job_id, run.scheduled_for, run.slot, run.attempt, run.tenant_id, run.claimed_at, holders.worker_id,
          case when gone then 'worker_gone' else 'unconfirmed' end
   from holders
   left join workers worker on worker.worker_id = holders.worker_id
   cross join lateral (
     select worker.worker_id is null or worker.state in ('lost', 'stopped')
              or worker.seen_at < clock_timestamp() - p_after as gone) lost
   cross join lateral (
     select run.* from queue run
     where run.worker_id = holders.worker_id and run.claimed_at < bellringer.now() - p_after offset 0) run
   where holders.worker_id is not null
     and (gone or coalesce(worker.confirmed_at, '-infinity') < greatest(run.claimed_at, bellringer.now() - p_after))
   limit p_most)
  union all
  (select run.job_id, run.scheduled_for, run.slot, run.attempt, run.tenant_id, run.sent_at, null::integer, 'not_taken'
   from pools pool
   cross join lateral (
     select run.* from queue run
     where run.pool_id = pool.pool_id and run.worker_id is null and run.blocked & SENT = SENT
       and run.sent_at < clock_timestamp() - 2 * p_after limit p_most) run
   where pool.paused_at is null limit p_most);
end $$;
