"""Installs the peers in folders of their own, with pinned versions. Nothing is installed twice."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.servers.ports_and_pids import held

from bellringer.errors import Unavailable

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE.parents[1] / ".bench"
PYTHON_FOLDER: Final = FOLDER / "python"
NODE_FOLDER: Final = FOLDER / "node"
REQUIREMENTS: Final = HERE / "requirements.txt"
NODE_FILES: Final = tuple(HERE / "node" / name for name in ("package.json", "package-lock.json", ".npmrc"))
INSTALL_TIMEOUT_SECONDS: Final = 600.0


def install_python() -> None:
    """Install the peers in Python, and matplotlib for the plots."""
    with held(FOLDER):
        if _is_current(PYTHON_FOLDER, (REQUIREMENTS,)):
            return
        print("  installing the peers in Python …", flush=True)  # noqa: T201
        base = sys.executable if sys.prefix == sys.base_prefix else os.path.realpath(sys.executable)
        _run([base, "-m", "venv", "--clear", str(PYTHON_FOLDER)])
        install = ["pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
        _run([str(PYTHON_FOLDER / "bin" / "python"), "-m", *install])
        _mark_current(PYTHON_FOLDER, (REQUIREMENTS,))


def install_node() -> None:
    """Install the peers in JavaScript, and the Node.js that they run on."""
    with held(FOLDER):
        if _is_current(NODE_FOLDER, NODE_FILES):
            return
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable(
                "npm was not found", hint="Debian: apt-get install npm, or leave out the peers of Node.js"
            )
        print("  installing the peers in JavaScript …", flush=True)  # noqa: T201
        shutil.rmtree(NODE_FOLDER, ignore_errors=True)
        NODE_FOLDER.mkdir(parents=True)
        for file in NODE_FILES:
            shutil.copy(file, NODE_FOLDER)
        _run(
            [npm, "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"],
            cwd=NODE_FOLDER,
        )
        _mark_current(NODE_FOLDER, NODE_FILES)


def find_node() -> str:
    """Returns the installed Node.js, or the system's on other processors."""
    for program in sorted((NODE_FOLDER / "node_modules").glob("node-*/bin/node")):
        return str(program)
    return shutil.which("node") or "node"


def _fingerprint(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _is_current(folder: Path, files: Sequence[Path]) -> bool:
    mark = folder / "installed"
    return mark.exists() and mark.read_text() == _fingerprint(files)


def _mark_current(folder: Path, files: Sequence[Path]) -> None:
    (folder / "installed").write_text(_fingerprint(files))  # last, so that an interrupted installation is repeated


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:4])} … failed: {(done.stderr or done.stdout).strip()[-800:]}")
