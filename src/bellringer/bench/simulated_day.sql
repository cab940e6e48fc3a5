-- name: cohorts
-- Each schedule's hand stands at the instant that is given for it.
insert into cohorts (shard, schedule_id, next_at)
select distinct m.shard, m.schedule_id, u.at from members m join unnest($1::int[], $2::timestamptz[]) u (schedule_id, at) using (schedule_id)

-- name: lateness
select percentile_disc(array[0.5, 0.99, 1.0]) within group (order by extract(epoch from started_at - scheduled_for)) as p
from attempts where scheduled_for = $1 or ($1 is null and scheduled_for <> $2)

-- name: fired
-- When the last run of an instant was born, and when the last one had ended, in seconds after it.
select extract(epoch from (select max(fired_at) from runs where scheduled_for = $1) - $1)::float8 as fired,
       extract(epoch from (select max(finished_at) from attempts where scheduled_for = $1) - $1)::float8 as done

-- name: progress
select (select count(*) from runs) as runs, (select count(*) from attempts where ends_as is not null) as ended

-- name: bytes
select sum(pg_total_relation_size(c.oid))::float8 from pg_class c
where c.relnamespace = 'bellringer'::regnamespace and (c.relname like 'runs%' or c.relname like 'attempts%') and c.relkind in ('r', 'p')

-- name: wal
select wal_bytes::float8 from pg_stat_wal

-- name: at_noon
select count(*) from members m join cohorts c using (shard, schedule_id) where c.next_at = $1
