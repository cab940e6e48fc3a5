"""Parses, stores and prints the retention rules of a tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput, NotFound

STATES: Final = ("runs", "succeeded", "dead", "cancelled", "skipped")
MIN_KEPT: Final = timedelta(days=1)


def parse_rules(keep: Sequence[str], keep_job: Sequence[str]) -> dict[str, Any]:
    """Returns the rules as they are stored, in seconds."""
    rules: dict[str, Any] = dict(_parse(text, text) for text in keep)
    jobs: dict[str, dict[str, int]] = {}
    for text in keep_job:
        job, separator, rule = text.rpartition(":")
        if not separator or not job:
            raise InvalidInput(f"{text!r} is not JOB:STATE=TIME", hint="write it like nightly:runs=365d")
        state, seconds = _parse(rule, text)
        jobs.setdefault(job, {})[state] = seconds
    return {**rules, "jobs": jobs} if jobs else rules


def _parse(rule: str, text: str) -> tuple[str, int]:
    state, separator, length = rule.partition("=")
    if not separator or state not in STATES:
        raise InvalidInput(f"{text!r} is not STATE=TIME", hint=f"STATE is {', '.join(STATES)}; write runs=90d")
    kept = parse_duration(length, what=text)
    if kept < MIN_KEPT:
        raise InvalidInput(f"{text!r} is shorter than a day", hint="runs are kept for a day at least")
    return state, int(kept.total_seconds())


async def apply_rules(dsn: str, tenant: str, rules: dict[str, Any] | None) -> Mapping[str, Any]:
    """Replaces the rules if any are given, and returns those that apply."""
    from bellringer.store import retention
    from bellringer.store.connection_pool import Store
    from bellringer.store.interned_names import Catalog

    store = await Store.open(dsn, size=1, name="bellringer tenants")
    try:
        tenant_id = await Catalog(store).tenant_id(tenant)
        if rules is not None and not await retention.set_rules(store, tenant, rules):
            raise NotFound(f"there is no tenant {tenant!r}")
        found = [known.rules for known in await retention.list_rules(store) if known.tenant_id == tenant_id]
        return found[0] if found else {}
    finally:
        await store.close()


def format_rules(rules: Mapping[str, Any]) -> str:
    lines = [f"{state}={format_duration(timedelta(seconds=rules[state]))}" for state in STATES if state in rules]
    for job, own in sorted(rules.get("jobs", {}).items()):
        lines += [f"{job}:{state}={format_duration(timedelta(seconds=own[state]))}" for state in STATES if state in own]
    return "\n".join(lines)
