"""The dashboard of the schedulers."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Section
from tools.dashboards.shared import INSTANCE, ON, OVERDUE_OVER_TIME, TICK_SECONDS, quantiles, rate

SCHEDULER: Final = Dashboard(
    uid="bellringer-scheduler",
    title="Bellringer / Scheduler",
    description="Ticks, lateness, shards, leases and clocks of the schedulers.",
    variables=[INSTANCE],
    sections=[
        Section(
            title="Ticks",
            panels=[
                Panel(
                    title="Ticks a second",
                    description="Ticks that fired something, by scheduler.",
                    queries=[
                        Query(expr=rate("bellringer_tick_seconds_count", "instance"), legend="{{instance}}"),
                    ],
                    unit="ops",
                ),
                TICK_SECONDS,
                Panel(
                    title="Duration of a poll",
                    description="Query for due jobs. More than 200 ms raise BellringerPollSlow.",
                    queries=quantiles("bellringer_poll_seconds"),
                    unit="s",
                    limits=(0.05, 0.2),
                ),
                Panel(
                    title="Age of loops",
                    description="Seconds since each background loop succeeded, divided by its limit. Above 1:"
                    " BellringerLoopStalled.",
                    queries=[
                        Query(
                            expr=f"topk(10, bellringer_loop_age_seconds{ON} / bellringer_loop_limit_seconds{ON})",
                            legend="{{instance}} {{loop}}",
                        )
                    ],
                    limits=(1,),
                ),
                Panel(
                    title="Queries for due work",
                    description="Queries for upcoming due times a second, by their source (PostgreSQL or Redis).",
                    queries=[Query(expr=rate("bellringer_looks_total", "source"), legend="{{source}}")],
                    unit="ops",
                ),
                Panel(
                    title="Fired a second",
                    description="Runs that schedules and timers created, by scheduler.",
                    queries=[Query(expr=rate("bellringer_fires_total", "instance"), legend="{{instance}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Lateness of firing",
                    description="Time from the scheduled instant to the creation of the run; runs that were created"
                    " ahead count as 0.",
                    queries=quantiles("bellringer_fire_lateness_seconds"),
                    unit="s",
                    limits=(1, 5),
                ),
                OVERDUE_OVER_TIME,
            ],
        ),
        Section(
            title="Missed, late and double",
            panels=[
                Panel(
                    title="Missed occurrences",
                    description="Occurrences that will not run; each is recorded as a gap with its reason.",
                    queries=[Query(expr=f"sum(increase(bellringer_missed_total{ON}[5m]))", legend="missed in 5 min")],
                    limits=(1,),
                ),
                Panel(
                    title="Missed share of the last hour",
                    description="Missed occurrences divided by expected ones. The objective is 0.01 %.",
                    queries=[Query(expr="max(bellringer_missed_ratio)", legend="missed")],
                    unit="percentunit",
                    limits=(0.0001,),
                ),
                Panel(
                    title="Attempts that may repeat a side effect",
                    description="Second executions and their cause, in five minutes.",
                    queries=[
                        Query(
                            expr=f"sum by (cause) (increase(bellringer_duplicates_total{ON}[5m]))", legend="{{cause}}"
                        )
                    ],
                ),
                Panel(
                    title="Late runs",
                    description="Runs that were reported as late to start, in five minutes, by kind.",
                    queries=[Query(expr=f"sum by (kind) (increase(bellringer_late_total{ON}[5m]))", legend="{{kind}}")],
                ),
                Panel(
                    title="Skipped, slow and outgrown",
                    description="Jobs that skip occurrences, runs that take unusually long, and jobs that take longer"
                    " than their interval, in an hour.",
                    queries=[
                        Query(expr=f"sum(increase(bellringer_skipping_total{ON}[1h]))", legend="skipping"),
                        Query(expr=f"sum(increase(bellringer_slow_total{ON}[1h]))", legend="slow"),
                        Query(expr=f"sum(increase(bellringer_outgrown_total{ON}[1h]))", legend="outgrown"),
                    ],
                ),
                Panel(
                    title="Refused stale writes",
                    description="Writes of processes that had lost their lease. The fencing token refused them."
                    " Runbook: BellringerStaleWrites.",
                    queries=[
                        Query(
                            expr=f"sum by (writer) (increase(bellringer_stale_writes_refused_total{ON}[5m]))",
                            legend="{{writer}}",
                        )
                    ],
                    limits=(1,),
                ),
            ],
        ),
        Section(
            title="Shards, leases and clocks",
            panels=[
                Panel(
                    title="Shards by scheduler",
                    description="Shards that each scheduler holds; the sum is the number of shards.",
                    queries=[
                        Query(expr=f"sum by (instance) (bellringer_shards_held{ON})", legend="{{instance}}"),
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Shards without a scheduler",
                    description="Their schedules do not fire.",
                    queries=[Query(expr="max(bellringer_shards_free)", legend="free")],
                    limits=(1,),
                ),
                Panel(
                    title="Leases",
                    description="Leases acquired, lost without being released, and renewals that failed, in 5 minutes.",
                    queries=[
                        Query(expr=f"sum(increase(bellringer_lease_takeovers_total{ON}[5m]))", legend="acquired"),
                        Query(expr=f"sum(increase(bellringer_leases_lost_total{ON}[5m]))", legend="lost"),
                        Query(
                            expr=f"sum(increase(bellringer_lease_renewal_failures_total{ON}[5m]))",
                            legend="renewals failed",
                        ),
                    ],
                ),
                Panel(
                    title="Load of the busiest shard",
                    description="As a multiple of the mean, by due occurrences and by recent runs.",
                    queries=[Query(expr="max by (of) (bellringer_shard_skew)", legend="{{of}}")],
                    limits=(5,),
                ),
                Panel(
                    title="Busiest shards",
                    description="Runs of the last five minutes of the ten busiest shards.",
                    queries=[
                        Query(
                            expr="topk(10, max by (shard) (bellringer_shard_fired))", legend="{{shard}}", instant=True
                        )
                    ],
                    kind="table",
                ),
                Panel(
                    title="Clock skew",
                    description="Difference of each host's clock and the database's. Runbook: BellringerClockSkew.",
                    queries=[Query(expr=f"bellringer_clock_skew_seconds{ON}", legend="{{instance}}")],
                    unit="s",
                    limits=(1,),
                    floor=None,
                ),
                Panel(
                    title="Failed background steps",
                    description="Failed iterations of background loops in five minutes, by step.",
                    queries=[
                        Query(expr=f"sum by (step) (increase(bellringer_step_errors_total{ON}[5m]))", legend="{{step}}")
                    ],
                    limits=(1,),
                ),
                Panel(
                    title="Age of the oldest heartbeat",
                    description="Of live schedulers and workers. Workers are declared lost after their silence limit.",
                    queries=[Query(expr="max by (kind) (bellringer_heartbeat_age_seconds)", legend="{{kind}}")],
                    unit="s",
                    limits=(10,),
                ),
            ],
        ),
    ],
)
