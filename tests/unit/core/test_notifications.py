"""Which messages a route sends: grouping, de-duplication, recoveries, repeats, digests. No database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from bellringer.core.notifications import (
    MAX_SUBJECTS,
    RECOVERABLE_KINDS,
    RECOVERY_KINDS,
    SEVERITY_OF_KIND,
    Incident,
    NotificationEvent,
    NotificationMessage,
    RouteRules,
    decide,
    first_line,
)
from bellringer.core.quiet_hours import QuietHours
from bellringer.store.events import EventKind

START = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


class Clockwork:
    """A route with its incidents, over time."""

    def __init__(self, **rules: Any) -> None:
        given = {"channel_kind": "slack", "active_since": START - HOUR, **rules}
        self.route = RouteRules(route_id=1, tenant_id=1, tenant="default", name="r", channel_id=1, **given)
        self.incidents: dict[UUID, Incident] = {}
        self.now = START
        self._ids = (UUID(int=number) for number in count(1))

    def after(self, length: timedelta, *events: NotificationEvent) -> list[NotificationMessage]:
        self.now += length
        decided = decide(self.route, self.incidents.values(), events, self.now, lambda: next(self._ids))
        self.incidents |= {incident.incident_id: incident for incident in decided.incidents}
        return [planned.message for planned in decided.messages]

    def event(self, kind: str, job: str | None = "nightly", *, number: int = 7, **more: Any) -> NotificationEvent:
        given = {"task": "reports.build", "owner": "data", "tenant_id": 1, "tenant": "default", **more}
        return NotificationEvent(
            event_id=1, at=self.now, kind=kind, job=job, job_id=UUID(int=number), scheduled_for=self.now, **given
        )


def reasons(messages: Sequence[NotificationMessage]) -> list[str]:
    return [message.reason for message in messages]


def test_every_event_kind_has_a_severity() -> None:
    assert SEVERITY_OF_KIND.keys() == set(EventKind)
    assert SEVERITY_OF_KIND.keys() >= RECOVERABLE_KINDS | RECOVERY_KINDS


def test_a_storm_is_one_message_then_updates_at_the_interval_then_one_recovery() -> None:
    clock = Clockwork()
    assert clock.after(SECOND, *[clock.event("dead") for _ in range(40)]) == []
    [opened] = clock.after(10 * SECOND)
    assert (opened.reason, opened.count, opened.title) == ("opened", 40, "nightly: gave up (40)")
    assert clock.after(SECOND, clock.event("dead"), clock.event("late")) == []
    assert clock.after(4 * MINUTE) == []
    [updated] = clock.after(MINUTE)
    assert (updated.reason, updated.count, updated.dedup_key) == ("updated", 42, opened.dedup_key)
    [resolved] = clock.after(SECOND, clock.event("recovered", data={"after": "dead"}))
    assert (resolved.status, resolved.dedup_key) == ("resolved", opened.dedup_key)
    assert resolved.recovered[0].events == {"dead": 41, "late": 1}
    assert clock.after(10 * HOUR) == []


def test_an_open_incident_is_repeated_and_one_without_news_closes_silently() -> None:
    clock = Clockwork(wait=timedelta(0))
    assert reasons(clock.after(SECOND, clock.event("dead"))) == ["opened"]
    assert reasons(clock.after(4 * HOUR)) == ["repeated"]
    quiet = Clockwork(wait=timedelta(0))
    assert reasons(quiet.after(SECOND, quiet.event("slow"))) == ["opened"]
    assert quiet.after(2 * HOUR) == []  # nothing recovers from being slow, so it is neither repeated nor resolved
    assert [incident.resolved_at is None for incident in quiet.incidents.values()] == [False]


def test_pagerduty_is_told_of_the_silent_end() -> None:
    clock = Clockwork(wait=timedelta(0), channel_kind="pagerduty")
    assert reasons(clock.after(SECOND, clock.event("slow"))) == ["opened"]
    [end] = clock.after(2 * HOUR)
    assert (end.reason, end.status) == ("resolved", "resolved")


def test_a_flapping_job_is_not_reported_more_often_than_the_interval() -> None:
    clock = Clockwork(wait=timedelta(0))
    sent = 0
    for _ in range(60):  # fails and recovers twice a minute for half an hour
        sent += len(clock.after(15 * SECOND, clock.event("dead")))
        sent += len(clock.after(15 * SECOND, clock.event("recovered")))
    assert 6 <= sent <= 14  # without the interval: 120


def test_a_trouble_that_is_over_before_its_message_is_one_message() -> None:
    clock = Clockwork()
    clock.after(SECOND, clock.event("dead"))
    assert clock.after(SECOND, clock.event("recovered")) == []
    [only] = clock.after(10 * SECOND)
    assert (only.status, only.count, only.title) == ("resolved", 1, "nightly has recovered")
    assert clock.after(HOUR) == []


def test_groups_collect_jobs_and_are_resolved_when_all_have_recovered() -> None:
    clock = Clockwork(group_by="owner", wait=timedelta(0))
    [opened] = clock.after(SECOND, clock.event("dead", "a", number=1), clock.event("dead", "b", number=2))
    assert opened.title == "2 jobs in trouble: a, b"
    assert clock.after(SECOND, clock.event("recovered", "a", number=1)) == []
    [resolved] = clock.after(SECOND, clock.event("recovered", "b", number=2))
    assert {subject.name for subject in resolved.recovered} == {"a", "b"}


def test_more_subjects_than_a_group_keeps_are_counted() -> None:
    clock = Clockwork(group_by="route", wait=timedelta(0))
    [opened] = clock.after(SECOND, *[clock.event("dead", f"j{n}", number=n) for n in range(1, MAX_SUBJECTS + 11)])
    assert len(opened.subjects) + opened.more == MAX_SUBJECTS + 10


def test_many_incidents_at_once_are_one_digest_except_for_pagerduty() -> None:
    for kind, expected in (("slack", ["digest"]), ("pagerduty", ["opened"] * 8)):
        clock = Clockwork(wait=timedelta(0), channel_kind=kind)
        sent = clock.after(SECOND, *[clock.event("dead", f"j{n}", number=n) for n in range(1, 9)])
        assert reasons(sent) == expected
        assert sum(len(message.subjects) for message in sent) == 8


def test_quiet_hours_hold_warnings_let_critical_ones_pass_and_end_with_a_digest() -> None:
    night = QuietHours(starts="22:00", ends="07:00", tz="Europe/Paris")
    clock = Clockwork(wait=timedelta(0), quiet=night, repeat_after=None)
    clock.now = datetime(2026, 11, 18, 22, 30, tzinfo=UTC)  # 23:30 in Paris
    assert clock.after(SECOND, clock.event("late", "a", number=1), clock.event("late", "b", number=2)) == []
    assert reasons(clock.after(SECOND, clock.event("dead", "c", number=3))) == ["opened"]
    assert clock.after(SECOND, clock.event("recovered", "a", number=1)) == []
    assert clock.after(HOUR) == []
    clock.now = datetime(2026, 11, 19, 5, 59, 58, tzinfo=UTC)
    assert clock.after(SECOND) == []
    [digest] = [m for m in clock.after(2 * SECOND) if m.reason == "digest"]
    assert [subject.name for subject in digest.subjects] == ["b"]
    assert [subject.name for subject in digest.recovered] == ["a"]


def test_an_escalation_passes_quiet_hours_at_once_and_hold_keeps_everything() -> None:
    night = QuietHours(starts="22:00", ends="07:00")
    clock = Clockwork(wait=timedelta(0), quiet=night)
    clock.now = datetime(2026, 11, 18, 23, 0, tzinfo=UTC)
    assert clock.after(SECOND, clock.event("late")) == []
    [passed] = clock.after(SECOND, clock.event("dead"))
    assert (passed.severity, passed.count) == ("critical", 2)
    strict = Clockwork(wait=timedelta(0), quiet=QuietHours(starts="22:00", ends="07:00", critical="hold"))
    strict.now = datetime(2026, 11, 18, 23, 0, tzinfo=UTC)
    assert strict.after(SECOND, strict.event("dead")) == []
    assert reasons(strict.after(8 * HOUR)) == ["opened"]


def test_routes_match_kinds_severity_jobs_tags_owners_and_tenants() -> None:
    clock = Clockwork()
    dead = clock.event("dead", "billing-eu", tags=("billing", "eu"))
    failed, elsewhere = clock.event("failed"), clock.event("dead", tenant_id=2, tenant="acme")

    def matches(event: NotificationEvent, **rules: Any) -> bool:
        return Clockwork(**rules).route.matches(event)

    assert matches(dead)
    assert not matches(failed)
    assert matches(failed, severity="info")
    assert matches(failed, kinds=("failed",))
    assert not matches(dead, kinds=("failed",))
    assert matches(dead, jobs=("billing-*",))
    assert not matches(dead, jobs=("crm-*",))
    assert matches(dead, tags=("crm", "eu"))
    assert not matches(dead, tags=("crm",))
    assert matches(dead, owners=("data",))
    assert not matches(dead, owners=("ops",))
    assert not matches(elsewhere)
    assert matches(elsewhere, tenants=("acme",))
    assert matches(elsewhere, tenants=("*",))
    assert not matches(dead, tenants=("acme",))
    assert not matches(dead, active_since=START + HOUR)


def test_sends_are_grouped_by_their_task_and_unknown_tasks_recover() -> None:
    clock = Clockwork(wait=timedelta(0))
    [opened] = clock.after(SECOND, *[clock.event("dead", None, number=n) for n in range(1, 6)])
    assert (opened.title, opened.count) == ("reports.build: gave up (5)", 5)
    of_task = {"data": {"task": "shop.pay", "pool": "short"}}
    [unknown] = clock.after(SECOND, clock.event("unknown_task", None, number=9, **of_task))
    known = {"data": {"task": "shop.pay", "pool": "short", "after": "unknown_task"}}
    [resolved] = clock.after(SECOND, clock.event("recovered", None, number=9, **known))
    assert resolved.dedup_key == unknown.dedup_key


def test_errors_are_one_line_without_secrets() -> None:
    assert first_line("Boom: cannot reach postgresql://app:hunter2@db/x\nTraceback …") == (
        "Boom: cannot reach postgresql://app:***@db/x"
    )
    assert first_line("401 for token=abc123, Authorization: Bearer xyz") == "401 for token=***, Authorization: ***"
    assert first_line(" \n ") is None
    assert len(first_line("x" * 1000) or "") == 300
