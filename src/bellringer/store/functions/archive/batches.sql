-- Takes the partitions of a day out of the history, and keeps runs and attempts as a batch for the archive.
-- Logs are not
-- archived. Returns the batch, or null if the day has no partitions. The caller has checked that nothing refers to the
-- day. Locks the parents exclusively, as dropping a partition does, for as long as renaming takes; waits at most one
-- second for these locks. A scheduler with a role of its own may read the batch.
create or replace function detach_day(p_day date) returns bigint
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '1s' as $$
declare
  reader text := service_role('scheduler');
  suffix text := to_char(p_day, 'YYYYMMDD');
  parent text;
  made   bigint;
begin
  if to_regclass('runs_' || suffix) is null then return null; end if;
  insert into archive_batches (day, opened_at, state) values (p_day, clock_timestamp(), 'open')
  returning batch_id into made;
  foreach parent in array array['runs', 'attempts'] loop
    execute format('alter table %I detach partition %I', parent, parent || '_' || suffix);
    execute format('alter table %I rename to %I', parent || '_' || suffix, 'expired_' || parent || '_' || made);
    if to_regrole(reader) is not null then
      execute format('grant select on %I to %I', 'expired_' || parent || '_' || made, reader);
    end if;
  end loop;
  execute format('drop table if exists %I', 'logs_' || suffix);
  return made;
end $$;

-- Drops the tables of a batch that is in the archive.
create or replace function drop_batch(p_batch bigint) returns void
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  update archive_batches set state = 'dropped', problem = null where batch_id = p_batch and state = 'archived';
  if not found then return; end if;
  execute format('drop table if exists %I, %I', 'expired_runs_' || p_batch, 'expired_attempts_' || p_batch);
end $$;
