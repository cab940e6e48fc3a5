"""Runs that a scheduler and a worker would have recorded in the past."""

from __future__ import annotations

from typing import Final

# $1: id of the job, $2: scheduled time, $3: final state, dead or succeeded.
INSERT_RUN: Final = """
with run as (
  insert into bellringer.runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard,
                               pool_id, priority, cause, initial_state)
  select job_id, $2, 0, $2, 1, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', 'queued'
  from bellringer.jobs where job_id = $1::text::uuid)
insert into bellringer.attempts (job_id, scheduled_for, slot, finished_at, tenant_id, attempt, outcome, ends_as)
select job_id, $2, 0, $2, tenant_id, 1, case when $3 = 'dead' then 'failed' else 'ok' end::bellringer.outcome,
       $3::text::bellringer.run_state
from bellringer.jobs where job_id = $1::text::uuid
"""
