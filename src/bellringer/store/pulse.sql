-- name: marks
select tenant_id, runs, jobs, dead, workers, events from bellringer.marks($1)
