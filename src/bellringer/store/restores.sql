-- Restores of the database from a backup.

-- name: finish
select restore_id, recovered_to, finished_at, unfinished, held, positions_were_ahead, who, note
from bellringer.finish_restore($1, $2, $3)

-- name: list
select restore_id, recovered_to, finished_at, unfinished, held, positions_were_ahead, who, note from restores
order by restore_id desc limit $1

-- name: sessions
-- Other sessions of our programs. A pooler's sessions have names of its own, and are not found.
select activity.pid, activity.application_name as name from pg_stat_activity activity
where activity.datname = current_database() and activity.pid <> pg_backend_pid()
  and activity.application_name like 'bellringer%'
order by activity.pid limit 5
