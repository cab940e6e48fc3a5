-- Commit positions order events and audit entries by transaction. A position is the number of a transaction plus an
-- offset, because the numbers of transactions are not part of a dump: a new server begins at a low number again, and
-- after a point-in-time restore the numbers of lost transactions are given to others. `finish_restore` raises the
-- offset, so that new positions follow all stored ones. See docs/decisions/036.
--
-- The offset is a constant in a function body, so that an offset of 0 costs nothing when a statement is executed. The
-- body is kept when functions are applied again.
do $$
begin
  execute format('create or replace function position_offset() returns bigint language sql immutable '
                 'parallel safe as %L',
    coalesce((select p.prosrc from pg_proc p where p.oid = to_regprocedure('bellringer.position_offset()')),
             'select 0::bigint'));
end $$;

-- The position of this transaction.
create or replace function commit_position() returns xid8 language sql volatile parallel unsafe as $$
  select case when bellringer.position_offset() = 0 then pg_current_xact_id()
    else (pg_current_xact_id()::text::bigint + bellringer.position_offset())::text::xid8 end
$$;

-- The position of the oldest transaction that may still commit. Everything before it is visible or was rolled back.
create or replace function commit_horizon() returns xid8 language sql stable parallel safe as $$
  select case when bellringer.position_offset() = 0 then pg_snapshot_xmin(pg_current_snapshot())
    else (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + bellringer.position_offset())::text::xid8 end
$$;
