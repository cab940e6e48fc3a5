-- Schedule time. Production reads the transaction's clock; tests and the simulator replace this body, so the real
-- engine runs on their clock. It stays a plain SQL function so that the planner can inline it.
create or replace function now() returns timestamptz language sql stable parallel safe as 'select pg_catalog.now()';

-- The current schedule time, for steps that have waited for a lock: now() does not advance in a transaction. The clock
-- of a test does not advance either.
create or replace function clock() returns timestamptz language sql volatile as $$
  select bellringer.now() + case when bellringer.now() = pg_catalog.now() then clock_timestamp() - pg_catalog.now()
    else interval '0' end
$$;
