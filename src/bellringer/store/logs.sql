-- What handlers logged, by what a reader looks for.

-- name: after
-- Those of the next $6 lines that fit, and the last line that was looked at.
with seen as materialized (
  select attempt, line, at, level, message, fields from logs
  where job_id = $1 and scheduled_for = $2 and slot = $3 and line > $4 order by line limit $6),
kept as (
  select * from seen where ($7::text[] is null or level = any ($7)) and ($8::integer is null or attempt = $8)
    and ($9::text is null or position(lower($9) in lower(message)) > 0) order by line limit $5)
select k.*, s.stop, s.scanned from (select max(line) as stop, count(*) as scanned from seen) s left join kept k on true order by k.line

-- name: tail
-- The last that fit, of the last $5 lines.
select * from (
  select * from (
    select attempt, line, at, level, message, fields from logs
    where job_id = $1 and scheduled_for = $2 and slot = $3 order by line desc limit $5) s
  where ($6::text[] is null or level = any ($6)) and ($7::integer is null or attempt = $7)
    and ($8::text is null or position(lower($8) in lower(message)) > 0) order by line desc limit $4) t
order by line
