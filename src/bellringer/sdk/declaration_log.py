"""Log lines about the declaration of an app."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from bellringer.core.apps import AppVersion
from bellringer.engine.declare import AppDeclaration
from bellringer.telemetry import log

MAX_LOGGED_NAMES: Final = 20


def log_declaration(app: AppVersion, done: AppDeclaration, firing: Sequence[str]) -> None:
    """Log the outcome of a declaration. `firing` are the app's orphans that still fire, the new ones included."""
    own = {"app": app.name, "version": app.version or None}
    if done.superseded_by is not None:
        log.warning(
            "a newer version of this app is current; this version declares nothing",
            **own,
            current=done.superseded_by or None,
            to_roll_back=f"bellringer apps activate {shlex.quote(app.name)} {shlex.quote(app.version)}",
        )
        return
    if done.adopted:
        log.info("jobs are declared by this app again", **own, **_names(done.adopted))
    for job in done.overridden:
        log.warning(
            "the code overrides an operator's change", **own, job=job.name, fields=list(job.fields), changed_by=job.by
        )
    if gone := [name for name in done.orphaned if name not in firing]:
        log.warning("jobs are no longer declared by the code; they do not fire", **own, **_names(gone))
    if firing:
        log.warning(
            "jobs are no longer declared by the code, but still fire",
            **own,
            **_names(firing),
            to_delete=f"bellringer jobs delete {shlex.quote(firing[0])}",
        )


def _names(names: Sequence[str]) -> dict[str, object]:
    return {"jobs": list(names[:MAX_LOGGED_NAMES]), "count": len(names)}
