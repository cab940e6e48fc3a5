-- name: change_counters
select tenant_id, runs, jobs, dead, workers, events from bellringer.change_counters($1)
