-- Notifies workers, when this transaction commits, of the times at which runs become claimable: one notification for
-- each pool, so that only its workers claim. The payload is the first time, a semicolon, and numbers: how many
-- milliseconds later the other times are (a payload has at most 8,000 bytes), and the pool as a negative number, which
-- workers of earlier releases take for a time that has passed. Times are rounded up to milliseconds, past ones to the
-- present. See `parse_work_hint` in store/wakeups.py.
create or replace function notify_workers(p_available timestamptz[], p_pools smallint[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  pool    record;
  offsets bigint[];
begin
  for pool in
    select run.pool_id, greatest(min(run.available_at), bellringer.now()) as first_at,
           array_agg(run.available_at) as times
    from unnest(p_available, p_pools) run (available_at, pool_id) group by run.pool_id
  loop
    offsets := array(
      select distinct ceil(extract(epoch from at - pool.first_at) * 1000)::bigint as offset_ms
      from unnest(pool.times) at where at > pool.first_at order by offset_ms limit 1000);
    perform pg_notify('bellringer_work', format('%s;%s',
      to_char(pool.first_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
      array_to_string(offsets || -pool.pool_id::bigint, ',')));
  end loop;
end $$;
