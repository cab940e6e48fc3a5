"""The result of a verification."""

from __future__ import annotations

from typing import Any

from bellringer.wire.models import ResponseModel


class VerifyLine(ResponseModel, frozen=True, omit_defaults=True):
    """One line of a verification: a finding, or at the end the `summary`.

    A finding has the kind in `finding`, such as missing or double, the job, the occurrence and what is wrong with it.
    The summary counts the occurrences of the window that could be checked; `clean` says whether all of them are right.
    """

    finding: str | None = None
    job_id: str | None = None
    job: str | None = None
    scheduled_for: str | None = None
    detail: str | None = None
    summary: dict[str, Any] | None = None
