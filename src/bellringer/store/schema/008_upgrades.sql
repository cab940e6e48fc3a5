-- compatible from 007
-- The history of upgrades.
set local search_path to bellringer;

-- One row for each `bellringer migrate` that changed something.
create table upgrades (
  upgrade_id bigint generated always as identity primary key,
  program    text not null,                     -- the release of the program that migrated
  migrations text[] not null,                   -- the applied files; empty if only functions changed
  functions  boolean not null,                  -- whether functions were created, replaced or dropped
  at         timestamptz not null default pg_catalog.now()
);
