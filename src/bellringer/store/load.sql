-- The load of tenants and shards.

-- name: tenants
select tenant_id, tenant, ready, retrying, running, held, oldest from bellringer.tenant_loads($1, $2, $3)

-- name: retried
-- Second and later attempts that started since $1, by tenant.
select used.tenant_id, tenant.name as tenant, sum(used.retried)::bigint as retried, sum(used.started)::bigint as started
from usage used
join tenants tenant on tenant.tenant_id = used.tenant_id
where used.minute >= $1 and ($2::integer is null or used.tenant_id = $2)
group by used.tenant_id, tenant.name
order by 3 desc limit $3

-- name: shards
select shard, due_per_minute, fired from bellringer.shard_loads($1, $2)

-- name: silent_claims
select bellringer.count_silent_claims($1, $2)
