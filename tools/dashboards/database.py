"""The dashboard of the database."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Section
from tools.dashboards.shared import CONNECTIONS, INSTANCE, ON, TICK_SECONDS, quantiles, rate

DATABASE: Final = Dashboard(
    uid="bellringer-database",
    title="Bellringer / Database",
    description="Statements, connections and caches, as seen by Bellringer. `bellringer doctor` examines the server.",
    variables=[INSTANCE],
    sections=[
        Section(
            title="Connections",
            panels=[
                Panel(
                    title="Reachable",
                    description="1 if the last scrape of the process could read the database.",
                    queries=[Query(expr=f"min by (instance) (bellringer_database_up{ON})", legend="{{instance}}")],
                    kind="stat",
                    width=24,
                    limits=(1,),
                    higher_is_better=True,
                ),
                CONNECTIONS,
                Panel(
                    title="Connections of the processes",
                    description="Open and idle connections and the maximum of the pools, over the selected processes.",
                    queries=[Query(expr=f"sum by (state) (bellringer_db_connections{ON})", legend="{{state}}")],
                ),
                Panel(
                    title="Failed background steps",
                    description="Failed iterations of background loops in five minutes: mostly statements that failed.",
                    queries=[
                        Query(expr=f"sum by (step) (increase(bellringer_step_errors_total{ON}[5m]))", legend="{{step}}")
                    ],
                    limits=(1,),
                ),
            ],
        ),
        Section(
            title="Hot statements",
            panels=[
                TICK_SECONDS,
                Panel(
                    title="Duration of a claim",
                    description="More than 50 ms: look for dead rows and long transactions with `bellringer doctor`.",
                    queries=quantiles("bellringer_claim_seconds"),
                    unit="s",
                    limits=(0.05, 0.2),
                ),
                Panel(
                    title="Duration of settling a batch",
                    description="A batch holds the attempts that ended in the meantime.",
                    queries=quantiles("bellringer_settle_seconds"),
                    unit="s",
                    limits=(0.05, 0.2),
                ),
                Panel(
                    title="Statements a second",
                    description="Ticks, claims and settled batches.",
                    queries=[
                        Query(expr=rate("bellringer_tick_seconds_count"), legend="ticks"),
                        Query(expr=rate("bellringer_claim_seconds_count"), legend="claims"),
                        Query(expr=rate("bellringer_settle_seconds_count"), legend="settled batches"),
                    ],
                    unit="ops",
                ),
                Panel(
                    title="Time spent in hot statements",
                    description="Seconds of waiting for ticks, claims and settles in a second; 1 is one connection that"
                    " is always busy.",
                    queries=[
                        Query(expr=rate("bellringer_tick_seconds_sum"), legend="ticks"),
                        Query(expr=rate("bellringer_claim_seconds_sum"), legend="claims"),
                        Query(expr=rate("bellringer_settle_seconds_sum"), legend="settles"),
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Rows of the queue",
                    description="Unfinished runs that are due, by state. The queue should be small: doctor reports dead"
                    " rows.",
                    queries=[
                        Query(expr="sum by (state) (max by (pool, state) (bellringer_queue_depth))", legend="{{state}}")
                    ],
                    stacked=True,
                ),
            ],
        ),
        Section(
            title="Server and storage",
            panels=[
                Panel(
                    title="Connections of the server",
                    description="Used and maximum connections of PostgreSQL, of all programs.",
                    queries=[Query(expr="max by (state) (bellringer_server_connections)", legend="{{state}}")],
                ),
                Panel(
                    title="Size",
                    description="Bytes of the database by part; WAL above 32 GiB raises BellringerDiskFilling.",
                    queries=[Query(expr="max by (part) (bellringer_database_bytes)", legend="{{part}}")],
                    unit="bytes",
                ),
                Panel(
                    title="Free disk",
                    description="Free share of the disk, if the data directory is on the machine of a server; otherwise"
                    " use node_exporter.",
                    queries=[
                        Query(
                            expr="min(bellringer_database_disk_free_bytes / bellringer_database_disk_bytes)",
                            legend="free",
                        )
                    ],
                    unit="percentunit",
                    limits=(0.15,),
                    higher_is_better=True,
                    ceiling=1,
                ),
                Panel(
                    title="Missing partitions",
                    description="Daily partitions of today and tomorrow that do not exist.",
                    queries=[Query(expr="max(bellringer_partitions_missing)", legend="missing")],
                    limits=(1,),
                ),
                Panel(
                    title="Audit seal",
                    description="1 if a seal of the audit log does not match. Runbook: BellringerAuditSealBroken.",
                    queries=[Query(expr="max(bellringer_audit_seal_broken)", legend="broken")],
                    limits=(1,),
                ),
                Panel(
                    title="Archive backlog",
                    description="Batches of runs that wait for the archive; only with the setting archive.",
                    queries=[Query(expr="max(bellringer_archive_backlog)", legend="batches")],
                ),
            ],
        ),
        Section(
            title="Caches",
            panels=[
                Panel(
                    title="Reads by source",
                    description="Reads of a run or a job a second: from PostgreSQL, from Redis, or shared.",
                    queries=[
                        Query(expr=rate("bellringer_cache_reads_total", "kind", "source"), legend="{{kind}} {{source}}")
                    ],
                    unit="ops",
                    width=12,
                ),
                Panel(
                    title="Failures of Redis",
                    description="Each is followed by a pause in which Redis is not used.",
                    queries=[Query(expr=f"sum(increase(bellringer_cache_failures_total{ON}[5m]))", legend="failures")],
                    width=12,
                    limits=(1,),
                ),
            ],
        ),
    ],
)
