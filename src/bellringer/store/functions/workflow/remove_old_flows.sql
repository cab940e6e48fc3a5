-- Deletes flows whose day is past retention. A flow whose run can still be retried is kept: without it, the run would
-- start from the beginning and collide with its own attempts.
create or replace function forget_flows(p_before timestamptz, p_most integer) returns integer
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  gone uuid[];
begin
  gone := array(
    select flow.flow_id from flows flow
    where flow.scheduled_for < p_before and flow.finished_at is not null
      and not exists (
        select 1 from queue run where run.job_id = flow.top_job and run.scheduled_for = flow.scheduled_for offset 0)
      and not exists (
        select from dead_letters dead_letter
        where dead_letter.job_id = flow.top_job and dead_letter.scheduled_for = flow.scheduled_for offset 0)
      and not exists (
        select from discarded_dead_letters discarded
        where discarded.job_id = flow.top_job and discarded.scheduled_for = flow.scheduled_for offset 0)
    order by flow.scheduled_for limit p_most);
  delete from flow_nodes where flow_id = any (gone);
  delete from flows where flow_id = any (gone);
  delete from signals signal
  where signal.received_at < p_before and not exists (select from flows flow where flow.flow_id = signal.flow_id);
  return cardinality(gone);
end $$;
