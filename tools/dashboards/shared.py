"""Queries, variables and panels that several dashboards share.

Every API server reports the same gauges of the database, so `max` selects one of them; counters and histograms are
counted by each process, so they are summed up.
"""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Panel, Query, Variable

ON: Final = '{instance=~"$instance"}'
IN_POOL: Final = '{pool=~"$pool"}'
OF_TENANT: Final = '{tenant=~"$tenant"}'
EVERY: Final = "[$__rate_interval]"

INSTANCE: Final = Variable(name="instance", label="Instance", metric="bellringer_loop_age_seconds")
POOL: Final = Variable(name="pool", label="Pool", metric="bellringer_pool_slots")
TENANT: Final = Variable(name="tenant", label="Tenant", metric="bellringer_tenant_runs")
TASK: Final = Variable(name="task", label="Task", metric="bellringer_attempts_total")


def rate(counter: str, *by: str, labels: str = ON) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({counter}{labels}{EVERY}))"


def quantile(share: float, histogram: str, *by: str, labels: str = ON) -> str:
    grouped = ", ".join(("le", *by))
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({histogram}_bucket{labels}{EVERY})))"


def quantiles(histogram: str, labels: str = ON) -> list[Query]:
    return [
        Query(expr=quantile(share, histogram, labels=labels), legend=f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)
    ]


FAILED: Final = 'outcome=~"failed|timed_out|lost",instance=~"$instance"'
FAILURE_SHARE: Final = (
    f"sum(rate(bellringer_attempts_total{{{FAILED}}}{EVERY}))"
    f" / clamp_min(sum(rate(bellringer_attempts_total{ON}{EVERY})), 0.001)"
)
POOL_USE: Final = (
    'max by (instance, purpose) ((bellringer_db_connections{state="open",instance=~"$instance"}'
    ' - ignoring(state) bellringer_db_connections{state="idle",instance=~"$instance"})'
    ' / ignoring(state) (bellringer_db_connections{state="max",instance=~"$instance"} > 0))'
)

# Panels that two dashboards show.
OVERDUE_NOW: Final = Panel(
    title="Overdue",
    description="Jobs and timers that are overdue by 10 s or more. Runbook: BellringerOverdue.",
    queries=[Query(expr="max(bellringer_overdue)", legend="overdue")],
    kind="stat",
    width=4,
    limits=(1, 100),
)
OVERDUE_OVER_TIME: Final = Panel(
    title="Overdue occurrences",
    description="Jobs and timers that are overdue by 10 s or more. More than 100 raise BellringerOverdue.",
    queries=[Query(expr="max(bellringer_overdue)", legend="overdue")],
    limits=(100,),
)
DISPATCH_HEATMAP: Final = Panel(
    title="Dispatch latency",
    description="Time from when a run may start to its start, as a histogram over all pools.",
    queries=[
        Query(
            expr=f"sum by (le) (increase(bellringer_start_lateness_seconds_bucket{ON}{EVERY}))",
            legend="{{le}}",
            heatmap=True,
        )
    ],
    kind="heatmap",
    unit="s",
    width=12,
    floor=None,
)
SATURATION: Final = Panel(
    title="Saturation of pools",
    description="Busy slots divided by all slots. Above 0.9 for long: add workers, or move tasks to another pool.",
    queries=[Query(expr=f"max by (pool) (bellringer_pool_saturation{IN_POOL})", legend="{{pool}}")],
    unit="percentunit",
    limits=(0.7, 0.9),
    ceiling=1,
)
OLDEST_LAG: Final = Panel(
    title="Oldest waiting run",
    description="Waiting time of the oldest run that waits only for a worker, by pool.",
    queries=[Query(expr=f"max by (pool) (bellringer_pool_oldest_waiting_seconds{IN_POOL})", legend="{{pool}}")],
    unit="s",
    limits=(5, 60),
)
DEAD_BY_TASK: Final = Panel(
    title="Dead letters by task",
    description="Runs that gave up and wait for a decision: `bellringer dead list`.",
    queries=[Query(expr="topk(10, max by (task) (bellringer_dead_letters))", legend="{{task}}")],
    stacked=True,
)
CONNECTIONS: Final = Panel(
    title="Connection pools in use",
    description="Connections in use divided by the maximum of the pool, by process. Alerts at 70 % and 85 %.",
    queries=[Query(expr=POOL_USE, legend="{{instance}} {{purpose}}")],
    unit="percentunit",
    limits=(0.7, 0.85),
    ceiling=1,
)
TICK_SECONDS: Final = Panel(
    title="Duration of a tick",
    description="Duration of one tick. More than 200 ms raise BellringerPollSlow.",
    queries=quantiles("bellringer_tick_seconds"),
    unit="s",
    limits=(0.05, 0.2),
)
FAILURES_BY_TASK: Final = Panel(
    title="Failures by task",
    description="Attempts that failed, timed out or were lost, a second, for the ten worst tasks.",
    queries=[
        Query(
            expr=f"topk(10, sum by (task) (rate(bellringer_attempts_total{{{FAILED}}}{EVERY})))",
            legend="{{task}}",
        )
    ],
    unit="ops",
)
RETRIES_BY_TENANT: Final = Panel(
    title="Retries by tenant",
    description="Second and later attempts of the last five minutes; `other` sums up small tenants.",
    queries=[
        Query(expr=f"topk(10, max by (tenant) (bellringer_tenant_retried_attempts{OF_TENANT}))", legend="{{tenant}}")
    ],
)
