"""An app: a program whose code declares jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_VERSION_LENGTH: Final = 100


class OrphanPolicy(StrEnum):
    """The treatment of jobs that the code of their app no longer declares."""

    KEEP = "keep"  # they fire as before, and are reported
    PAUSE = "pause"  # they are paused until the code declares them again
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersion:
    """A version of an app, which declares jobs. The version is "" if it is not known.

    Other programs may have the name of an app that is named after its module. Such an app is not `is_named`: it does
    not decide alone which of its jobs are orphans.
    """

    name: str
    version: str = ""
    orphans: OrphanPolicy = OrphanPolicy.KEEP
    is_named: bool = True

    @property
    def who(self) -> str:
        """The actor of its changes, as the history of a job and the audit show it."""
        return f"app {self.name} {self.version}".rstrip()
