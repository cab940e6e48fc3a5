"""The routes of the API: one entry per operation, shared by the server and the client.

The server registers an endpoint for every route (`api/endpoint_table.py`), and the client derives a method from it
(`client.calls`). The name of a route is its OpenAPI operation id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from types import NoneType
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from bellringer.wire.access import (
    ApiKey,
    ApiKeyPage,
    KeyRequest,
    KeyRotation,
    Limits,
    NewApiKey,
    Objective,
    Tenant,
    TenantPage,
    TenantPatch,
    TenantRequest,
    TenantUsage,
    Whoami,
)
from bellringer.wire.agenda import Agenda
from bellringer.wire.apps import ActivateRequest, AppDetails, AppPage
from bellringer.wire.audit import AuditEntry, AuditPage, AuditSeals
from bellringer.wire.backfills import Backfill, BackfillPage, BackfillPlan, BackfillRequest
from bellringer.wire.calendars import (
    Calendar,
    CalendarPage,
    CalendarRequest,
    Freeze,
    FreezePage,
    FreezePatch,
    FreezeRequest,
    Lifted,
)
from bellringer.wire.checkins import Checkin, CheckinPage, CheckinRequest, PingPage, PingReceived
from bellringer.wire.cluster import (
    Cluster,
    DatabaseHealth,
    LeaseMoves,
    Leases,
    Nodes,
    Regions,
    RegionsRequest,
    ShardTable,
    TzMoves,
)
from bellringer.wire.dead_letters import Bulk, DiscardedLetters, LetterGroups, Letters, LettersRequest, RestoreRequest
from bellringer.wire.events import EventPage
from bellringer.wire.job_history import Baseline, Days, JobStats, Ledger, Strips
from bellringer.wire.jobs import (
    BulkCreated,
    BulkRequest,
    Job,
    JobPage,
    JobRequest,
    PauseRequest,
    Resumed,
    ResumeRequest,
    Revision,
    RevisionPage,
    RollbackRequest,
    Skip,
    SkipPage,
    SkipRequest,
    TriggerRequest,
)
from bellringer.wire.models import Empty
from bellringer.wire.notifications import (
    Channel,
    ChannelPage,
    ChannelRequest,
    IncidentPage,
    Notification,
    NotificationPage,
    NotificationRoute,
    RoutePage,
    RouteRequest,
)
from bellringer.wire.operations import BulkPlan, Operation, OperationPage, OperationRequest
from bellringer.wire.overview import Overview, Pulse, Readiness, Settings, Version
from bellringer.wire.runs import (
    Attempt,
    Attempts,
    BulkSendRequest,
    BulkSent,
    CancelRequest,
    ExecuteRequest,
    Explanation,
    Lines,
    ReplayRequest,
    Result,
    Run,
    RunCounts,
    RunPage,
    Waited,
    WaitRequest,
)
from bellringer.wire.schedules import DryRun, Forecast, ParsedSchedule, ParseRequest, Preview, PreviewRequest
from bellringer.wire.secrets import Secret, SecretPage, SecretRequest
from bellringer.wire.verify import VerifyLine
from bellringer.wire.webhooks import (
    DeliveryPage,
    RotateRequest,
    Webhook,
    WebhookDelivery,
    WebhookPage,
    WebhookPatch,
    WebhookRequest,
)
from bellringer.wire.workers import (
    Pool,
    PoolPage,
    PoolRequest,
    TaskInfo,
    TaskItem,
    TaskPage,
    TaskPauseRequest,
    TaskResumeRequest,
    WorkerInfo,
    Workers,
)
from bellringer.wire.workflows import (
    Graph,
    GraphDifference,
    GraphVersions,
    MarkNodeRequest,
    NodePage,
    NodesChanged,
    RetryNodesRequest,
    RunGraph,
    Signalled,
    SignalRequest,
    StartWorkflowRequest,
    WorkflowPage,
)

R = TypeVar("R")
T = TypeVar("T")

PREFIX: Final = "/api/v1"
BODY_LIMIT: Final = 1024 * 1024  # bytes
BULK_LIMIT: Final = 16 * 1024 * 1024  # bytes
MOST_JOBS: Final = 10_000  # in one request to create jobs
MOST_SENDS: Final = 10_000  # in one request to run tasks

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"
TEXT: Final = "text/plain"

_PATH_PARAMETER: Final = re.compile(r"{(\w+)}")


class Route(Generic[T]):
    """One operation of the API: a method and a path, the request body that it accepts, and its responses by status.

    `responses` holds a response type, several of them, or other media types as text; None stands for no content.
    `response` is the one that the Python client decodes. `tag` groups routes in the documentation, and API keys can be
    restricted to tags.
    """

    name: str

    def __init__(
        self,
        tag: str,
        method: str,
        path: str,
        response: type[T],
        *,
        status: int | tuple[int, ...] = 200,
        responses: Mapping[int, Any] | None = None,
        body: type[msgspec.Struct] | None = None,
        body_optional: bool = False,
        body_limit: int = BODY_LIMIT,
        media: Sequence[str] | None = None,
        prefix: str = PREFIX,
    ) -> None:
        self.tag = tag
        self.method = method
        self.path = prefix + path
        self.response = response
        statuses = status if isinstance(status, tuple) else (status,)
        self.responses = responses or dict.fromkeys(statuses, None if response is NoneType else response)
        self.body = body
        self.body_optional = body_optional
        self.body_limit = body_limit
        self.media = media or ((MERGE_PATCH, JSON) if method == "PATCH" else (JSON,))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Route {self.method} {self.path}>"

    def returning(self, response: type[R]) -> Route[R]:
        """This route for callers whose request leads to another of its response types."""
        other = cast("Route[R]", copy(self))
        other.response = response
        return other

    @property
    def path_parameters(self) -> Sequence[str]:
        return _PATH_PARAMETER.findall(self.path)


class Routes:
    """All routes by name. A route with a fixed last segment wins over one with a parameter in its place."""

    jobs = Route("jobs", "GET", "/jobs", JobPage)
    create_job = Route("jobs", "POST", "/jobs", Job, status=202, body=JobRequest)
    execute = Route("runs", "POST", "/jobs/execute", Run, status=(200, 202), body=ExecuteRequest)
    create_jobs = Route(
        "jobs",
        "POST",
        "/jobs/bulk",
        BulkCreated,
        status=(201, 207),
        body=BulkRequest,
        media=(JSON, NDJSON),
        body_limit=BULK_LIMIT,
    )
    strips = Route("jobs", "GET", "/jobs/strips", Strips)
    job = Route("jobs", "GET", "/jobs/{id}", Job, responses={200: Job, 304: None})
    put_job = Route("jobs", "PUT", "/jobs/{id}", Job, status=(200, 201), body=JobRequest)
    patch_job = Route("jobs", "PATCH", "/jobs/{id}", Job, responses={200: Job | DryRun}, body=JobRequest)
    delete_job = Route("jobs", "DELETE", "/jobs/{id}", NoneType, status=204)
    skips = Route("jobs", "GET", "/jobs/{id}/skip", SkipPage)
    skip = Route("jobs", "POST", "/jobs/{id}/skip", Skip, body=SkipRequest)
    unskip = Route("jobs", "DELETE", "/jobs/{id}/skip", NoneType, status=204)
    revisions = Route("jobs", "GET", "/jobs/{id}/revisions", RevisionPage)
    revision = Route("jobs", "GET", "/jobs/{id}/revisions/{n}", Revision)
    rollback = Route("jobs", "POST", "/jobs/{id}/rollback", Job, body=RollbackRequest)
    pause = Route("jobs", "POST", "/jobs/{id}/pause", Job, body=PauseRequest, body_optional=True)
    resume = Route("jobs", "POST", "/jobs/{id}/resume", Resumed, body=ResumeRequest, body_optional=True)
    trigger = Route("jobs", "POST", "/jobs/{id}/run", Run, status=202, body=TriggerRequest, body_optional=True)
    job_runs = Route("runs", "GET", "/jobs/{id}/runs", RunPage)
    why = Route("jobs", "GET", "/jobs/{id}/why", Explanation)
    baseline = Route("jobs", "GET", "/jobs/{id}/baseline", Baseline)
    ledger = Route("jobs", "GET", "/jobs/{id}/ledger", Ledger)
    job_days = Route("jobs", "GET", "/jobs/{id}/days", Days)
    job_stats = Route("jobs", "GET", "/jobs/{id}/stats", JobStats)
    job_graph = Route("jobs", "GET", "/jobs/{id}/graph", Graph)
    graph_versions = Route("jobs", "GET", "/jobs/{id}/graph/versions", GraphVersions)
    graph_difference = Route("jobs", "GET", "/jobs/{id}/graph/difference", GraphDifference)
    workflows = Route("jobs", "GET", "/workflows", WorkflowPage)
    apps = Route("jobs", "GET", "/apps", AppPage)
    app = Route("jobs", "GET", "/apps/{name}", AppDetails)
    activate_app = Route("jobs", "POST", "/apps/{name}/activate", AppDetails, body=ActivateRequest)
    start_workflow = Route("runs", "POST", "/workflows/runs", Run, status=(200, 202), body=StartWorkflowRequest)
    runs = Route("runs", "GET", "/runs", RunPage)
    send_many = Route(
        "runs",
        "POST",
        "/runs/bulk",
        BulkSent,
        status=(202, 207),
        body=BulkSendRequest,
        media=(JSON, NDJSON),
        body_limit=BULK_LIMIT,
    )
    wait_runs = Route("runs", "POST", "/runs/wait", Waited, status=(200, 202), body=WaitRequest)
    run_counts = Route("runs", "GET", "/runs/counts", RunCounts)
    run = Route("runs", "GET", "/runs/{id}", Run)
    cancel = Route("runs", "POST", "/runs/{id}/cancel", Run, status=(200, 202), body=CancelRequest, body_optional=True)
    retry = Route("runs", "POST", "/runs/{id}/retry", Run, status=202, body=Empty, body_optional=True)
    replay = Route("runs", "POST", "/runs/{id}/replay", Run, status=202, body=ReplayRequest, body_optional=True)
    wait_run = Route("runs", "GET", "/runs/{id}/wait", Run, status=(200, 202))
    result = Route("runs", "GET", "/runs/{id}/result", Result)
    attempts = Route("runs", "GET", "/runs/{id}/attempts", Attempts)
    attempt = Route("runs", "GET", "/runs/{id}/attempts/{number}", Attempt)
    logs = Route("runs", "GET", "/runs/{id}/logs", Lines, responses={200: (Lines, NDJSON, TEXT, SSE)})
    explain = Route("runs", "GET", "/runs/{id}/explain", Explanation)
    run_graph = Route("runs", "GET", "/runs/{id}/graph", RunGraph)
    run_nodes = Route("runs", "GET", "/runs/{id}/nodes", NodePage)
    node_why = Route("runs", "GET", "/runs/{id}/nodes/why", Explanation)
    retry_nodes = Route(
        "runs", "POST", "/runs/{id}/nodes/retry", NodesChanged, status=202, body=RetryNodesRequest, body_optional=True
    )
    mark_node = Route("runs", "POST", "/runs/{id}/nodes/mark", NodesChanged, body=MarkNodeRequest)
    signal = Route("runs", "POST", "/runs/{id}/signals/{name}", Signalled, body=SignalRequest, body_optional=True)
    dead_letters = Route("dead letters", "GET", "/dead-letters", Letters, responses={200: Letters | LetterGroups})
    redrive = Route(
        "dead letters",
        "POST",
        "/dead-letters/redrive",
        Bulk,
        responses={200: Bulk, 202: Operation},
        body=LettersRequest,
    )
    discard = Route(
        "dead letters",
        "POST",
        "/dead-letters/discard",
        Bulk,
        responses={200: Bulk, 202: Operation},
        body=LettersRequest,
    )
    discarded = Route("dead letters", "GET", "/dead-letters/discarded", DiscardedLetters)
    restore_discarded = Route("dead letters", "POST", "/dead-letters/restore", Bulk, body=RestoreRequest)
    bulk = Route(
        "operations", "POST", "/bulk", Operation, responses={200: BulkPlan, 202: Operation}, body=OperationRequest
    )
    operations = Route("operations", "GET", "/operations", OperationPage)
    operation = Route("operations", "GET", "/operations/{id}", Operation)
    abort_operation = Route("operations", "POST", "/operations/{id}/abort", Operation, body=Empty, body_optional=True)
    revert_operation = Route(
        "operations", "POST", "/operations/{id}/revert", Operation, status=202, body=Empty, body_optional=True
    )
    events = Route("events", "GET", "/events", EventPage, responses={200: (EventPage, SSE)})
    audit = Route("audit", "GET", "/audit", AuditPage)
    audit_export = Route("audit", "GET", "/audit/export", AuditEntry, responses={200: NDJSON})
    verify = Route("audit", "GET", "/verify", VerifyLine, responses={200: NDJSON})
    audit_seals = Route("audit", "GET", "/audit/seals", AuditSeals)
    backfills = Route("backfills", "GET", "/backfills", BackfillPage)
    start_backfill = Route(
        "backfills", "POST", "/backfills", Backfill, responses={200: BackfillPlan, 202: Backfill}, body=BackfillRequest
    )
    backfill = Route("backfills", "GET", "/backfills/{id}", Backfill)
    pause_backfill = Route("backfills", "POST", "/backfills/{id}/pause", Backfill, body=Empty, body_optional=True)
    resume_backfill = Route("backfills", "POST", "/backfills/{id}/resume", Backfill, body=Empty, body_optional=True)
    cancel_backfill = Route(
        "backfills", "POST", "/backfills/{id}/cancel", Backfill, body=CancelRequest, body_optional=True
    )
    agenda = Route("schedules", "GET", "/calendar", Agenda)
    calendars = Route("calendars", "GET", "/calendars", CalendarPage)
    calendar = Route("calendars", "GET", "/calendars/{name}", Calendar)
    put_calendar = Route("calendars", "PUT", "/calendars/{name}", Calendar, body=CalendarRequest)
    delete_calendar = Route("calendars", "DELETE", "/calendars/{name}", NoneType, status=204)
    webhooks = Route("webhooks", "GET", "/webhook-endpoints", WebhookPage)
    create_webhook = Route("webhooks", "POST", "/webhook-endpoints", Webhook, status=201, body=WebhookRequest)
    webhook = Route("webhooks", "GET", "/webhook-endpoints/{id}", Webhook)
    patch_webhook = Route("webhooks", "PATCH", "/webhook-endpoints/{id}", Webhook, body=WebhookPatch)
    delete_webhook = Route("webhooks", "DELETE", "/webhook-endpoints/{id}", NoneType, status=204)
    rotate_webhook = Route(
        "webhooks", "POST", "/webhook-endpoints/{id}/rotate-secret", Webhook, body=RotateRequest, body_optional=True
    )
    test_webhook = Route(
        "webhooks", "POST", "/webhook-endpoints/{id}/test", WebhookDelivery, status=202, body=Empty, body_optional=True
    )
    deliveries = Route("webhooks", "GET", "/webhook-endpoints/{id}/deliveries", DeliveryPage)
    replay_delivery = Route(
        "webhooks", "POST", "/deliveries/{id}/replay", WebhookDelivery, status=202, body=Empty, body_optional=True
    )
    secrets = Route("secrets", "GET", "/secrets", SecretPage)
    secret = Route("secrets", "GET", "/secrets/{name}", Secret)
    put_secret = Route("secrets", "PUT", "/secrets/{name}", Secret, body=SecretRequest)
    delete_secret = Route("secrets", "DELETE", "/secrets/{name}", NoneType, status=204)
    notification_channels = Route("notifications", "GET", "/notifications/channels", ChannelPage)
    notification_channel = Route("notifications", "GET", "/notifications/channels/{name}", Channel)
    put_notification_channel = Route(
        "notifications", "PUT", "/notifications/channels/{name}", Channel, status=(200, 201), body=ChannelRequest
    )
    delete_notification_channel = Route(
        "notifications", "DELETE", "/notifications/channels/{name}", NoneType, status=204
    )
    test_notification_channel = Route(
        "notifications",
        "POST",
        "/notifications/channels/{name}/test",
        Notification,
        status=202,
        body=Empty,
        body_optional=True,
    )
    notification_routes = Route("notifications", "GET", "/notifications/routes", RoutePage)
    notification_route = Route("notifications", "GET", "/notifications/routes/{name}", NotificationRoute)
    put_notification_route = Route(
        "notifications", "PUT", "/notifications/routes/{name}", NotificationRoute, status=(200, 201), body=RouteRequest
    )
    delete_notification_route = Route("notifications", "DELETE", "/notifications/routes/{name}", NoneType, status=204)
    notification_history = Route("notifications", "GET", "/notifications/history", NotificationPage)
    notification_incidents = Route("notifications", "GET", "/notifications/incidents", IncidentPage)
    checkins = Route("checkins", "GET", "/checkins", CheckinPage)
    checkin = Route("checkins", "GET", "/checkins/{name}", Checkin)
    put_checkin = Route("checkins", "PUT", "/checkins/{name}", Checkin, status=(200, 201), body=CheckinRequest)
    delete_checkin = Route("checkins", "DELETE", "/checkins/{name}", NoneType, status=204)
    pause_checkin = Route("checkins", "POST", "/checkins/{name}/pause", Checkin, body=Empty, body_optional=True)
    resume_checkin = Route("checkins", "POST", "/checkins/{name}/resume", Checkin, body=Empty, body_optional=True)
    rotate_checkin = Route("checkins", "POST", "/checkins/{name}/rotate", Checkin, body=Empty, body_optional=True)
    checkin_pings = Route("checkins", "GET", "/checkins/{name}/pings", PingPage)
    ping = Route("checkins", "GET", "/ping/{token}", PingReceived, prefix="")
    post_ping = Route("checkins", "POST", "/ping/{token}", PingReceived, prefix="")
    ping_outcome = Route("checkins", "GET", "/ping/{token}/{outcome}", PingReceived, prefix="")
    post_ping_outcome = Route("checkins", "POST", "/ping/{token}/{outcome}", PingReceived, prefix="")
    freezes = Route("freezes", "GET", "/freezes", FreezePage)
    create_freeze = Route("freezes", "POST", "/freezes", Freeze, status=201, body=FreezeRequest)
    freeze = Route("freezes", "GET", "/freezes/{id}", Freeze)
    patch_freeze = Route("freezes", "PATCH", "/freezes/{id}", Freeze, body=FreezePatch)
    lift_freeze = Route("freezes", "DELETE", "/freezes/{id}", Lifted)
    api_keys = Route("access", "GET", "/api-keys", ApiKeyPage)
    create_api_key = Route("access", "POST", "/api-keys", NewApiKey, status=201, body=KeyRequest)
    api_key = Route("access", "GET", "/api-keys/{id}", ApiKey)
    revoke_api_key = Route("access", "DELETE", "/api-keys/{id}", NoneType, status=204)
    rotate_api_key = Route(
        "access", "POST", "/api-keys/{id}/rotate", NewApiKey, status=201, body=KeyRotation, body_optional=True
    )
    installation_keys = Route("access", "GET", "/installation-keys", ApiKeyPage)
    create_installation_key = Route("access", "POST", "/installation-keys", NewApiKey, status=201, body=KeyRequest)
    installation_key = Route("access", "GET", "/installation-keys/{id}", ApiKey)
    revoke_installation_key = Route("access", "DELETE", "/installation-keys/{id}", NoneType, status=204)
    rotate_installation_key = Route(
        "access", "POST", "/installation-keys/{id}/rotate", NewApiKey, status=201, body=KeyRotation, body_optional=True
    )
    own_tenant = Route("access", "GET", "/tenant", Tenant)
    tenants = Route("access", "GET", "/tenants", TenantPage)
    create_tenant = Route("access", "POST", "/tenants", Tenant, status=201, body=TenantRequest)
    tenant = Route("access", "GET", "/tenants/{name}", Tenant)
    patch_tenant = Route("access", "PATCH", "/tenants/{name}", Tenant, body=TenantPatch)
    tenant_usage = Route("access", "GET", "/tenants/{name}/usage", TenantUsage)
    whoami = Route("service", "GET", "/whoami", Whoami)
    limits = Route("service", "GET", "/limits", Limits)
    tasks = Route("tasks", "GET", "/tasks", TaskPage)
    task = Route("tasks", "GET", "/tasks/{name}", TaskInfo)
    pause_task = Route("tasks", "POST", "/tasks/{name}/pause", TaskItem, body=TaskPauseRequest, body_optional=True)
    resume_task = Route("tasks", "POST", "/tasks/{name}/resume", TaskItem, body=TaskResumeRequest, body_optional=True)
    pools = Route("pools", "GET", "/pools", PoolPage)
    pool = Route("pools", "GET", "/pools/{name}", Pool)
    put_pool = Route("pools", "PUT", "/pools/{name}", Pool, body=PoolRequest)
    workers = Route("workers", "GET", "/workers", Workers)
    worker = Route("workers", "GET", "/workers/{id}", WorkerInfo)
    quiet_worker = Route(
        "workers", "POST", "/workers/{id}/quiet", WorkerInfo, status=202, body=Empty, body_optional=True
    )
    stop_worker = Route("workers", "POST", "/workers/{id}/stop", WorkerInfo, status=202, body=Empty, body_optional=True)
    cluster = Route("cluster", "GET", "/cluster", Cluster)
    nodes = Route("cluster", "GET", "/cluster/nodes", Nodes)
    shards = Route("cluster", "GET", "/cluster/shards", ShardTable)
    leases = Route("cluster", "GET", "/cluster/leases", Leases)
    regions = Route("cluster", "GET", "/cluster/regions", Regions)
    put_regions = Route("cluster", "PUT", "/cluster/regions", Regions, body=RegionsRequest)
    lease_moves = Route("cluster", "GET", "/cluster/moves", LeaseMoves)
    database_health = Route("cluster", "GET", "/cluster/database", DatabaseHealth)
    tz_moves = Route("cluster", "GET", "/cluster/tz-moves", TzMoves)
    forecast = Route("schedules", "GET", "/forecast", Forecast)
    objective = Route("tenants", "GET", "/objective", Objective)
    preview = Route("schedules", "POST", "/schedules/preview", Preview, body=PreviewRequest)
    parse_schedule = Route("schedules", "POST", "/schedules/parse", ParsedSchedule, body=ParseRequest)
    pulse = Route("overview", "GET", "/pulse", Pulse, responses={200: (Pulse, SSE)})
    overview = Route("overview", "GET", "/overview", Overview)
    settings = Route("service", "GET", "/settings", Settings)
    version = Route("service", "GET", "/version", Version)
    get_healthz = Route("service", "GET", "/healthz", Readiness, status=(200, 503), prefix="")
    ready = Route("service", "GET", "/readyz", Readiness, status=(200, 503), prefix="")


def all_routes() -> Iterator[Route[Any]]:
    return (route for route in vars(Routes).values() if isinstance(route, Route))
