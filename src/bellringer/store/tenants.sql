-- Tenants and their quotas.

-- name: by_name
select tenant_id, name, weight, quotas, objective, suspended_at, created_at from tenants where name = $1

-- name: by_id
select tenant_id, name, weight, quotas, objective, suspended_at, created_at from tenants where tenant_id = $1

-- name: list
select tenant_id, name, weight, quotas, objective, suspended_at, created_at from tenants
where $1::text is null or name > $1
order by name limit $2

-- name: add
insert into tenants (name, weight, quotas, objective)
values ($1, $2, $3, $4)
returning tenant_id, name, weight, quotas, objective, suspended_at, created_at

-- name: change
-- Null leaves a value unchanged.
update tenants
set weight = coalesce($2, weight), quotas = coalesce($3, quotas), objective = coalesce($4, objective),
    suspended_at = case when $5::boolean is null then suspended_at
                        when $5 then coalesce(suspended_at, bellringer.now()) end
where tenant_id = $1
returning tenant_id, name, weight, quotas, objective, suspended_at, created_at

-- name: payload_limit
select (quotas ->> 'payload_bytes')::bigint from tenants where tenant_id = $1

-- name: used
select coalesce(sum(jobs), 0)::bigint as jobs,
       greatest(coalesce(sum(fires_per_minute), 0), 0)::float8 as fires_per_minute,
       (select count(*) from queue run where run.tenant_id = $1 and run.worker_id is not null) as in_flight
from job_counts
where tenant_id = $1
