"""Named points at which a test can stop or kill this process. They do nothing unless BELLRINGER_FAULT is set.

`BELLRINGER_FAULT=tick.checked:stop:3` sends SIGSTOP to the process when it reaches `tick.checked` for the third time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_PLANNED: Final = os.environ.get("BELLRINGER_FAULT", "")
_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Stop or kill this process here if BELLRINGER_FAULT names this point."""
    if not _PLANNED:
        return
    planned, action, *nth = _PLANNED.split(":")
    if name != planned:
        return
    _passed[name] += 1
    if _passed[name] == int(nth[0] if nth else 1):
        os.kill(os.getpid(), _SIGNALS[action])
