-- Sets the number of shards of a new installation. Returns null, or the reason why the number cannot change.
--
-- Guarantees  Jobs and runs are assigned to shards by this number, so it changes only while there are none, and while
--             no process that may have read it is running.
-- Locks       The row of cluster, so that of two calls the second sees the result of the first.
create or replace function set_shard_count(p_shards integer) returns text
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  present integer := (select shards from cluster for update);
begin
  if present = p_shards then
    return null;
  end if;
  if p_shards not between 1 and 1024 then
    return 'the number of shards must be 1 to 1024';
  end if;
  if exists (select from jobs) or exists (select from runs) or exists (select from timers) then
    return format('the installation has %s shards and has had jobs or runs', present);
  end if;
  if exists (select from nodes where seen_at > clock_timestamp() - interval '1 minute')
     or exists (select from workers where state in ('live', 'draining')) then
    return format('the installation has %s shards, and schedulers or workers are running', present);
  end if;
  update cluster set shards = p_shards;
  delete from leases where shard >= p_shards;
  insert into leases (shard) select shard from generate_series(present, p_shards - 1) shard;
  return null;
end $$;
