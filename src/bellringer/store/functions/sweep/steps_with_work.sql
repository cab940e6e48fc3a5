-- The steps of a scheduler that have something to do, by the names of their loops in scheduler/service.py. One cheap
-- look instead of one query for each step. It is a hint: each step also runs by itself every few seconds.
create or replace function steps_with_work(p_shards smallint[]) returns text[]
language plpgsql stable set search_path = bellringer, pg_temp
PLAN_KEPT PLAN_BY_INDEX as $$
begin
  return array_remove(array[
    case when exists (
        select from queue run
        where run.blocked = any (bits(UNDECIDED)) and run.blocked & HELD <> 0
          and run.available_at <= bellringer.now())
      or exists (
        select from queue run
        where run.blocked = any (bits(FROZEN)) and run.blocked & HELD <> 0 and run.available_at <= bellringer.now())
      or exists (select from queue run where run.expires_at <= bellringer.now() and run.worker_id is null)
      then 'decide' end,
    case when exists (
        select from queue run where run.cancel_requested and run.blocked & OPEN_WORKFLOW = OPEN_WORKFLOW)
      or exists (
        select from flows flow
        where flow.deadline_at <= bellringer.now() and flow.finished_at is null and flow.stopped is null)
      then 'stop' end,
    case when exists (select from jobs job where job.paused_until <= bellringer.now())
      or exists (select from task_pauses)
      or exists (select from queue run where run.blocked & TASK_PAUSED = TASK_PAUSED)
      then 'resume' end,
    case when exists (
        select from backfills backfill
        where backfill.shard = any (p_shards) and backfill.state in ('running', 'paused'))
      then 'backfill' end,
    case when exists (select from operations operation where operation.state = 'running') then 'operate' end,
    case when exists (select from webhook_endpoints endpoint where endpoint.enabled) then 'announce' end], null);
end $$;
