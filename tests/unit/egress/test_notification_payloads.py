"""Payloads against the documented formats of the receivers, as golden documents, which docs/notifications.md shows."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bellringer.core.notifications import NotificationMessage, Subject
from bellringer.egress.mail import MailSettings, check_recipients, parse_mail_settings, render_mail
from bellringer.egress.notification_payloads import (
    pagerduty_payload,
    slack_payload,
    teams_payload,
    webhook_payload,
)
from bellringer.errors import ConfigError, InvalidInput

AT = datetime(2026, 11, 18, 2, 30, 12, tzinfo=UTC)
DUE = datetime(2026, 11, 18, 2, 30, tzinfo=UTC)
JOB = "0193f2c4-7a10-7c3e-9d51-2f6f0a6d1b11"
SUBJECT = Subject(
    kind="job",
    name="nightly",
    tenant="default",
    job_id=JOB,
    task="reports.build",
    owner="data",
    tags=["billing"],
    events={"dead": 1, "late": 1},
    is_recoverable=True,
    run_id="run_0W3PqzK1dYc8vN5tGm2LxB7hRfEaSj4Ui",
    scheduled_for=DUE,
    attempt=3,
    error="Timeout: no answer from db <1>",
    lateness_seconds=12.4,
    since=DUE,
    last_at=AT,
)
OPEN = NotificationMessage(
    reason="opened",
    status="open",
    severity="critical",
    title="nightly: gave up, late",
    route="failures",
    tenant="default",
    dedup_key="bellringer-0193f2c4-9b1f-7d02-8a34-5c0a7e61f001",
    opened_at=DUE,
    at=AT,
    count=2,
    subjects=[SUBJECT],
)
RESOLVED = replace(
    OPEN,
    reason="resolved",
    status="resolved",
    title="nightly has recovered",
    resolved_at=AT,
    subjects=[],
    recovered=[SUBJECT],
)
URL = "https://bell.example.com"
DOCS = Path(__file__).parents[3] / "docs" / "notifications.md"


def golden(title: str) -> Any:
    """The JSON block of the documentation below a heading."""
    found = re.search(rf"^### {title}\n.*?```json\n(.*?)```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"docs/notifications.md shows no payload of {title}"
    return json.loads(found[1])


@pytest.mark.parametrize(
    ("title", "made"),
    [
        ("Slack", slack_payload(OPEN, URL)),
        ("Microsoft Teams", teams_payload(OPEN, URL)),
        ("PagerDuty", pagerduty_payload(OPEN, "R0123456789ABCDEF0123456789ABCDE", URL)),
        ("Webhook", webhook_payload(OPEN, URL)),
    ],
)
def test_the_payload_is_that_of_the_documentation(title: str, made: dict[str, Any]) -> None:
    assert json.loads(json.dumps(made)) == golden(title)


def test_the_webhook_omits_fields_without_a_value() -> None:
    message = replace(OPEN, subjects=[replace(SUBJECT, owner=None, error=None)])
    sent = webhook_payload(message, None)
    assert "link" not in sent
    assert not {"owner", "error"} & sent["subjects"][0].keys()
    assert "null" not in json.dumps(sent)


def test_slack_keeps_its_limits_and_escapes() -> None:
    many = replace(OPEN, title="x" * 500, subjects=[replace(SUBJECT, error="<!channel> & " * 400)] * 10)
    made = slack_payload(many, URL)
    assert len(made["blocks"]) <= 50
    assert len(made["blocks"][0]["text"]["text"]) <= 150
    texts = [block["text"]["text"] for block in made["blocks"][1:-1]]
    assert all(len(text) <= 3000 for text in texts)
    assert "<!channel>" not in json.dumps(made)
    assert "&lt;!channel&gt; &amp;" in texts[0]


def test_pagerduty_resolves_with_the_same_key_and_cuts_the_summary() -> None:
    resolve = pagerduty_payload(RESOLVED, "k", URL)
    assert resolve == {"routing_key": "k", "event_action": "resolve", "dedup_key": OPEN.dedup_key}
    long = pagerduty_payload(replace(OPEN, title="x" * 3000), "k", None)
    assert len(long["payload"]["summary"]) == 1024
    assert {"summary", "source", "severity"} <= long["payload"].keys()
    assert long["payload"]["severity"] in ("critical", "error", "warning", "info")
    assert "links" not in long


def test_a_recovery_says_from_what() -> None:
    text = json.dumps(slack_payload(RESOLVED, URL))
    assert ":large_green_circle: nightly has recovered" in text
    assert "*Recovered from:* gave up, late" in text
    assert teams_payload(RESOLVED, None)["attachments"][0]["content"]["body"][0]["color"] == "good"


SMTP = MailSettings(host="mail", port=587, is_tls=False, starttls="off", sender="Bell <bell@example.com>")


def test_mail_has_a_stable_id_a_thread_and_no_header_injection() -> None:
    evil = replace(OPEN, title="nightly\r\nBcc: all@example.com")
    mail = render_mail(evil, SMTP, ["ops@example.com"], number=7, public_url=URL)
    again = render_mail(evil, SMTP, ["ops@example.com"], number=7, public_url=URL)
    assert mail["Message-ID"] == again["Message-ID"] == "<notification-7@example.com>"
    assert mail["References"] == f"<{OPEN.dedup_key}@example.com>"
    assert mail["Bcc"] is None
    body = mail.get_body(("plain",))
    assert body is not None
    text = body.get_content()
    for part in ("Job: nightly", "Task: reports.build", f"Run: {SUBJECT.run_id}, attempt 3", "Late by: 12s"):
        assert part in text
    assert f"{URL}/console/runs/{SUBJECT.run_id}" in text
    html = mail.get_body(("html",))
    assert html is not None
    assert "&lt;1&gt;" in html.get_content()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example.com", ("mail.example.com", 587, False, "auto", None, None)),
        ("smtp://u%40x:p%3Aw@mail:25", ("mail", 25, False, "required", "u@x", "p:w")),
        ("smtp://u:p@mail:25?starttls=off", ("mail", 25, False, "off", "u", "p")),
        ("smtps://mail", ("mail", 465, True, "auto", None, None)),
    ],
)
def test_smtp_urls(url: str, expected: tuple[object, ...]) -> None:
    read = parse_mail_settings(url, "bell@example.com")
    assert read is not None
    assert (read.host, read.port, read.is_tls, read.starttls, read.user, read.password) == expected
    assert "p:w" not in repr(read)


@pytest.mark.parametrize(
    "url", ["http://mail", "smtp://", "smtp://mail:x", "smtp://mail?starttls=maybe", "smtp://m?x=1"]
)
def test_wrong_smtp_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_mail_settings(url, "bell@example.com")


def test_recipients_are_addresses() -> None:
    assert check_recipients(["ops@example.com"]) == ["ops@example.com"]
    for wrong in ("", "ops", "a@b\r\nBcc: c@d", "ops @example.com", "ö@example.com", 7, "@", "a@"):
        with pytest.raises(InvalidInput):
            check_recipients([wrong])
    with pytest.raises(InvalidInput):
        check_recipients([])
    assert parse_mail_settings(None, None) is None
    with pytest.raises(ConfigError):
        parse_mail_settings("smtp://mail", None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text: 3 of 4 (75 %)", "plain text: 3 of 4 (75 %)"),
        ("[log in](https://attacker.example)", r"\[log in\](https://attacker.example)"),
        ("**now** _or_ `never`", r"\*\*now\*\* \_or\_ \`never\`"),
        ("a\\b", r"a\\b"),
        ("- a list\n1. another\n# heading", "\\- a list\n1\\. another\n\\# heading"),
        ("send_mail failed", "send_mail failed"),
    ],
)
def test_texts_of_users_are_no_markdown_in_teams(text: str, shown: str) -> None:
    message = replace(OPEN, title=text, subjects=[replace(SUBJECT, error=text, name=text)])
    card = teams_payload(message, None)["attachments"][0]["content"]
    facts = {fact["title"]: fact["value"] for fact in card["body"][1]["facts"]}
    assert (facts["Error"], facts["Job"]) == (shown, shown)
    assert card["body"][0]["text"].startswith(r"\[critical\] ")
