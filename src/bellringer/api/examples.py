"""Examples of what callers send, for the document; a test sends each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bellringer import wire
from bellringer.api.operations import Shape
from bellringer.wire.workflows import MarkNodeRequest, RetryNodesRequest, SignalRequest

BODIES: Final[Mapping[Shape, Mapping[str, Any]]] = {
    wire.JobRequest: {
        "name": "nightly report",
        "task": "shop.report",
        "schedule": {"cron": "30 2 * * *", "tz": "Europe/Paris"},
        "kwargs": {"days": 30},
        "timeout": "10m",
        "retry": {"attempts": 5, "base": "10s", "cap": "15m"},
        "overlap": "queue",
        "tags": ["finance"],
    },
    wire.ExecuteRequest: {"task": "shop.report", "kwargs": {"days": 7}, "delay": "5m", "key": "report-2026-01-31"},
    wire.PauseRequest: {"reason": "the warehouse moves", "until": "2h"},
    wire.ResumeRequest: {"missed": "latest"},
    wire.TriggerRequest: {"kwargs": {"days": 1}},
    wire.CancelRequest: {"reason": "started by mistake"},
    wire.LettersRequest: {"all": True},
    wire.PreviewRequest: {"schedule": {"cron": "30 2 * * *", "tz": "America/New_York"}, "n": 3},
    wire.BackfillRequest: {
        "job": "nightly report",
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-08T00:00:00Z",
        "dry_run": True,
    },
    wire.CalendarRequest: {"dates": ["2026-12-25", "2026-12-26"], "weekend": ["SAT", "SUN"]},
    wire.FreezeRequest: {"name": "migration", "to": "90m", "policy": "collapse", "reason": "the database moves"},
    wire.FreezePatch: {"to": "30m"},
    RetryNodesRequest: {"nodes": ["transform[3]", "load"]},
    MarkNodeRequest: {"node": "load", "state": "succeeded", "result": {"rows": 1200}, "reason": "loaded by hand"},
    SignalRequest: {"payload": {"by": "ana"}},
}
PATCHES: Final[Mapping[Shape, Mapping[str, Any]]] = {wire.JobRequest: {"priority": 7, "timeout": None}}
