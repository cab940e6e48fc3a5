"""A copy of the alert rules whose durations are shorter, so that a drill takes minutes instead of hours."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

MIN_WINDOW_SECONDS: Final = 10.0  # a rate needs several scrapes
_DURATION: Final = re.compile(r"(\d+)([smh])")
_WINDOW: Final = re.compile(r"\[(\d+[smh])\]")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def scale_rules(text: str, factor: float) -> str:
    """Returns the rules with all `for` and range windows divided by `factor`; thresholds stay as they are."""
    document = yaml.safe_load(text)
    for group in document["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            _scale_rule(rule, factor)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _scale_rule(rule: dict[str, Any], factor: float) -> None:
    rule["expr"] = _WINDOW.sub(
        lambda found: f"[{max(seconds_of(found[1]) / factor, MIN_WINDOW_SECONDS):.0f}s]", rule["expr"]
    )
    if "for" in rule:
        rule["for"] = f"{max(seconds_of(rule['for']) / factor, 1):.0f}s"


def seconds_of(duration: str) -> float:
    """Returns the seconds of a duration such as 5m."""
    found = _DURATION.fullmatch(duration)
    assert found, duration
    return float(found[1]) * _UNIT_SECONDS[found[2]]
