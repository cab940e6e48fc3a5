-- Retention by tenant, job and state.

-- name: rules
select tenant_id, name, retention::text as retention from tenants where retention <> '{}' order by tenant_id

-- name: set
update tenants set retention = $2::jsonb where name = $1 returning tenant_id

-- name: progress
select day, rules, next_at = '-infinity' as is_open, after_job, after_at, after_slot, batch_id from trimmed_days
where day = any ($1::date[])

-- name: begin
insert into trimmed_days (day, rules, next_at, batch_id) values ($1, $2, '-infinity', $3)
on conflict (day) do update
set rules = excluded.rules, next_at = '-infinity', after_job = null, after_at = null, after_slot = null,
    batch_id = excluded.batch_id

-- name: open_batch
select bellringer.open_trim_batch($1)

-- name: trim
select o_job, o_at, o_slot, o_read, o_deleted from bellringer.trim_day($1, $2, $3, $4, $5, $6, $7, $8)

-- name: move
update trimmed_days set after_job = $2, after_at = $3, after_slot = $4 where day = $1

-- name: finish
with ended as (update trimmed_days set next_at = 'infinity' where day = $1 returning batch_id)
update archive_batches batch set state = 'open' from ended
where batch.batch_id = ended.batch_id and batch.state = 'filling'

-- name: forget
delete from trimmed_days where day < $1

-- name: is_empty
select not exists (select 1 from runs where scheduled_for >= $1 and scheduled_for < $2)
