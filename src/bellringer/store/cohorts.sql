-- The clock hands, and what moves them.

-- name: coming
-- The hands that strike until $2, shard by shard so that the index gives each in order; $3 bounds the answer.
select c.shard, c.schedule_id, c.next_at, c.jump_to from unnest($1::smallint[]) s (shard)
cross join lateral (
  select shard, schedule_id, next_at, jump_to from cohorts where shard = s.shard and next_at <= $2 order by next_at limit $3) c
order by c.next_at, c.shard, c.schedule_id limit $3

-- name: rung
-- Shards with a timer that is due until $2.
select s.shard from unnest($1::smallint[]) s (shard)
where exists (select 1 from timers t where t.shard = s.shard and t.due_at <= $2)

-- name: first_timers
select s.shard, (select min(t.due_at) from timers t where t.shard = s.shard) as due_at from unnest($1::smallint[]) s (shard)

-- name: tick
select fired, reached, cut, refused from bellringer.tick($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: jump
select reached, missed, cut, refused from bellringer.jump($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: ring
select fired, moved, strikes, refused from bellringer.ring($1, $2, $3, $4, $5)

-- name: overdue
-- Hands and timers that should have moved already; bounded, because it is for a gauge.
select (select count(*) from leases l cross join lateral (
          select 1 from cohorts c where c.shard = l.shard and c.next_at <= bellringer.now() - $1::interval limit 1000) x)
     + (select count(*) from leases l cross join lateral (
          select 1 from timers t where t.shard = l.shard and t.due_at <= bellringer.now() - $1::interval limit 1000) x)
