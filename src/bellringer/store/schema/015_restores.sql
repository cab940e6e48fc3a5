-- compatible from 014
-- Restores from a backup, and commit positions that survive them.
set local search_path to bellringer;

alter table events alter column tx set default commit_position();
alter table troubles_read alter column tx set default commit_position();
alter table webhook_endpoints alter column sent_tx set default commit_position();
alter table audit alter column tx set default commit_position();

-- Each restore of this database from a backup, recorded by `bellringer restore finish`. Runs that were unfinished at
-- recovered_to, or due between the two times, may have been executed by the database that was lost.
create table restores (
  restore_id   bigint generated always as identity primary key,
  recovered_to timestamptz not null,            -- the state that was restored
  finished_at  timestamptz not null,            -- when processes could start again
  unfinished   bigint not null,                 -- queue rows at that time
  held         bigint not null,                 -- those that a worker held or a broker had
  positions_were_ahead boolean not null,        -- the server had lower transaction numbers than the backup
  who          text not null,
  note         text not null default '',
  check (recovered_to <= finished_at)
);
