-- Records when a lease was granted, and a row of lease_moves for each change of its holder. The log must neither fail
-- nor delay a grant or a release: if the table is locked, or the insert fails, the move is not logged. Only the owner
-- of lease_moves locks it for longer than a statement, in a migration.
create or replace function record_lease_move() returns trigger
language plpgsql security definer set search_path = bellringer, pg_temp as $$
begin
  new.acquired_at := case when new.holder is not null then clock_timestamp() end;
  if new.holder is null and old.holder is null then return new; end if;
  begin
    lock table lease_moves in row exclusive mode nowait;
    insert into lease_moves (at, shard, cause, holder, node, previous, previous_node, token)
    values (clock_timestamp(), new.shard,
            case when new.holder is null then 'released' when old.holder is null then 'acquired'
                 when old.expires_at < clock_timestamp() then 'expired' else 'replaced' end,
            new.holder, (select node.name from nodes node where node.node_id = new.holder),
            old.holder, (select node.name from nodes node where node.node_id = old.holder), new.token);
  exception when others then
    null;
  end;
  return new;
end $$;
