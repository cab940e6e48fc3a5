"""The dashboard of tenants."""

from __future__ import annotations

from typing import Final

from tools.dashboards.grafana import Dashboard, Panel, Query, Section
from tools.dashboards.shared import INSTANCE, ON, RETRIES_BY_TENANT, TENANT, quantile, rate

TENANTS: Final = Dashboard(
    uid="bellringer-tenants",
    title="Bellringer / Tenants",
    description="Load, retries and pauses by tenant. At most 50 tenants have a label; `other` sums up the rest.",
    variables=[INSTANCE, TENANT],
    sections=[
        Section(
            title="Load",
            panels=[
                Panel(
                    title="Queue depth by tenant",
                    description="Runs that could start now, for the ten largest tenants.",
                    queries=[
                        Query(
                            expr='topk(10, max by (tenant) (bellringer_tenant_runs{state="ready",tenant=~"$tenant"}))',
                            legend="{{tenant}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Running by tenant",
                    description="Runs that workers execute, for the ten largest tenants.",
                    queries=[
                        Query(
                            expr="topk(10, max by (tenant) "
                            '(bellringer_tenant_runs{state="running",tenant=~"$tenant"}))',
                            legend="{{tenant}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Share of running runs",
                    description="Running runs of a tenant divided by all: one tenant near 100 % fills the pools.",
                    queries=[
                        Query(
                            expr='max by (tenant) (bellringer_tenant_runs{state="running",tenant=~"$tenant"})'
                            " / ignoring(tenant) group_left clamp_min("
                            'sum(max by (tenant) (bellringer_tenant_runs{state="running"})), 1)',
                            legend="{{tenant}}",
                        )
                    ],
                    unit="percentunit",
                    ceiling=1,
                ),
            ],
        ),
        Section(
            title="Failures and pauses",
            panels=[
                RETRIES_BY_TENANT,
                Panel(
                    title="Waiting for a retry",
                    description="Runs whose last attempt failed and that wait for the next one, by tenant.",
                    queries=[
                        Query(
                            expr="topk(10, max by (tenant) "
                            '(bellringer_tenant_runs{state="retrying",tenant=~"$tenant"}))',
                            legend="{{tenant}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Held by paused tasks",
                    description="Runs that wait because their task is paused for the tenant.",
                    queries=[
                        Query(
                            expr='max by (tenant) (bellringer_tenant_runs{state="held",tenant=~"$tenant"})',
                            legend="{{tenant}}",
                        )
                    ],
                    stacked=True,
                ),
                Panel(
                    title="Paused tasks",
                    description="Pauses of tasks that are in force, over all tenants: `bellringer tasks list`.",
                    queries=[Query(expr="max(bellringer_paused_tasks)", legend="paused")],
                ),
                Panel(
                    title="Orphaned jobs",
                    description="Jobs that the code of their app no longer declares. Runbook: BellringerOrphanedJobs.",
                    queries=[Query(expr="max(bellringer_orphaned_jobs)", legend="orphaned")],
                    limits=(1,),
                ),
                Panel(
                    title="Rejected logins",
                    description="Requests without a valid key or token, in five minutes, by reason.",
                    queries=[
                        Query(
                            expr=f"sum by (reason) (increase(bellringer_auth_failures_total{ON}[5m]))",
                            legend="{{reason}}",
                        )
                    ],
                ),
            ],
        ),
        Section(
            title="API",
            panels=[
                Panel(
                    title="Requests by status",
                    description="Requests a second, by status code; 429 means that a rate limit refused them.",
                    queries=[Query(expr=rate("bellringer_api_requests_total", "status"), legend="{{status}}")],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    title="Time to respond (p99)",
                    description="Of the ten slowest routes.",
                    queries=[
                        Query(
                            expr="topk(10, " + quantile(0.99, "bellringer_api_request_seconds", "route") + ")",
                            legend="{{route}}",
                        )
                    ],
                    unit="s",
                    limits=(0.05, 0.5),
                ),
                Panel(
                    title="Events sent to webhooks",
                    description="Deliveries to webhook endpoints a second.",
                    queries=[Query(expr=rate("bellringer_announced_total"), legend="sent")],
                    unit="ops",
                ),
            ],
        ),
    ],
)
