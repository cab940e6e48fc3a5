"""Client methods for access, pools, workers, the cluster, webhooks, events and the audit log."""

# The methods are declarations: `call` supplies their bodies.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bellringer.client.calls import Document, call
from bellringer.wire.access import (
    ApiKey,
    ApiKeyPage,
    Limits,
    NewApiKey,
    Objective,
    Tenant,
    TenantPage,
    TenantUsage,
    Whoami,
)
from bellringer.wire.audit import AuditEntry, AuditPage, AuditSeals
from bellringer.wire.checkins import Checkin, CheckinPage, PingPage
from bellringer.wire.cluster import Cluster, DatabaseHealth, LeaseMoves, Leases, Nodes, Regions, ShardTable, TzMoves
from bellringer.wire.events import EventPage
from bellringer.wire.notifications import (
    Channel,
    ChannelPage,
    IncidentPage,
    Notification,
    NotificationPage,
    NotificationRoute,
    RoutePage,
)
from bellringer.wire.overview import Overview, Pulse, Readiness, Settings, Version
from bellringer.wire.routes import Routes
from bellringer.wire.secrets import Secret, SecretPage
from bellringer.wire.verify import VerifyLine
from bellringer.wire.webhooks import DeliveryPage, Webhook, WebhookDelivery, WebhookPage
from bellringer.wire.workers import Pool, PoolPage, TaskInfo, TaskItem, TaskPage, WorkerInfo, Workers


class AccessCalls:
    """API keys and tenants. Methods on installation keys and on tenants need a key of the whole installation."""

    @call(Routes.whoami)
    def whoami(self) -> Whoami:
        """Return the caller's identity, role and tenant."""

    @call(Routes.limits)
    def limits(self) -> Limits:
        """Return the quotas of the caller's tenant with their use, and the limits that apply to all tenants."""

    @call(Routes.api_keys)
    def api_keys(self, *, limit: int | None = None, cursor: str | None = None) -> ApiKeyPage:
        """List the tenant's API keys, oldest first."""

    @call(Routes.api_key)
    def api_key(self, key_id: str) -> ApiKey:
        """Return an API key without its secret."""

    @call(Routes.create_api_key)
    def create_api_key(
        self, name: str, role: str, *, scopes: Sequence[str] = (), expires: str | float | None = None
    ) -> NewApiKey:
        """Create an API key. Only this response contains the secret."""

    @call(Routes.rotate_api_key)
    def rotate_api_key(
        self, key_id: str, *, grace: str | float | None = None, expires: str | float | None = None
    ) -> NewApiKey:
        """Replace an API key; the old key stays valid for the grace period."""

    @call(Routes.revoke_api_key)
    def revoke_api_key(self, key_id: str) -> None:
        """Revoke an API key."""

    @call(Routes.installation_keys)
    def installation_keys(self, *, limit: int | None = None, cursor: str | None = None) -> ApiKeyPage:
        """List the API keys of the whole installation, oldest first."""

    @call(Routes.installation_key)
    def installation_key(self, key_id: str) -> ApiKey:
        """Return an API key of the installation without its secret."""

    @call(Routes.create_installation_key)
    def create_installation_key(
        self, name: str, role: str, *, scopes: Sequence[str] = (), expires: str | float | None = None
    ) -> NewApiKey:
        """Create an API key for all tenants. Only this response contains the secret."""

    @call(Routes.rotate_installation_key)
    def rotate_installation_key(
        self, key_id: str, *, grace: str | float | None = None, expires: str | float | None = None
    ) -> NewApiKey:
        """Replace an API key of the installation; the old key stays valid for the grace period."""

    @call(Routes.revoke_installation_key)
    def revoke_installation_key(self, key_id: str) -> None:
        """Revoke an API key of the installation."""

    @call(Routes.secrets)
    def secrets(self, *, limit: int | None = None, cursor: str | None = None) -> SecretPage:
        """List secrets by name, without their values."""

    @call(Routes.secret)
    def secret(self, name: str) -> Secret:
        """Return a secret without its value."""

    @call(Routes.put_secret)
    def put_secret(
        self,
        name: str,
        value: str,
        *,
        tasks: Sequence[str] | None = None,
        origins: Sequence[str] | None = None,
        note: str | None = None,
    ) -> Secret:
        """Create or replace a secret. Omitted restrictions are kept."""

    @call(Routes.delete_secret)
    def delete_secret(self, name: str) -> None:
        """Delete a secret. Attempts that refer to it fail."""

    @call(Routes.own_tenant)
    def own_tenant(self) -> Tenant:
        """Return the caller's tenant."""

    @call(Routes.tenants)
    def tenants(self, *, limit: int | None = None, cursor: str | None = None) -> TenantPage:
        """List all tenants by name."""

    @call(Routes.tenant)
    def tenant(self, name: str) -> Tenant:
        """Return a tenant."""

    @call(Routes.create_tenant)
    def create_tenant(
        self,
        name: str,
        *,
        weight: float | None = None,
        quotas: Document | None = None,
        objective: Document | None = None,
    ) -> Tenant:
        """Create a tenant."""

    @call(Routes.patch_tenant)
    def patch_tenant(self, name: str, patch: Document) -> Tenant:
        """Change the weight, quotas or objective of a tenant, or suspend or resume it."""

    @call(Routes.tenant_usage)
    def tenant_usage(self, name: str) -> TenantUsage:
        """Return how much of its quotas a tenant uses."""


class ClusterCalls:
    """Tasks, pools, workers and scheduler nodes, which all tenants share."""

    @call(Routes.tasks)
    def tasks(self, *, limit: int | None = None, cursor: str | None = None) -> TaskPage:
        """List the tasks that workers have registered, by name."""

    @call(Routes.task)
    def task(self, name: str) -> TaskInfo:
        """Return a task with the JSON Schema of its arguments and the workers that can run it."""

    @call(Routes.pause_task)
    def pause_task(self, name: str, *, reason: str | None = None, until: str | float | None = None) -> TaskItem:
        """Pause a task for the tenant: no run of it starts, whatever created it. Running runs finish.

        `until` is an instant or a duration; without it, the pause lasts until the task is resumed.
        """

    @call(Routes.resume_task)
    def resume_task(self, name: str, *, rate: str | float | None = None) -> TaskItem:
        """Resume a paused task. `rate` limits how fast the held runs are released, such as "300/m"."""

    @call(Routes.pools)
    def pools(self, *, limit: int | None = None, cursor: str | None = None) -> PoolPage:
        """List pools by name, with their workers and waiting runs."""

    @call(Routes.pool)
    def pool(self, name: str) -> Pool:
        """Return a pool."""

    @call(Routes.put_pool)
    def put_pool(
        self,
        name: str,
        *,
        description: str = "",
        paused: bool = False,
        reason: str | None = None,
        concurrency: int | None = None,
        rate: str | float | None = None,
        timeout: str | float | None = None,
    ) -> Pool:
        """Create or replace a pool. Omitted limits are cleared; a paused pool starts no runs.

        `rate` is the number of starts per second, or text such as "300/m".
        """

    @call(Routes.workers)
    def workers(self) -> Workers:
        """List workers; live ones come first."""

    @call(Routes.worker)
    def worker(self, worker_id: int) -> WorkerInfo:
        """Return a worker."""

    @call(Routes.quiet_worker)
    def quiet_worker(self, worker_id: int) -> WorkerInfo:
        """Tell a worker to claim no more runs, and to finish those that it has."""

    @call(Routes.stop_worker)
    def stop_worker(self, worker_id: int) -> WorkerInfo:
        """Tell a worker to finish its runs within its grace period, and to exit."""

    @call(Routes.cluster)
    def cluster(self) -> Cluster:
        """Return scheduler nodes, leases, shards, and how far behind they are."""

    @call(Routes.nodes)
    def nodes(self) -> Nodes:
        """List scheduler nodes, oldest first."""

    @call(Routes.shards)
    def shards(self) -> ShardTable:
        """List all shards with their holders and next due times."""

    @call(Routes.leases)
    def leases(self) -> Leases:
        """List the leases of all shards."""

    @call(Routes.lease_moves)
    def lease_moves(
        self, *, hours: int | None = None, limit: int | None = None, cursor: str | None = None
    ) -> LeaseMoves:
        """List changes of shard holders in the last hours (6 if omitted, 48 at most), the latest first."""

    @call(Routes.database_health)
    def database_health(self) -> DatabaseHealth:
        """Return the state of the database server: connections, sizes, round trip, long transactions, partitions."""

    @call(Routes.regions)
    def regions(self) -> Regions:
        """Return the shards of each region."""

    @call(Routes.put_regions)
    def put_regions(self, regions: Mapping[str, str]) -> Regions:
        """Assign shards to regions, as {"eu": "0-31,40"}. Shards that are not listed belong to no region."""

    @call(Routes.tz_moves)
    def tz_moves(self, *, limit: int | None = None) -> TzMoves:
        """List schedules whose next occurrence moved with new time zone rules."""

    @call(Routes.settings)
    def settings(self) -> Settings:
        """List the settings of the server process that handles the request, and the source of each."""

    @call(Routes.version)
    def version(self) -> Version:
        """Return the version of the server."""

    @call(Routes.ready)
    def ready(self) -> Readiness:
        """Return whether the server can serve requests, and if not, why."""


class EventCalls:
    """The overview, events, webhooks and the audit log."""

    @call(Routes.overview)
    def overview(self, range: str | None = None) -> Overview:  # noqa: A002 - the name of the parameter in the API
        """Return the health of the tenant's jobs over 1h, 6h or 24h."""

    @call(Routes.pulse)
    def pulse(self) -> Pulse:
        """Return one number per kind of resource, which changes whenever such a resource changes."""

    @call(Routes.objective)
    def objective(self, *, window: str | None = None, scope: str | None = None) -> Objective:
        """Return the share of the tenant's runs that started in time, who used the capacity when they did not, and the
        share of missed occurrences. With the scope "installation", return those of all tenants together.
        """

    @call(Routes.events)
    def events(
        self, *, kind: str | None = None, job: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> EventPage:
        """List events such as late, missed or slow runs, newest first."""

    @call(Routes.webhooks)
    def webhooks(self, *, limit: int | None = None, cursor: str | None = None) -> WebhookPage:
        """List webhook endpoints, oldest first."""

    @call(Routes.webhook)
    def webhook(self, endpoint_id: str) -> Webhook:
        """Return a webhook endpoint."""

    @call(Routes.create_webhook)
    def create_webhook(
        self, url: str, *, kinds: Sequence[str] = (), description: str = "", secret: str | None = None
    ) -> Webhook:
        """Send events to a URL. If no secret is given, the server creates one; only this response contains it."""

    @call(Routes.patch_webhook)
    def patch_webhook(self, endpoint_id: str, patch: Document) -> Webhook:
        """Change the url, kinds or description of a webhook endpoint, or enable or disable it."""

    @call(Routes.delete_webhook)
    def delete_webhook(self, endpoint_id: str) -> None:
        """Delete a webhook endpoint."""

    @call(Routes.rotate_webhook)
    def rotate_webhook(self, endpoint_id: str, *, secret: str | None = None) -> Webhook:
        """Replace the secret of a webhook endpoint. For one day, deliveries are signed with both secrets."""

    @call(Routes.test_webhook)
    def test_webhook(self, endpoint_id: str) -> WebhookDelivery:
        """Send a test event to a webhook endpoint."""

    @call(Routes.deliveries)
    def deliveries(self, endpoint_id: str, *, limit: int | None = None, cursor: str | None = None) -> DeliveryPage:
        """List the deliveries to a webhook endpoint, newest first."""

    @call(Routes.replay_delivery)
    def replay_delivery(self, delivery_id: str) -> WebhookDelivery:
        """Send a delivery again."""

    @call(Routes.audit)
    def audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        kind: str | None = None,
        target: str | None = None,
        start: str | None = None,
        end: str | None = None,
        installation: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AuditPage:
        """List changes, newest first. `installation` selects changes that belong to no tenant."""

    @call(Routes.audit_seals)
    def audit_seals(self, *, limit: int | None = None, cursor: str | None = None) -> AuditSeals:
        """List the seals of the audit log, newest first."""


@call(Routes.audit_export)
def audit_export(
    client: object,
    *,
    who: str | None = None,
    action: str | None = None,
    kind: str | None = None,
    target: str | None = None,
    start: str | None = None,
    end: str | None = None,
    installation: bool = False,
) -> AuditEntry:
    """The request of the method `audit_export`, which reads an entry from each line of the response."""


@call(Routes.verify)
def verify(
    client: object,
    *,
    start: str | None = None,
    end: str | None = None,
    job: str | None = None,
    late_after: str | None = None,
    unstarted_after: str | None = None,
    strict: bool = False,
) -> VerifyLine:
    """The request of the method `verify`, which reads a finding or the summary from each line of the response."""


class NotificationCalls:
    """Notification channels and routes, their messages, and check-ins."""

    @call(Routes.notification_channels)
    def notification_channels(self, *, limit: int | None = None, cursor: str | None = None) -> ChannelPage:
        """List notification channels by name."""

    @call(Routes.notification_channel)
    def notification_channel(self, name: str) -> Channel:
        """Return a notification channel without its secret."""

    @call(Routes.put_notification_channel)
    def put_notification_channel(self, name: str, document: Document) -> Channel:
        """Create or replace a notification channel."""

    @call(Routes.delete_notification_channel)
    def delete_notification_channel(self, name: str) -> None:
        """Delete a notification channel."""

    @call(Routes.test_notification_channel)
    def test_notification_channel(self, name: str) -> Notification:
        """Send a test message to a notification channel."""

    @call(Routes.notification_routes)
    def notification_routes(self, *, limit: int | None = None, cursor: str | None = None) -> RoutePage:
        """List notification routes by name."""

    @call(Routes.notification_route)
    def notification_route(self, name: str) -> NotificationRoute:
        """Return a notification route."""

    @call(Routes.put_notification_route)
    def put_notification_route(self, name: str, document: Document) -> NotificationRoute:
        """Create or replace a notification route."""

    @call(Routes.delete_notification_route)
    def delete_notification_route(self, name: str) -> None:
        """Delete a notification route and its incidents."""

    @call(Routes.notification_history)
    def notification_history(
        self, *, channel: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> NotificationPage:
        """List messages with the state of their delivery, newest first."""

    @call(Routes.notification_incidents)
    def notification_incidents(
        self,
        *,
        resolved: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> IncidentPage:
        """List open incidents, newest first; with `resolved`, also resolved ones."""

    @call(Routes.checkins)
    def checkins(self, *, limit: int | None = None, cursor: str | None = None) -> CheckinPage:
        """List check-ins with their states."""

    @call(Routes.checkin)
    def checkin(self, name: str) -> Checkin:
        """Return a check-in."""

    @call(Routes.put_checkin)
    def put_checkin(
        self,
        name: str,
        schedule: Document,
        *,
        grace: str | float | None = None,
        description: str | None = None,
        tags: Sequence[str] = (),
        owner: str | None = None,
    ) -> Checkin:
        """Create or replace a check-in. Only the response that creates it contains the URL to call."""

    @call(Routes.delete_checkin)
    def delete_checkin(self, name: str) -> None:
        """Delete a check-in."""

    @call(Routes.pause_checkin)
    def pause_checkin(self, name: str) -> Checkin:
        """Pause a check-in: none is expected until it is resumed."""

    @call(Routes.resume_checkin)
    def resume_checkin(self, name: str) -> Checkin:
        """Resume a check-in."""

    @call(Routes.rotate_checkin)
    def rotate_checkin(self, name: str) -> Checkin:
        """Replace the URL of a check-in; the old one stops working."""

    @call(Routes.checkin_pings)
    def checkin_pings(self, name: str, *, limit: int | None = None, cursor: str | None = None) -> PingPage:
        """List the last pings of a check-in, newest first."""
