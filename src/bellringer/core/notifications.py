"""Decides which messages a notification route sends. Pure: takes events, incidents and the time.

An incident is the state of one group of a route. It opens with the first event, collects further ones, and is resolved
when every subject (job, task or check-in) in it has recovered. See docs/decisions/029-notifications.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from bellringer.core.quiet_hours import QuietHours

SEVERITIES: Final = ("info", "warning", "critical")
SEVERITY_OF_KIND: Final[Mapping[str, str]] = {
    "failed": "info",
    "dead": "critical",
    "recovered": "info",
    "late": "warning",
    "missed": "critical",
    "expired": "warning",
    "slow": "warning",
    "outgrown": "warning",
    "blocked_loop": "warning",
    "stranded": "critical",
    "skipping": "warning",
    "paused": "critical",
    "unknown_task": "critical",
    "unstarted": "critical",
    "task_paused": "info",
    "task_resumed": "info",
    "orphaned": "info",
    "adopted": "info",
    "overridden": "warning",
    "checkin_missed": "critical",
    "checkin_failed": "critical",
    "checkin_recovered": "info",
}
RECOVERY_KINDS: Final = frozenset({"recovered", "checkin_recovered", "task_resumed"})
# Kinds after which a recovery event follows, if they concern a job, a check-in or a task.
RECOVERABLE_KINDS: Final = frozenset(
    {"dead", "late", "missed", "skipping", "unknown_task", "unstarted", "task_paused"}
    | {"checkin_missed", "checkin_failed"}
)
GROUPINGS: Final = ("job", "task", "owner", "tenant", "route")
ALL_TENANTS: Final = "*"
MAX_SUBJECTS: Final = 50  # per incident; more are only counted
MAX_SUBJECTS_IN_MESSAGE: Final = 10
MAX_MESSAGES_PER_PASS: Final = 5  # of a route; more are merged into a digest
CLOSE_UNRECOVERABLE_AFTER: Final = timedelta(hours=1)  # without a new event
CLOSE_SILENT_AFTER: Final = timedelta(days=7)  # its job may have been deleted
MAX_ERROR_LENGTH: Final = 300  # characters
_SECRET_IN_TEXT: Final = re.compile(
    r"(://[^/?#@:\s]*:)[^\s@]+(?=@)"
    r"|\b((?:password|passwd|secret|token|api[_-]?key|authorization)\s*[=:]\s*)(?:bearer\s+)?[^\s,;&]+"
    r"|\b(bearer\s+)\S+",
    re.IGNORECASE,
)


class NotificationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event with the attributes of its job, task or check-in that routes match."""

    event_id: int
    at: datetime
    kind: str
    tenant_id: int
    tenant: str
    job_id: UUID
    job: str | None = None
    task: str | None = None
    owner: str | None = None
    tags: Sequence[str] = ()
    run_id: str | None = None
    scheduled_for: datetime
    attempt: int = 0
    error: str | None = None
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def severity(self) -> str:
        return SEVERITY_OF_KIND.get(self.kind, "warning")

    @property
    def subject_kind(self) -> str:
        if self.kind.startswith("checkin_"):
            return "checkin"
        is_of_task = self.kind.startswith("task_") or "unknown_task" in (self.kind, self.data.get("after"))
        return "task" if is_of_task or self.job is None else "job"

    @property
    def subject(self) -> str:
        """The key of the job, task or check-in that the event is about. A send belongs to its task."""
        if self.subject_kind != "task":
            return f"{self.subject_kind}:{self.job_id}"
        pool = self.data.get("pool")
        return f"task:{self.tenant_id}:{self.task_name}" + (f"@{pool}" if pool else "")

    @property
    def task_name(self) -> str | None:
        return self.data.get("task") or self.task

    @property
    def name(self) -> str:
        """The name of the subject."""
        if self.subject_kind == "checkin":
            return str(self.data.get("checkin") or self.job_id)
        return self.job if self.subject_kind == "job" and self.job else self.task_name or str(self.job_id)

    @property
    def is_recoverable(self) -> bool:
        """Whether a recovery event will follow. A dead send, for example, has none: its task may well work."""
        is_send = self.subject_kind == "task" and self.kind not in ("unknown_task", "task_paused")
        return self.kind in RECOVERABLE_KINDS and not is_send

    @property
    def lateness_seconds(self) -> float | None:
        if self.kind not in ("late", "missed", "checkin_missed"):
            return None
        due = self.data.get("due")
        return max((self.at - (datetime.fromisoformat(due) if due else self.scheduled_for)).total_seconds(), 0.0)


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job, task or check-in in trouble: the events since the incident opened, and the details of the newest."""

    kind: str
    name: str
    tenant: str
    job_id: str
    task: str | None = None
    owner: str | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    events: dict[str, int]  # by kind
    is_recoverable: bool = False
    run_id: str | None = None
    scheduled_for: datetime | None = None
    attempt: int = 0
    error: str | None = None
    lateness_seconds: float | None = None
    since: datetime
    last_at: datetime


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one group of a route; see `notification_incidents`."""

    incident_id: UUID
    route_id: int
    group_key: str
    opened_at: datetime
    resolved_at: datetime | None = None
    last_at: datetime
    severity: str
    count: int = 0
    unsent: int = 0
    subjects: Mapping[str, Subject] = msgspec.field(default_factory=dict)
    more: int = 0
    recovered: Sequence[Subject] = ()
    sent: int = 0
    sent_at: datetime | None = None
    next_at: datetime | None = None
    held: bool = False

    @property
    def is_unreported(self) -> bool:
        """Whether the incident was resolved before its first message; if trouble returns until then, it continues."""
        return self.resolved_at is not None and not self.sent and self.next_at is not None

    @property
    def closes_at(self) -> datetime:
        """When the incident is closed if nothing happens."""
        is_recoverable = any(subject.is_recoverable for subject in self.subjects.values())
        return self.last_at + (CLOSE_SILENT_AFTER if is_recoverable else CLOSE_UNRECOVERABLE_AFTER)


class RouteRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which events go to a channel, and how they are grouped and paced."""

    route_id: int
    tenant_id: int
    tenant: str
    name: str
    channel_id: int
    channel_kind: str
    tenants: Sequence[str] = ()
    kinds: Sequence[str] = ()
    severity: str = "warning"
    jobs: Sequence[str] = ()
    tags: Sequence[str] = ()
    owners: Sequence[str] = ()
    group_by: str = "job"
    wait: timedelta = timedelta(seconds=10)
    min_interval: timedelta = timedelta(minutes=5)
    repeat_after: timedelta | None = timedelta(hours=4)
    quiet: QuietHours | None = None
    recoveries: bool = True
    active_since: datetime

    def matches(self, event: NotificationEvent) -> bool:
        """Whether the event goes to this route. Recoveries follow what they recover from, so only the tenant counts."""
        if not self.sees(event.tenant_id, event.tenant) or event.at < self.active_since:
            return False
        if event.kind in RECOVERY_KINDS:
            return True
        is_wanted = event.kind in self.kinds if self.kinds else is_at_least(event.severity, self.severity)
        return (
            is_wanted
            and (not self.jobs or any(fnmatchcase(event.name, pattern) for pattern in self.jobs))
            and (not self.tags or not set(self.tags).isdisjoint(event.tags))
            and (not self.owners or event.owner in self.owners)
        )

    def sees(self, tenant_id: int, tenant: str) -> bool:
        if not self.tenants:
            return tenant_id == self.tenant_id
        return ALL_TENANTS in self.tenants or tenant in self.tenants

    def group_key(self, event: NotificationEvent) -> str:
        match self.group_by:
            case "task":
                return f"task {event.tenant_id} {event.task_name or event.subject}"
            case "owner":
                return f"owner {event.tenant_id} {event.owner or ''}"
            case "tenant":
                return f"tenant {event.tenant_id}"
            case "route":
                return "route"
        return event.subject

    @property
    def may_merge(self) -> bool:
        """PagerDuty has a state for each incident, so its messages cannot be merged."""
        return self.channel_kind != "pagerduty"


class NotificationMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in a form that every kind of channel can render; the run that delivers it holds this document."""

    reason: str  # opened, updated, repeated, resolved, digest, test
    status: str  # open or resolved
    severity: str
    title: str
    route: str = ""
    tenant: str = ""
    dedup_key: str
    opened_at: datetime
    resolved_at: datetime | None = None
    at: datetime
    count: int = 0  # events since the incident opened
    subjects: list[Subject] = msgspec.field(default_factory=list)
    more: int = 0  # further subjects
    recovered: list[Subject] = msgspec.field(default_factory=list)


class PlannedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the outbox."""

    route: RouteRules
    message: NotificationMessage
    incident_ids: Sequence[UUID] = ()


class NotificationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one route: incidents that are new or changed, and messages to send."""

    incidents: Sequence[Incident]
    messages: Sequence[PlannedMessage]


def decide(
    route: RouteRules,
    known: Iterable[Incident],
    events: Iterable[NotificationEvent],
    now: datetime,
    new_id: Callable[[], UUID],
) -> NotificationDecision:
    """Returns what changes for a route.

    `known` are the incidents that the events may concern (open ones with their group or subject, and the last closed
    one of their group), and those whose next message is due.
    """
    before = {incident.incident_id: incident for incident in known}
    after = dict(before)
    for event in events:
        if not route.matches(event):
            continue
        if event.kind in RECOVERY_KINDS:
            for incident in [i for i in after.values() if i.resolved_at is None and event.subject in i.subjects]:
                after[incident.incident_id] = _recovered(route, incident, event, now)
            continue
        changed = _with_event(route, after.values(), event, now, new_id)
        after[changed.incident_id] = changed
    messages = _send_due(route, after, now)
    return NotificationDecision(
        incidents=[i for i in after.values() if before.get(i.incident_id) != i],
        messages=messages,
    )


def _with_event(
    route: RouteRules,
    known: Iterable[Incident],
    event: NotificationEvent,
    now: datetime,
    new_id: Callable[[], UUID],
) -> Incident:
    """Returns the group's open incident, or a new one, with the event."""
    key = route.group_key(event)
    of_group = [incident for incident in known if incident.group_key == key]
    found = next((incident for incident in of_group if incident.resolved_at is None or incident.is_unreported), None)
    if found is None:
        last_sent = max((i.sent_at for i in of_group if i.sent_at is not None), default=None)
        found = Incident(
            incident_id=new_id(),
            route_id=route.route_id,
            group_key=key,
            opened_at=event.at,
            last_at=event.at,
            severity=event.severity,
            next_at=_earliest(route, now, last_sent),
        )
    subjects, more = dict(found.subjects), found.more
    if event.subject in subjects or len(subjects) < MAX_SUBJECTS:
        subjects[event.subject] = _subject(subjects.get(event.subject), event)
    else:
        more += 1
    escalates = is_at_least(event.severity, found.severity) and event.severity != found.severity
    next_at = found.next_at
    if found.sent:
        earliest = now + route.wait if escalates else _earliest(route, now, found.sent_at)
        next_at = earliest if next_at is None else min(next_at, earliest)
    elif escalates and found.held:
        next_at = now + route.wait  # what quiet hours hold back may pass now
    return replace(
        found,
        resolved_at=None,
        last_at=max(found.last_at, event.at),
        severity=event.severity if escalates else found.severity,
        count=found.count + 1,
        unsent=found.unsent + 1,
        subjects=subjects,
        more=more,
        next_at=next_at,
    )


def _earliest(route: RouteRules, now: datetime, last_sent: datetime | None) -> datetime:
    first = now + route.wait
    return first if last_sent is None else max(first, last_sent + route.min_interval)


def _recovered(route: RouteRules, incident: Incident, event: NotificationEvent, now: datetime) -> Incident:
    """Returns the incident without the subject that recovered. It is resolved if no subject remains."""
    subjects = dict(incident.subjects)
    gone = replace(subjects.pop(event.subject), last_at=event.at)
    recovered = [*incident.recovered, gone][-MAX_SUBJECTS_IN_MESSAGE:]
    if subjects:
        return replace(incident, subjects=subjects, recovered=recovered, last_at=max(incident.last_at, event.at))
    next_at = now if route.recoveries else None
    if not incident.sent:
        next_at = incident.next_at  # the only message reports the trouble and its end
    return replace(
        incident,
        subjects={},
        more=0,
        recovered=recovered,
        last_at=max(incident.last_at, event.at),
        resolved_at=event.at,
        next_at=next_at,
    )


def _subject(before: Subject | None, event: NotificationEvent) -> Subject:
    events = dict(before.events) if before else {}
    events[event.kind] = events.get(event.kind, 0) + 1
    return Subject(
        kind=event.subject_kind,
        name=event.name,
        tenant=event.tenant,
        job_id=str(event.job_id),
        task=event.task_name,
        owner=event.owner,
        tags=list(event.tags),
        events=events,
        is_recoverable=event.is_recoverable or (before is not None and before.is_recoverable),
        run_id=event.run_id or (before.run_id if before else None),
        scheduled_for=event.scheduled_for,
        attempt=event.attempt,
        error=first_line(event.error) or (before.error if before else None),
        lateness_seconds=event.lateness_seconds,
        since=before.since if before else event.at,
        last_at=event.at,
    )


def _send_due(route: RouteRules, incidents: dict[UUID, Incident], now: datetime) -> list[PlannedMessage]:
    """Returns the messages that are due, and updates their incidents."""
    sending: list[tuple[Incident, str]] = []
    for incident in [i for i in incidents.values() if i.next_at is not None and i.next_at <= now]:
        held_until = route.quiet.held_until(now, incident.severity) if route.quiet else None
        if held_until is not None:
            incidents[incident.incident_id] = replace(incident, next_at=held_until, held=True)
        elif incident.resolved_at is None and not incident.unsent and now >= incident.closes_at:
            closed = replace(incident, resolved_at=now, next_at=None)
            incidents[incident.incident_id] = closed
            if not route.may_merge:  # an open incident at PagerDuty would stay open
                sending.append((closed, "resolved"))
        else:
            reason = "resolved" if incident.resolved_at else _reason(incident)
            sending.append((incident, reason))
            incidents[incident.incident_id] = _after_message(route, incident, now)
    was_held = any(incident.held for incident, _ in sending)
    if route.may_merge and (len(sending) > MAX_MESSAGES_PER_PASS or (was_held and len(sending) > 1)):
        return [_digest(route, [incident for incident, _ in sending], now)]
    return [
        PlannedMessage(
            route=route,
            message=_message(route, incident, reason, now),
            incident_ids=(incident.incident_id,),
        )
        for incident, reason in sending
    ]


def _reason(incident: Incident) -> str:
    if not incident.sent:
        return "opened"
    return "updated" if incident.unsent else "repeated"


def _after_message(route: RouteRules, incident: Incident, now: datetime) -> Incident:
    next_at = None
    if incident.resolved_at is None:
        can_repeat = route.repeat_after is not None and any(s.is_recoverable for s in incident.subjects.values())
        next_at = incident.closes_at
        if can_repeat and route.repeat_after is not None:
            next_at = min(next_at, now + route.repeat_after)
        next_at = max(next_at, now + timedelta(seconds=1))
    return replace(incident, sent=incident.sent + 1, sent_at=now, unsent=0, next_at=next_at, held=False)


def _message(route: RouteRules, incident: Incident, reason: str, now: datetime) -> NotificationMessage:
    listed = sorted(incident.subjects.values(), key=lambda subject: subject.last_at, reverse=True)
    return NotificationMessage(
        reason=reason,
        status="resolved" if incident.resolved_at else "open",
        severity=incident.severity,
        title=_title(incident, listed),
        route=route.name,
        tenant=route.tenant,
        dedup_key=f"bellringer-{incident.incident_id}",
        opened_at=incident.opened_at,
        resolved_at=incident.resolved_at,
        at=now,
        count=incident.count,
        subjects=listed[:MAX_SUBJECTS_IN_MESSAGE],
        more=incident.more + max(len(listed) - MAX_SUBJECTS_IN_MESSAGE, 0),
        recovered=list(incident.recovered),
    )


def _title(incident: Incident, listed: Sequence[Subject]) -> str:
    if not listed:
        names = _names(incident.recovered)
        return f"{names} {'has' if len(incident.recovered) == 1 else 'have'} recovered" if names else "Recovered"
    number = len(listed) + incident.more
    if number > 1:
        return f"{number} jobs in trouble: {_names(listed)}"
    return f"{listed[0].name}: {describe_events(listed[0].events)}"


def _digest(route: RouteRules, incidents: Sequence[Incident], now: datetime) -> PlannedMessage:
    """Merges the messages of several incidents into one."""
    is_open = [incident for incident in incidents if incident.resolved_at is None]
    listed = sorted((s for i in is_open for s in i.subjects.values()), key=lambda s: s.last_at, reverse=True)
    recovered = [subject for incident in incidents for subject in incident.recovered]
    parts = [f"{len(is_open)} open"] if is_open else []
    if len(incidents) > len(is_open):
        parts.append(f"{len(incidents) - len(is_open)} recovered")
    message = NotificationMessage(
        reason="digest",
        status="open" if is_open else "resolved",
        severity=max((i.severity for i in incidents), key=SEVERITIES.index),
        title=f"{len(incidents)} incidents: {', '.join(parts)}",
        route=route.name,
        tenant=route.tenant,
        dedup_key=f"bellringer-digest-{incidents[0].incident_id}",
        opened_at=min(incident.opened_at for incident in incidents),
        at=now,
        count=sum(incident.count for incident in incidents),
        subjects=listed[:MAX_SUBJECTS_IN_MESSAGE],
        more=sum(i.more for i in is_open) + max(len(listed) - MAX_SUBJECTS_IN_MESSAGE, 0),
        recovered=recovered[:MAX_SUBJECTS_IN_MESSAGE],
    )
    return PlannedMessage(route=route, message=message, incident_ids=[i.incident_id for i in incidents])


_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "failed": "attempts failed",
    "dead": "gave up",
    "late": "late",
    "missed": "missed occurrences",
    "expired": "passed its deadline",
    "slow": "slower than usual",
    "outgrown": "takes longer than its interval",
    "blocked_loop": "blocks its event loop",
    "stranded": "stranded",
    "skipping": "skips occurrences",
    "paused": "paused after failures",
    "unknown_task": "no worker knows the task",
    "unstarted": "no free worker in the pool",
    "task_paused": "task paused",
    "orphaned": "no longer declared",
    "adopted": "declared by another app",
    "overridden": "changed back by its app",
    "checkin_missed": "no check-in",
    "checkin_failed": "reported a failure",
}


def describe_events(events: Mapping[str, int]) -> str:
    """Returns the kinds of events with their numbers, such as "gave up (3), late"."""
    return ", ".join(
        f"{_DESCRIPTIONS.get(kind, kind)}{f' ({number})' if number > 1 else ''}" for kind, number in events.items()
    )


def _names(subjects: Sequence[Subject]) -> str:
    shown = ", ".join(dict.fromkeys(subject.name for subject in subjects[:3]))
    return f"{shown} and {len(subjects) - 3} more" if len(subjects) > 3 else shown


def is_at_least(severity: str, lowest: str) -> bool:
    return SEVERITIES.index(severity) >= SEVERITIES.index(lowest)


def first_line(text: str | None) -> str | None:
    """Returns the first line of an error without passwords and tokens, shortened."""
    line = next((part.strip() for part in (text or "").splitlines() if part.strip()), None)
    if line is None:
        return None
    hidden = _SECRET_IN_TEXT.sub(lambda found: f"{found[1] or found[2] or found[3] or ''}***", line)
    return hidden if len(hidden) <= MAX_ERROR_LENGTH else hidden[: MAX_ERROR_LENGTH - 1] + "…"
