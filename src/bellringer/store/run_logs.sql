-- Log lines of runs.

-- name: after
-- The matching lines among the next $6, and the last line that was read.
with seen as materialized (
  select attempt, line, at, level, message, fields, coalesce(source, 'ctx') as source from logs
  where job_id = $1 and scheduled_for = $2 and slot = $3 and line > $4
  order by line limit $6),
kept as (
  select * from seen
  where ($7::text[] is null or level = any ($7)) and ($8::integer is null or attempt = $8)
    and ($9::text is null or position(lower($9) in lower(message)) > 0)
    and ($10::text[] is null or exists (
      select 1 from unnest($10) wanted
      where source = wanted or starts_with(source, wanted || ':') or starts_with(source, wanted || '.')))
    and ($11::timestamptz is null or at >= $11)
  order by line limit $5)
select kept.*, page.stop, page.scanned from (select max(line) as stop, count(*) as scanned from seen) page
left join kept on true
order by kept.line

-- name: tail
-- The last matching lines, among the last $5.
select *
from (
  select *
  from (
    select attempt, line, at, level, message, fields, coalesce(source, 'ctx') as source from logs
    where job_id = $1 and scheduled_for = $2 and slot = $3
    order by line desc limit $5) line
  where ($6::text[] is null or level = any ($6)) and ($7::integer is null or attempt = $7)
    and ($8::text is null or position(lower($8) in lower(message)) > 0)
    and ($9::text[] is null or exists (
      select 1 from unnest($9) wanted
      where source = wanted or starts_with(source, wanted || ':') or starts_with(source, wanted || '.')))
    and ($10::timestamptz is null or at >= $10)
  order by line desc limit $4) newest
order by line
