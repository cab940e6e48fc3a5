"""Renders notification messages in the documented formats of Slack, Microsoft Teams, PagerDuty and plain webhooks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from bellringer.core.notifications import NotificationMessage, Subject, describe_events
from bellringer.durations import format_duration

PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"
MAX_SUMMARY_LENGTH: Final = 1024  # of PagerDuty
MAX_HEADER_LENGTH: Final = 150  # of Slack
MAX_SECTION_LENGTH: Final = 3000  # of Slack
_COLORS: Final = {"critical": "attention", "warning": "warning", "info": "accent"}
_EMOJI: Final = {"critical": ":red_circle:", "warning": ":large_yellow_circle:", "info": ":large_blue_circle:"}
_RESOLVED_EMOJI: Final = ":large_green_circle:"


def headline(message: NotificationMessage) -> str:
    """Returns the first line of a message, such as "[critical] nightly: gave up (3)"."""
    prefix = {"test": "test", "resolved": "recovered"}.get(message.reason) or (
        "recovered" if message.status == "resolved" else message.severity
    )
    return f"[{prefix}] {message.title}"


def subject_facts(subject: Subject, *, is_recovered: bool = False) -> dict[str, str]:
    """Returns the details of a job, task or check-in by their titles."""
    facts = {"Check-in" if subject.kind == "checkin" else subject.kind.capitalize(): subject.name}
    if subject.task and subject.kind == "job":
        facts["Task"] = subject.task
    facts["Recovered from" if is_recovered else "Trouble"] = describe_events(subject.events)
    if subject.run_id:
        facts["Run"] = subject.run_id + (f", attempt {subject.attempt}" if subject.attempt else "")
    if subject.scheduled_for is not None:
        facts["Scheduled for"] = format_instant(subject.scheduled_for)
    if subject.error:
        facts["Error"] = subject.error
    if subject.lateness_seconds is not None:
        facts["Late by"] = format_duration(timedelta(seconds=round(subject.lateness_seconds)))
    facts["Since"] = format_instant(subject.since)
    if is_recovered:
        facts["Recovered at"] = format_instant(subject.last_at)
    facts["Owner"] = subject.owner or ""
    facts["Tenant"] = subject.tenant
    return {name: value for name, value in facts.items() if value}


def subject_link(subject: Subject, public_url: str | None) -> str | None:
    """Returns the page of the console about a subject: its newest run, its job, or the task's runs."""
    if public_url is None:
        return None
    base = f"{public_url.rstrip('/')}/console"
    if subject.kind == "checkin":
        return None
    if subject.run_id:
        return f"{base}/runs/{quote(subject.run_id)}"
    return f"{base}/jobs/{quote(subject.job_id)}" if subject.kind == "job" else f"{base}/workers"


def message_link(message: NotificationMessage, public_url: str | None) -> str | None:
    """Returns the page to begin with: that of the only subject, or the overview."""
    listed = message.subjects or message.recovered
    if len(listed) == 1 and (link := subject_link(listed[0], public_url)):
        return link
    return None if public_url is None else f"{public_url.rstrip('/')}/console"


def text_lines(message: NotificationMessage, public_url: str | None) -> Iterator[str]:
    """Returns the message as plain text."""
    yield headline(message)
    yield ""
    for subject, is_recovered in _listed(message):
        for name, value in subject_facts(subject, is_recovered=is_recovered).items():
            yield f"{name}: {value}"
        if link := subject_link(subject, public_url):
            yield link
        yield ""
    yield _footer(message)
    if link := message_link(message, public_url):
        yield link


def slack_payload(message: NotificationMessage, public_url: str | None) -> dict[str, Any]:
    """Returns the body for a Slack incoming webhook: blocks, and `text` for notifications and old clients."""
    emoji = _RESOLVED_EMOJI if message.status == "resolved" else _EMOJI[message.severity]
    title = {"type": "plain_text", "text": _cut(f"{emoji} {message.title}", MAX_HEADER_LENGTH), "emoji": True}
    blocks: list[dict[str, Any]] = [{"type": "header", "text": title}]
    for subject, is_recovered in _listed(message):
        link = subject_link(subject, public_url)
        lines = [
            f"*{_escape(name)}:* {_escape(value)}"
            for name, value in subject_facts(subject, is_recovered=is_recovered).items()
        ]
        if link:
            lines.append(f"<{link}|Open in the console>")
        blocks.append(
            {"type": "section", "text": {"type": "mrkdwn", "text": _cut("\n".join(lines), MAX_SECTION_LENGTH)}}
        )
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": _escape(_footer(message))}]})
    return {"text": _escape(headline(message)), "blocks": blocks}


def teams_payload(message: NotificationMessage, public_url: str | None) -> dict[str, Any]:
    """Returns the body for a Teams workflow that was created from "When a Teams webhook request is received"."""
    color = "good" if message.status == "resolved" else _COLORS[message.severity]
    body: list[dict[str, Any]] = [
        {
            "type": "TextBlock",
            "text": _escape_markdown(headline(message)),
            "weight": "bolder",
            "size": "large",
            "wrap": True,
            "color": color,
        }
    ]
    for subject, is_recovered in _listed(message):
        facts = subject_facts(subject, is_recovered=is_recovered)
        shown = [{"title": name, "value": _escape_markdown(value)} for name, value in facts.items()]
        body.append({"type": "FactSet", "facts": shown})
    body.append({"type": "TextBlock", "text": _escape_markdown(_footer(message)), "isSubtle": True, "wrap": True})
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if link := message_link(message, public_url):
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in the console", "url": link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def pagerduty_payload(message: NotificationMessage, routing_key: str, public_url: str | None) -> dict[str, Any]:
    """Returns an event of the PagerDuty Events API v2. Equal dedup keys belong to one incident."""
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if message.status == "resolved" else "trigger",
        "dedup_key": message.dedup_key,
    }
    if message.status == "resolved":
        return event
    first = message.subjects[0] if message.subjects else None
    details = [subject_facts(subject) for subject in message.subjects]
    event["payload"] = {
        "summary": _cut(message.title, MAX_SUMMARY_LENGTH),
        "source": f"bellringer/{first.tenant if first else message.tenant}",
        "severity": message.severity,
        "timestamp": _write(message.at),
        "component": first.name if first else "bellringer",
        "group": (first.owner or "") if first else "",
        "class": next(iter(first.events)) if first else message.reason,
        "custom_details": {"events": message.count, "since": _write(message.opened_at), "subjects": details},
    }
    event["client"] = "Bellringer"
    if public_url is not None:
        event["client_url"] = f"{public_url.rstrip('/')}/console"
        links = [(s.name, subject_link(s, public_url)) for s in message.subjects]
        event["links"] = [{"href": link, "text": name} for name, link in links if link]
    return event


def webhook_payload(message: NotificationMessage, public_url: str | None) -> dict[str, Any]:
    """Returns the whole message for receivers of your own."""
    document = {"type": f"notification.{message.reason}", **msgspec.to_builtins(message)}
    if link := message_link(message, public_url):
        document["link"] = link
    return document


def format_instant(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _listed(message: NotificationMessage) -> Sequence[tuple[Subject, bool]]:
    return [*((s, False) for s in message.subjects), *((s, True) for s in message.recovered)]


def _footer(message: NotificationMessage) -> str:
    if message.reason == "test":
        return "A test message of Bellringer: this channel works."
    number = f"{message.count} event{'' if message.count == 1 else 's'} since {format_instant(message.opened_at)}"
    parts = [number, f"route {message.route}", f"tenant {message.tenant}"]
    if message.more:
        parts.insert(0, f"and {message.more} more")
    if message.resolved_at is not None:
        parts.append(f"resolved at {format_instant(message.resolved_at)}")
    return " · ".join(parts)


def _write(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escape(text: str) -> str:
    """Escapes the three control characters of Slack's mrkdwn."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_markdown(text: str) -> str:
    """Escapes what Adaptive Cards read as Markdown, so that an error message cannot show a link of its own: emphasis,
    code, links, and a list or heading at the start of a line. Underscores within words have no meaning.
    """
    text = re.sub(r"([\\*\[\]`]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"(?m)^(\s*)([-+#>]|\d+(?=\.))", _escape_line_start, text)


def _escape_line_start(found: re.Match[str]) -> str:
    space, sign = found.groups()
    return f"{space}{sign}\\" if sign.isdigit() else f"{space}\\{sign}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
