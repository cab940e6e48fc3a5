-- History is kept in one partition a day. A day is attached, not declared in place, because attaching does not
-- lock out readers and writers of the other days.
set local search_path to bellringer;

create function day_of(p_at timestamptz) returns date language sql immutable parallel safe as
$$ select (p_at at time zone 'UTC')::date $$;

create function start_of(p_day date) returns timestamptz language sql immutable parallel safe as
$$ select p_day::timestamp at time zone 'UTC' $$;

create function ensure_days(p_days date[]) returns void
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  d      date;
  parent text;
  child  text;
begin
  foreach d in array p_days loop
    continue when d < (select day_of(made_at) from cluster);           -- older than the installation: `past` holds it
    continue when to_regclass('logs_' || to_char(d, 'YYYYMMDD')) is not null;
    perform pg_advisory_xact_lock(76, 0);                              -- two nodes at midnight
    foreach parent in array array['runs', 'attempts', 'logs'] loop
      child := parent || '_' || to_char(d, 'YYYYMMDD');
      continue when to_regclass(child) is not null;
      execute format('create table %I (like %I including defaults)', child, parent);
      execute format('alter table %I attach partition %I for values from (%L) to (%L)',
                     parent, child, start_of(d), start_of(d + 1));
    end loop;
  end loop;
end $$;

do $$
declare
  today  date := bellringer.day_of(pg_catalog.now());
  parent text;
begin
  update bellringer.cluster set made_at = bellringer.start_of(today);
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    execute format('create table bellringer.%I partition of bellringer.%I for values from (minvalue) to (%L)',
                   parent || '_past', parent, bellringer.start_of(today));
  end loop;
  perform bellringer.ensure_days(array[today, today + 1, today + 2]);
end $$;
