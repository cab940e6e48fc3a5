"""Verify: what should have happened, worked out anew from the definitions and their revisions, against what did."""

from __future__ import annotations

from bellringer.verify.check import verify
from bellringer.verify.findings import Asked, Finding, Kind, Summary

__all__ = ["Asked", "Finding", "Kind", "Summary", "verify"]
