"""Examines a database server and an installation: settings and conditions that cost speed or safety."""

from __future__ import annotations

from bellringer.doctor.checks import CHECKS, Check, examine
from bellringer.doctor.results import CheckResult, Severity

__all__ = ["CHECKS", "Check", "CheckResult", "Severity", "examine"]
