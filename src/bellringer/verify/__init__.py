"""Recomputes from the job revisions what every schedule should have done, and compares it with the runs."""

from __future__ import annotations

from bellringer.verify.checker import verify
from bellringer.verify.findings import Finding, FindingKind, VerifyScope, VerifySummary

__all__ = ["Finding", "FindingKind", "VerifyScope", "VerifySummary", "verify"]
