-- name: tenants
insert into tenants (name) select unnest($1::text[]) returning name, tenant_id

-- name: crowd
insert into tenants (name) select 'crowd ' || $1 || ' ' || gen_random_uuid() from generate_series(1, $1::int) returning tenant_id

-- name: ready
-- Ready runs, so many of each tenant; they are of no job.
with born as (
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause, initial_state, spec)
  select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), 0, t, $3, 0, $4, 5, 'send', 'queued', '{}'
  from unnest($1::integer[]) t cross join generate_series(1, $2::int) returning *)
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select job_id, scheduled_for, slot, scheduled_for, tenant_id, task_id, shard, pool_id, priority, cause, spec from born

-- name: queued
-- The same without their history, which a claim does not read.
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), t, $3, 0, $4, 5, 'send', '{}'
from unnest($1::integer[]) t cross join generate_series(1, $2::int)

-- name: clear
truncate queue

-- name: reads
select coalesce(sum(idx_scan + idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'bellringer'
