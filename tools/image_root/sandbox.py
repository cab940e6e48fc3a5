"""Runs commands in another root: own mounts, optionally read-only, as another user without any capability."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DEVICES: Final = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or folder of this machine that appears in the root."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A root folder with its binds. All mounts belong to the command, and vanish when it ends."""

    root: Path
    binds: Sequence[Bind] = field(default_factory=tuple)

    def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        folder: str = "/",
        user: str | None = None,
        read_only: bool = False,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Starts a command. Its process id is that of the command itself, so signals reach it.

        Without `user` it runs as root and may write; with `user` it has no capability and cannot gain any.
        """
        steps = ["mount --make-rprivate /", self._mount(self.root, self.root, writable=True)]
        steps += [self._mount_bind(bind) for bind in self.binds]
        steps += [f"mount -t tmpfs -o mode=1777 tmpfs {self._at('/tmp')}", f"mount -t tmpfs tmpfs {self._at('/dev')}"]  # noqa: S108
        for device in DEVICES:
            steps.append(f"touch {self._at(f'/dev/{device}')}")
            steps.append(f"mount --bind /dev/{device} {self._at(f'/dev/{device}')}")
        steps.append(f"mount --rbind /proc {self._at('/proc')}")
        if read_only:
            steps.append(f"mount -o remount,bind,ro {shlex.quote(str(self.root))}")
        inside = ["/bin/sh", "-c", f'cd {shlex.quote(folder)} && exec "$@"', "sh", *self._as_user(user), *command]
        steps.append(f"exec chroot {shlex.quote(str(self.root))} {shlex.join(inside)}")
        return subprocess.Popen(  # noqa: S603
            [_find("unshare"), "--mount", "/bin/sh", "-euc", "\n".join(steps)],
            stdin=subprocess.DEVNULL,
            env={**environ, "PATH": f"{environ.get('PATH', '')}:{os.defpath}:/usr/sbin:/sbin"},
            **options,
        )

    def run(self, command: Sequence[str], **options: Any) -> tuple[int, str]:
        """Runs a command to its end. Returns its exit code and its output."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        with process:
            output, _ = process.communicate()
        return process.returncode, output.decode(errors="replace")

    def prepare(self) -> None:
        """Creates the mount points in the root, which is read-only later."""
        for name in ("dev", "proc", "tmp", "run"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for bind in self.binds:
            target = self.root / bind.target.lstrip("/")
            if bind.source.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()

    def _at(self, path: str) -> str:
        return shlex.quote(f"{self.root}{path}")

    def _mount_bind(self, bind: Bind) -> str:
        return self._mount(bind.source, Path(f"{self.root}{bind.target}"), writable=bind.writable)

    @staticmethod
    def _mount(source: Path, target: Path, *, writable: bool) -> str:
        at = shlex.quote(str(target))
        step = f"mount --bind {shlex.quote(str(source))} {at}"
        return step if writable else f"{step} && mount -o remount,bind,ro {at}"

    @staticmethod
    def _as_user(user: str | None) -> list[str]:
        if user is None:
            return []
        uid, _, gid = user.partition(":")
        limits = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        return ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={gid or uid}", *limits, "--"]


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed (Debian: apt-get install util-linux)")
    return found
