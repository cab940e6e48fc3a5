"""Switches to a user that PostgreSQL accepts, ties this process to its parent, then executes the given program.

Run as a script, so that no Python code runs between fork and exec in a process with threads:

    python -I -S launch.py PARENT SIGNAL WAY UID GID PROGRAM ARGUMENT…
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

REFUSED: Final = 125  # the system does not allow the switch to that user
UNREACHABLE: Final = 126  # that user cannot run the program
ORPHANED: Final = 127  # the parent ended before this process was tied to it

CLONE_NEWUSER: Final = 0x10000000
PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> None:
    """Execute the steps in the only order that works. Does not return."""
    parent, death_signal, way, uid, gid, *command = arguments
    try:
        become(way, int(uid), int(gid))
    except OSError as error:
        fail(REFUSED, f"cannot run as user {uid} ({way}): {error}")
    # After the change of user, because a change of credentials clears the death signal.
    die_with_parent(int(parent), int(death_signal))
    try:
        os.execv(command[0], command)  # noqa: S606 the command is the supervisor's own
    except OSError as error:
        fail(UNREACHABLE, f"cannot run {command[0]}: {error}")


def become(way: str, uid: int, gid: int) -> None:
    """Switch the user: `self` keeps it, `namespace` maps it inside a user namespace, `user` changes it."""
    if way == "namespace":
        enter_namespace(uid, gid)
    elif way == "user":
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)


def enter_namespace(uid: int, gid: int) -> None:
    """Use another user id inside a new user namespace; files outside still see the real one."""
    real_uid, real_gid = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")  # else the kernel refuses the group map
    Path("/proc/self/uid_map").write_text(f"{uid} {real_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {real_gid} 1")


def die_with_parent(parent: int, death_signal: int) -> None:
    """Ask the kernel for a signal when the parent ends. Other systems than Linux leave an orphan."""
    if sys.platform != "linux" or not death_signal:
        return
    call("prctl", PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        fail(ORPHANED, "the parent ended before the server began")


def call(name: str, *arguments: int) -> None:
    """Make a system call through the C library. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def fail(code: int, message: str) -> None:
    """Write a message to the log and exit."""
    sys.stderr.write(f"bellringer: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
