"""`bellringer jobs`, against a real server and database."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.store.connection_pool import Store

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Ask


async def made(ask: Ask, *options: str) -> dict[str, object]:
    shown, _ = await ask("jobs", "create", "nightly", "shop.report", *options, "-o", "json")
    job: dict[str, object] = json.loads(shown)
    return job


async def test_policies_are_given_shown_and_taken_away(ask: Ask) -> None:
    job = await made(
        ask,
        *("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--gap", "skip", "--fold", "both"),
        *("--misfire", "fire_all", "--max-catchup", "5", "--catchup-window", "2h", "--catchup-rate", "6"),
        *("--overlap", "queue", "--max-concurrency", "2", "--concurrency-key", "db", "--concurrency-limit", "3"),
        *("--jitter", "10m", "--late-after", "1h", "--tag", "finance", "--after-completion", "delete"),
    )
    assert job["after_completion"] == "delete"
    assert job["schedules"] == [{"cron": "30 2 * * *", "tz": "Europe/Berlin", "gap": "skip", "fold": "both"}]
    names = ("misfire", "max_catchup", "catchup_window", "catchup_rate", "overlap", "max_concurrency", "late_after")
    assert [job[name] for name in names] == ["fire_all", 5, "2h", 6, "queue", 2, "1h"]
    assert (job["concurrency_key"], job["concurrency_limit"], job["jitter"]) == ("db", 3, "10m")
    shown, _ = await ask("jobs", "get", "nightly")
    assert "fire_all, at most 5" in shown
    assert "3 of db" in shown
    assert re.search(r"after completion +delete", shown)
    await ask("jobs", "update", "nightly", "--jitter", "none", "--overlap", "skip", "--fold", "none")
    assert "nightly" in (await ask("jobs", "list", "--state", "enabled", "--tag", "finance"))[0]
    assert "nightly" not in (await ask("jobs", "list", "--state", "done"))[0]
    assert "nightly" not in (await ask("jobs", "list", "--tag", "other"))[0]
    after = json.loads((await ask("jobs", "get", "nightly", "-o", "json"))[0])
    assert (after["jitter"], after["overlap"], after["concurrency_key"]) == (None, "skip", "db")
    assert after["schedules"] == [{"cron": "30 2 * * *", "tz": "Europe/Berlin", "gap": "skip"}]


async def test_retries_deadlines_and_automatic_pauses_are_given_shown_and_taken_away(ask: Ask) -> None:
    job = await made(
        ask,
        *("--every", "1h", "--attempts", "4", "--retry-delay", "1s", "--retry-delay", "1m", "--retry-jitter", "0.5"),
        *("--retry-only-on", "OSError", "--retry-never-on", "ConnectionError", "--retry-max-elapsed", "2h"),
        *("--expires-in", "10m", "--pause-after-failures", "5", "--keep-result"),
    )
    assert job["retry"] == {
        "attempts": 4,
        "delays": ["1s", "1m"],
        "jitter": 0.5,
        "only_on": ["OSError"],
        "never_on": ["ConnectionError"],
        "max_elapsed": "2h",
    }
    assert (job["expires_in"], job["pause_after_failures"], job["keep_result"]) == ("10m", 5, True)
    shown, _ = await ask("jobs", "get", "nightly")
    assert re.search(r"expires in +10m", shown)
    assert re.search(r"pauses after +5 failures", shown)
    await ask(
        *("jobs", "update", "nightly", "--retry-max-elapsed", "none", "--retry-only-on", "none"),
        *("--expires-in", "none", "--pause-after-failures", "none", "--no-keep-result"),
    )
    after = json.loads((await ask("jobs", "get", "nightly", "-o", "json"))[0])
    assert "max_elapsed" not in after["retry"]
    assert "only_on" not in after["retry"]
    assert after["retry"]["delays"] == ["1s", "1m"]
    assert (after["expires_in"], after["pause_after_failures"], after["keep_result"]) == (None, None, False)


async def test_a_rule_makes_a_job(ask: Ask) -> None:
    rule = "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"
    job = await made(ask, "--rrule", rule, "--start", "2026-01-02T09:00", "--tz", "Europe/Berlin")
    assert job["schedules"] == [{"rrule": rule, "tz": "Europe/Berlin", "start": "2026-01-02T09:00"}]
    assert "second Friday" in str(job["description"]) or "2 weeks" in str(job["description"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--every", "1h", "--tz", "UTC"), "--tz needs --cron or --rrule"),
        (("--cron", "0 * * * *", "--start", "2026-01-02T09:00"), "'start' requires a number of times"),
        (("--cron", "0 * * * *", "--every", "1h"), "--cron and --every are both given"),
        (("--every", "1h", "--overlap", "queue_one"), "overlap 'queue_one' is not known"),
        (("--every", "1h", "--after-completion", "drop"), "after_completion 'drop' is not known"),
        (("--every", "1h", "--concurrency-limit", "2"), "concurrency_limit needs concurrency_key"),
    ],
)
async def test_what_does_not_fit_is_reported(ask: Ask, options: tuple[str, ...], error: str) -> None:
    _, beside = await ask("jobs", "create", "nightly", "shop.report", *options, code=2)
    assert error in beside


async def test_resume_says_how_much_was_missed(ask: Ask, store: Store) -> None:
    await made(ask, "--every", "1h")
    await ask("jobs", "pause", "nightly")
    await store.pool.execute("update jobs set paused_at = paused_at - $1::interval", timedelta(hours=5))
    shown, _ = await ask("jobs", "resume", "nightly", "--missed", "latest")
    assert "missed 5 occurrences while paused: running the latest now, at low priority" in shown
    assert (await ask("jobs", "resume", "nightly"))[0].startswith("nightly was not paused")
    await ask("jobs", "pause", "nightly")
    await store.pool.execute("update jobs set paused_at = paused_at - $1::interval", timedelta(hours=1))
    shown, _ = await ask("jobs", "resume", "nightly")
    assert "missed 1 occurrence while paused: skipped (use --missed latest or all to run them)" in shown


async def test_a_job_is_shown_with_its_bounds(ask: Ask) -> None:
    await made(ask, "--every", "1h", "--starts-at", "2030-01-01T00:00:00Z", "--ends-at", "2031-01-01T00:00:00Z")
    facts = dict(line.split(maxsplit=1) for line in (await ask("jobs", "get", "nightly"))[0].splitlines())
    assert facts["starts"].startswith("2030-01-01")
    assert facts["ends"].startswith("2031-01-01")


async def test_an_error_names_the_job_the_tenant_and_the_server(ask: Ask, url: str) -> None:
    _, beside = await ask("jobs", "get", "nightly", code=4)
    assert beside.startswith(f"error: there is no job 'nightly' on {url}\n")
    await made(ask)
    _, beside = await ask("jobs", "get", "night", code=4)
    assert "hint: did you mean nightly?" in beside
    await ask("tenants", "create", "acme")
    _, beside = await ask("jobs", "pause", "a/b c", "--tenant", "acme", code=4)
    assert beside.startswith(f"error: there is no job 'a/b c' of tenant 'acme' on {url}\n")
    _, beside = await ask("jobs", "rollback", "weekly", "7", code=4)
    assert beside.startswith(f"error: there is no job 'weekly' on {url}\n")
