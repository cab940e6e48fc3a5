-- Locks the rows of p_jobs in the order of their ids, then the shards of p_jobs and p_new, shared and in order. A tick
-- takes a shard's lock exclusively, so none fires these shards until the transaction ends.
create or replace function lock_shards_shared(p_jobs uuid[], p_new smallint[]) returns void
language plpgsql set search_path = bellringer, pg_temp as $$
declare s smallint;
begin
  perform 1 from jobs where job_id = any (p_jobs) order by job_id for update;
  for s in select shard from jobs where job_id = any (p_jobs) union select unnest(p_new) order by 1 loop
    perform pg_advisory_xact_lock_shared(LOCK_SHARD, s);
  end loop;
end $$;

-- Raises BR001 if the fire times that the caller computed from p_asof are stale: if waiting for the locks took so long
-- that a cohort may have fired beyond them. The caller computes them again and retries.
create or replace function check_fresh(p_asof timestamptz) returns void language plpgsql as $$
begin
  if clock_timestamp() - pg_catalog.now() + (bellringer.now() - p_asof) > interval '5 s' then
    raise exception 'instants are stale' using errcode = 'BR001';
  end if;
end $$;
