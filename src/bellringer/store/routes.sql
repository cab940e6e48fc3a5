-- Jobs whose pool nobody named, and where their runs bring them.

-- name: under_way
select job_id from bellringer.under_way_since($1, $2, $3) j (job_id)

-- name: learned
-- Jobs that their runs have brought to the pool for long ones, by their ids.
select j.job_id from jobs j where j.learned_at is not null and j.deleted_at is null and j.job_id > $1 order by j.job_id limit $2

-- name: routed
select job_id, tenant_id, revision, is_long, served from bellringer.routed_of($1, $2, $3)

-- name: reroute
select bellringer.reroute($1, $2, $3, $4, $5, $6)
