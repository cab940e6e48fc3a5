-- compatible from 014
-- When the trouble of a job began. `since` moves with each further failure, `began_at` does not. It is null in rows
-- that an older version inserts.
set local search_path to bellringer;

alter table troubles add column began_at timestamptz;
