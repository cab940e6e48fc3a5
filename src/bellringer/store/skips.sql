-- name: skip
select bellringer.skip($1, $2, $3, $4, $5, $6)

-- name: unskip
select bellringer.unskip($1, $2, $3)

-- name: list
-- Those to come, the next first.
select job_id, at, who, reason, made_at from skips
where job_id = $1 and tenant_id = $2 and at > coalesce($3, bellringer.now()) order by at limit $4
