"""The dashboard for the first look."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Section
from tools.dashboards.shared import (
    CONNECTIONS,
    DEAD_BY_TASK,
    DISPATCH_HEATMAP,
    EVERY,
    FAILURE_SHARE,
    FAILURES_BY_TASK,
    INSTANCE,
    OLDEST_LAG,
    ON,
    OVERDUE_NOW,
    OVERDUE_OVER_TIME,
    POOL,
    RETRIES_BY_TENANT,
    SATURATION,
    TENANT,
    quantiles,
    rate,
)

OVERVIEW: Final = Dashboard(
    uid="bellringer-overview",
    title="Bellringer / Overview",
    description="Is work fired, started and finished in time, and is any of it lost?",
    variables=[INSTANCE, POOL, TENANT],
    sections=[
        Section(
            title="Now",
            panels=[
                OVERDUE_NOW,
                Panel(
                    title="Shards without a scheduler",
                    description="Their schedules do not fire. Runbook: BellringerNoTick.",
                    queries=[Query(expr="max(bellringer_shards_free)", legend="free")],
                    kind="stat",
                    width=4,
                    limits=(1,),
                ),
                Panel(
                    title="Missed, last hour",
                    description="Occurrences that did not fire in time and will not run. Runbook: BellringerMissed.",
                    queries=[Query(expr=f"sum(increase(bellringer_missed_total{ON}[1h]))", legend="missed")],
                    kind="stat",
                    width=4,
                    limits=(1,),
                ),
                Panel(
                    title="Failed attempts",
                    description="Share of failed attempts. More than 5 % raise BellringerFailureRate.",
                    queries=[Query(expr=FAILURE_SHARE, legend="failed")],
                    unit="percentunit",
                    kind="stat",
                    width=4,
                    limits=(0.01, 0.05),
                ),
                Panel(
                    title="Dead letters",
                    description="Runs that gave up and wait for a decision. Runbook: BellringerDeadLettersGrowing.",
                    queries=[Query(expr="sum(max by (task) (bellringer_dead_letters)) or vector(0)", legend="dead")],
                    kind="stat",
                    width=4,
                    limits=(1, 100),
                ),
                Panel(
                    title="Database",
                    description="1 if the last scrape of every server could read the database.",
                    queries=[Query(expr=f"min(bellringer_database_up{ON})", legend="up")],
                    kind="stat",
                    width=4,
                    limits=(1,),
                    higher_is_better=True,
                ),
            ],
        ),
        Section(
            title="Is work fired in time?",
            panels=[
                Panel(
                    title="Polling cadence",
                    description="Queries for due work a second, by scheduler: 2 while busy, 1 while idle, 0 means that"
                    " it does not poll. Runbook: BellringerNoTick.",
                    queries=[
                        Query(expr=rate("bellringer_looks_total", "instance"), legend="{{instance}}"),
                    ],
                    unit="ops",
                ),
                OVERDUE_OVER_TIME,
                Panel(
                    title="Late starts",
                    description="Share of runs that started later than the objective allows; 0.1 % is the budget.",
                    queries=[
                        Query(
                            expr=f"sum(rate(bellringer_late_starts_total{ON}{EVERY}))"
                            f" / clamp_min(sum(rate(bellringer_starts_total{ON}{EVERY})), 0.001)",
                            legend="late",
                        )
                    ],
                    unit="percentunit",
                    limits=(0.001, 0.0144),
                ),
                Panel(
                    title="Runs created and ended",
                    description="Runs that schedules and timers created, and attempts that ended, a second.",
                    queries=[
                        Query(expr=rate("bellringer_fires_total"), legend="fired"),
                        Query(expr=rate("bellringer_claims_total"), legend="claimed"),
                        Query(expr=rate("bellringer_attempts_total"), legend="ended"),
                    ],
                    unit="ops",
                ),
            ],
        ),
        Section(
            title="Is it executed?",
            panels=[
                Panel(
                    title="Attempts by outcome",
                    description="Success and failure of attempts, a second.",
                    queries=[Query(expr=rate("bellringer_attempts_total", "outcome"), legend="{{outcome}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Share of failures",
                    description="Failed attempts divided by all. More than 5 % raise BellringerFailureRate.",
                    queries=[Query(expr=FAILURE_SHARE, legend="failed")],
                    unit="percentunit",
                    limits=(0.05,),
                    ceiling=1,
                ),
                CONNECTIONS,
                DISPATCH_HEATMAP,
                Panel(
                    title="Dispatch latency, quantiles",
                    description="Time from when a run may start to its start. A p99 above 5 s raises"
                    " BellringerDispatchSlow.",
                    queries=quantiles("bellringer_start_lateness_seconds"),
                    unit="s",
                    limits=(5,),
                    width=12,
                ),
            ],
        ),
        Section(
            title="Where is the problem?",
            panels=[
                Panel(
                    title="Due runs by pool",
                    description="Runs that could start now, by pool.",
                    queries=[
                        Query(
                            expr='max by (pool) (bellringer_pool_runs{state="ready",pool=~"$pool"})', legend="{{pool}}"
                        )
                    ],
                    stacked=True,
                ),
                OLDEST_LAG,
                FAILURES_BY_TASK,
                RETRIES_BY_TENANT,
                SATURATION,
                Panel(
                    title="Lease expirations",
                    description="Shard leases that a scheduler lost without releasing them, and renewals that failed.",
                    queries=[
                        Query(expr=f"sum(increase(bellringer_leases_lost_total{ON}[5m]))", legend="lost"),
                        Query(
                            expr=f"sum(increase(bellringer_lease_renewal_failures_total{ON}[5m]))",
                            legend="renewals failed",
                        ),
                    ],
                ),
                DEAD_BY_TASK,
            ],
        ),
    ],
)
