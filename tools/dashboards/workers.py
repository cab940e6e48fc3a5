"""The dashboard of workers and pools."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import OF_BELLRINGER, Dashboard, Panel, Query, Section
from tools.dashboards.shared import (
    DEAD_BY_TASK,
    DISPATCH_HEATMAP,
    EVERY,
    FAILURES_BY_TASK,
    IN_POOL,
    INSTANCE,
    OLDEST_LAG,
    ON,
    POOL,
    SATURATION,
    TASK,
    quantile,
    rate,
)

WORKERS: Final = Dashboard(
    uid="bellringer-workers",
    title="Bellringer / Workers and pools",
    description="Slots, waiting runs, execution and the health of workers.",
    variables=[INSTANCE, POOL, TASK],
    sections=[
        Section(
            title="Pools",
            panels=[
                SATURATION,
                Panel(
                    title="Runs by state",
                    description="Waiting for a slot (ready), at the broker (sent), running (busy), or of a task that no"
                    " worker knows (unknown).",
                    queries=[
                        Query(
                            expr=f"sum by (state) (max by (pool, state) (bellringer_pool_runs{IN_POOL}))",
                            legend="{{state}}",
                        )
                    ],
                    stacked=True,
                ),
                OLDEST_LAG,
                Panel(
                    title="Slots",
                    description="Slots of all workers of the pool.",
                    queries=[Query(expr=f"max by (pool) (bellringer_pool_slots{IN_POOL})", legend="{{pool}}")],
                ),
                Panel(
                    title="Workers",
                    description="Live workers that serve the pool.",
                    queries=[Query(expr=f"max by (pool) (bellringer_pool_workers{IN_POOL})", legend="{{pool}}")],
                ),
                Panel(
                    title="Use of concurrency limits",
                    description="Active runs divided by the limit of the pool; only for pools with a limit.",
                    queries=[
                        Query(expr=f"max by (pool) (bellringer_pool_concurrency_used{IN_POOL})", legend="{{pool}}")
                    ],
                    unit="percentunit",
                    limits=(1,),
                ),
                Panel(
                    title="Blocked runs",
                    description="Runs that wait for a pause, a limit or an earlier run, by pool.",
                    queries=[
                        Query(
                            expr='max by (pool) (bellringer_queue_depth{state="blocked",pool=~"$pool"})',
                            legend="{{pool}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Unknown tasks",
                    description="Tasks with waiting runs that no live worker knows. Runbook: BellringerUnknownTasks.",
                    queries=[Query(expr=f"max by (pool) (bellringer_unknown_tasks{IN_POOL})", legend="{{pool}}")],
                    limits=(1,),
                ),
                Panel(
                    title="Unread messages of the broker",
                    description="Messages that workers have not read yet, by pool; only with Kafka.",
                    queries=[Query(expr=f"sum by (pool) (bellringer_dispatch_lag{IN_POOL})", legend="{{pool}}")],
                ),
            ],
        ),
        Section(
            title="Execution",
            panels=[
                Panel(
                    title="Claimed a second",
                    description="Attempts that workers claimed, by pool.",
                    queries=[Query(expr=rate("bellringer_claims_total", "pool", labels=IN_POOL), legend="{{pool}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Dispatch latency by pool (p99)",
                    description="Time from when a run may start to its start.",
                    queries=[
                        Query(
                            expr=quantile(0.99, "bellringer_start_lateness_seconds", "pool", labels=IN_POOL),
                            legend="{{pool}}",
                        )
                    ],
                    unit="s",
                    limits=(5,),
                ),
                Panel(
                    title="Execution time by task (p95)",
                    description="Execution time of attempts of the ten slowest tasks.",
                    queries=[
                        Query(
                            expr="topk(10, "
                            + quantile(0.95, "bellringer_run_seconds", "task", labels='{task=~"$task"}')
                            + ")",
                            legend="{{task}}",
                        )
                    ],
                    unit="s",
                ),
                FAILURES_BY_TASK,
                Panel(
                    title="Retries by task",
                    description="Attempts that are followed by a retry, a second, for the ten worst tasks.",
                    queries=[
                        Query(
                            expr="topk(10, " + rate("bellringer_retries_total", "task", labels='{task=~"$task"}') + ")",
                            legend="{{task}}",
                        )
                    ],
                    unit="ops",
                ),
                DEAD_BY_TASK,
                DISPATCH_HEATMAP,
                Panel(
                    title="Ended by deadline, returned and sent again",
                    description="Runs whose deadline passed, attempts that a worker returned without starting them, and"
                    " messages sent again, in five minutes.",
                    queries=[
                        Query(expr=f"sum(increase(bellringer_expired_total{ON}[5m]))", legend="expired"),
                        Query(expr=f"sum(increase(bellringer_returned_total{ON}[5m]))", legend="returned"),
                        Query(expr=f"sum(increase(bellringer_dispatch_resent_total{ON}[5m]))", legend="sent again"),
                    ],
                    width=12,
                ),
            ],
        ),
        Section(
            title="Health of workers",
            panels=[
                Panel(
                    title="Claims of silent workers",
                    description="Claimed runs whose worker sends no heartbeat. Runbook: BellringerManyClaimed.",
                    queries=[Query(expr="max(bellringer_silent_claims)", legend="silent")],
                    limits=(1,),
                ),
                Panel(
                    title="Stranded runs",
                    description="Claimed runs that no worker executes. Runbook: BellringerStrandedRuns.",
                    queries=[Query(expr="max by (reason) (bellringer_stranded_runs)", legend="{{reason}}")],
                    limits=(1,),
                ),
                Panel(
                    title="Attempts of lost workers",
                    description="Attempts that were settled as lost, in five minutes.",
                    queries=[Query(expr=f"sum(increase(bellringer_reaped_total{ON}[5m]))", legend="lost")],
                ),
                Panel(
                    title="Blocked event loops",
                    description="Event loops that a handler blocks now. Runbook: BellringerLoopStalled.",
                    queries=[
                        Query(expr=f"sum by (instance) (bellringer_stalled_loops{ON})", legend="{{instance}}"),
                    ],
                    limits=(1,),
                ),
                Panel(
                    title="Tasks that block the event loop",
                    description="Attempts whose coroutine blocked the event loop for a second, in an hour.",
                    queries=[
                        Query(
                            expr="topk(10, sum by (task) (increase(bellringer_blocked_loop_total[1h])))",
                            legend="{{task}}",
                        )
                    ],
                ),
                Panel(
                    title="Calls of HTTP targets",
                    description="Calls a second by status class or failure.",
                    queries=[Query(expr=rate("bellringer_egress_total", "answer"), legend="{{answer}}")],
                    unit="ops",
                    stacked=True,
                ),
                Panel(
                    title="Memory",
                    description="Resident memory by process.",
                    queries=[Query(expr=f"process_resident_memory_bytes{ON} {OF_BELLRINGER}", legend="{{instance}}")],
                    unit="bytes",
                ),
                Panel(
                    title="CPU",
                    description="Cores in use by process; one process uses about one core for Python code.",
                    queries=[
                        Query(expr=f"rate(process_cpu_seconds_total{ON}{EVERY}) {OF_BELLRINGER}", legend="{{instance}}")
                    ],
                ),
            ],
        ),
    ],
)
