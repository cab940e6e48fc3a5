"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a result is, worst first."""

    PROBLEM = "problem"  # work may be lost or does not run, or will soon
    WARN = "warn"  # costs speed, or may become a problem
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check found, why it matters, and the commands that fix it, one per line of `fix`."""

    severity: Severity
    found: str
    why: str = ""
    fix: tuple[str, ...] = ()
    check: str = ""  # the name of the check

    def document(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.value,
            "found": self.found,
            "why": self.why,
            "fix": list(self.fix),
        }


def ok(found: str, *fix: str) -> CheckResult:
    return CheckResult(severity=Severity.OK, found=found, fix=fix)


def warn(found: str, why: str, *fix: str) -> CheckResult:
    return CheckResult(severity=Severity.WARN, found=found, why=why, fix=fix)


def problem(found: str, why: str, *fix: str) -> CheckResult:
    return CheckResult(severity=Severity.PROBLEM, found=found, why=why, fix=fix)
