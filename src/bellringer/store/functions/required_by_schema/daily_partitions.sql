-- Runs, attempts and logs have one partition a day. A partition is created and then attached, because attaching does
-- not block readers and writers of the other days.

-- The day, in UTC, in whose partition a row of this time is.
create or replace function day_of(p_at timestamptz) returns date language sql immutable parallel safe as
$$ select (p_at at time zone 'UTC')::date $$;

-- The first instant of a day in UTC.
create or replace function start_of(p_day date) returns timestamptz language sql immutable parallel safe as
$$ select p_day::timestamp at time zone 'UTC' $$;

-- Creates missing partitions for these days. Locks LOCK_PARTITIONS, only if a partition is missing.
create or replace function ensure_days(p_days date[]) returns void
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  d      date;
  parent text;
  child  text;
begin
  foreach d in array p_days loop
    continue when d < (select day_of(made_at) from cluster);           -- before the installation: rows go to `past`
    continue when to_regclass('logs_' || to_char(d, 'YYYYMMDD')) is not null;
    perform pg_advisory_xact_lock(LOCK_PARTITIONS, 0);                              -- two nodes may do this at midnight
    foreach parent in array array['runs', 'attempts', 'logs'] loop
      child := parent || '_' || to_char(d, 'YYYYMMDD');
      continue when to_regclass(child) is not null;
      execute format('create table %I (like %I including defaults)', child, parent);
      execute format('alter table %I attach partition %I for values from (%L) to (%L)',
                     parent, child, start_of(d), start_of(d + 1));
    end loop;
  end loop;
end $$;

-- Drops the partitions of a day. Waits at most one second for their locks. The caller checks that nothing refers to the
-- day. Only the owner of the tables can drop them, so a scheduler with a role of its own calls this function.
create or replace function drop_day(p_day date) returns void
language plpgsql security definer set search_path = bellringer, pg_temp set lock_timeout = '1s' as $$
declare parent text;
begin
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    execute format('drop table if exists %I', parent || '_' || to_char(p_day, 'YYYYMMDD'));
  end loop;
end $$;
