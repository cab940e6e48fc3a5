"""Named points at which a test may stop or kill this process; they do nothing unless BELLRINGER_FAULT is set.

`BELLRINGER_FAULT=tick.checked:stop:3` stops the process (as SIGSTOP does) when it passes `tick.checked` the third time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_PLANNED: Final = os.environ.get("BELLRINGER_FAULT", "")
_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Pass a point where things may go wrong."""
    if not _PLANNED:
        return
    planned, action, *nth = _PLANNED.split(":")
    if name != planned:
        return
    _passed[name] += 1
    if _passed[name] == int(nth[0] if nth else 1):
        os.kill(os.getpid(), _SIGNALS[action])
