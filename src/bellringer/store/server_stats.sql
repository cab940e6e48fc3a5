-- The state of the database server, for metrics and the console. None of these statements needs more than the role of a
-- process has.

-- name: connections
-- Clients of the server, and how many it allows without the reserved connections.
select (select count(*) from pg_stat_activity where backend_type = 'client backend') as used,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) as max

-- name: sizes
-- The data directory is null for roles that may not see it.
select pg_database_size(current_database()) as database,
       has_function_privilege('pg_ls_waldir()', 'execute') as may_list_wal,
       (select setting from pg_settings where name = 'data_directory') as data_directory,
       extract(epoch from pg_postmaster_start_time())::bigint as started_at

-- name: wal_bytes
select sum(size)::bigint from pg_ls_waldir()

-- name: version
select current_setting('server_version')

-- name: round_trip
select 1

-- name: long_transactions
-- Client sessions of this database in a transaction that is older than $1 seconds, the oldest first. The type and the
-- transaction of a session of another role are hidden from roles without pg_read_all_stats.
select pid, coalesce(nullif(application_name, ''), usename::text, '?') as application, coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as seconds
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and xact_start < clock_timestamp() - make_interval(secs => $1)
order by xact_start limit $2

-- name: hidden_sessions
select count(*) from pg_stat_activity
where datname = current_database() and usename is not null and query = '<insufficient privilege>'

-- name: missing_partitions
-- $1: names of partitions that have to exist.
select count(*) from unnest($1::text[]) wanted (name) where to_regclass('bellringer.' || wanted.name) is null
