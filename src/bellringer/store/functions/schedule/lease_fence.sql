-- The fence. Locks the lease rows for share, so a takeover waits for this transaction and this one never commits
-- after it; an unlocked look, or `for key share`, lets a stale holder commit late. Returns the shards that were lost.
create or replace function fence(p_holder uuid, p_shards smallint[], p_tokens bigint[]) returns smallint[]
language plpgsql set search_path = bellringer, pg_temp as $$
declare held smallint[];
begin
  select array_agg(shard) into held from (
    select l.shard from unnest(p_shards, p_tokens) u (shard, token)
    join leases l on l.shard = u.shard and l.token = u.token and l.holder = p_holder
    order by l.shard for share of l) s;
  return array(select unnest(p_shards) except select unnest(held));
end $$;

-- Takes the advisory locks of these shards exclusively, in ascending order, until the transaction ends.
create or replace function lock_shards(p_shards smallint[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare s smallint;
begin
  for s in select distinct unnest(p_shards) order by 1 loop perform pg_advisory_xact_lock(LOCK_SHARD, s); end loop;
end $$;
