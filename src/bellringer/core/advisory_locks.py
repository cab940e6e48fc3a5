"""Spaces of PostgreSQL advisory locks: the first key of a lock says what the second key identifies.

SQL files use the same names in capitals with the prefix `LOCK_` (`LOCK_SHARD`); see `store/sql_names.py`.
"""

from __future__ import annotations

from enum import IntEnum


class AdvisoryLock(IntEnum):
    MIGRATION = 75  # 0: one `bellringer migrate` at a time
    PARTITIONS = 76  # 0: one process creates the partitions of a day
    SHARD = 77  # shard: exclusive for a tick, shared for changes of jobs
    LIMIT = 78  # limits.key_id: one claim counts the runs of a limit
    RECOUNT = 79  # shard: one recount of cohort sizes
    TENANT_CAP = 80  # tenant: one claim counts the runs of a tenant that has a cap
    IDEMPOTENCY = 81  # hash of tenant, route and key: one request with an Idempotency-Key
    AUDIT_SEAL = 82  # 0: one process seals the audit
    QUOTA = 83  # tenant: one transaction counts against the quotas of a tenant
    TENANT_ROOM = 84  # tenant: one transaction counts freezes, operations, secrets or webhook endpoints of a tenant
    API_KEYS = 86  # tenant: one transaction adds API keys to a tenant
    TASK_NAMES = 87  # tenant: one transaction counts the task names that a tenant has invented
    POOL = 88  # pool: one claim from a pool that has a concurrency limit or a rate
    LEADER = 89  # 0: held by the leader for as long as its session lives
    SEND = 90  # hash of a run's id: a repeated send waits until the earlier call with the same ids has ended
    FOLLOWERS = 91  # tenant: one registration checks that no job starts after itself
    FOLLOWER_RUN = 92  # hash of a job's id: one transaction creates runs of a job that starts after another
