"""Kafka's programs: got from Maven's registry once, and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bellringer.errors import ConfigError, Unavailable
from bellringer.services.places import held

VERSION: Final = "4.1.1"
POM: Final = Path(__file__).with_name("kafka.pom.xml")
GET_LIMIT: Final = 900.0  # seconds for a slow network
DEBIAN: Final = ("openjdk-17-jre-headless", "maven")


def get(folder: Path) -> Path:
    """The folder of jars, `folder/<version>/lib`; the first call gets them, and the others wait for it."""
    jars = folder / VERSION / "lib"
    if not jars.exists():
        with held(folder):
            if not jars.exists():
                _download(folder)
    return jars


def java() -> str:
    """The program that runs them."""
    if home := os.environ.get("JAVA_HOME"):
        given = Path(home) / "bin" / "java"
        if os.access(given, os.X_OK):
            return str(given)
    return _require("java")


def _download(folder: Path) -> None:
    """Make all beside its place and move it there when whole: a broken attempt leaves nothing that counts."""
    mvn = _require("mvn")
    staging = folder / f"{VERSION}.new"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    shutil.copy(POM, staging / "pom.xml")
    command = [
        *(mvn, "--batch-mode", "--quiet", "--strict-checksums", "dependency:copy-dependencies"),
        f"-Dkafka.version={VERSION}",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={staging / 'lib'}",
        f"-Dmaven.repo.local={staging / 'repository'}",  # nothing outside of our folder is read or left
    ]
    log = folder / "maven.log"
    try:
        with log.open("wb") as output:
            done = subprocess.run(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=staging,
                timeout=GET_LIMIT,
                check=False,
            )
        said, failed = log.read_text(errors="replace"), done.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = f"not done after {GET_LIMIT:.0f} s", True
    if failed:
        tail = "\n".join(said.strip().splitlines()[-6:])
        raise Unavailable(
            f"Kafka {VERSION} could not be got:\n{tail}", hint=f"see {log}; does `mvn` reach its registry?"
        )
    shutil.rmtree(staging / "repository", ignore_errors=True)
    staging.rename(folder / VERSION)


def _require(program: str) -> str:
    found = shutil.which(program)
    if found is None and os.geteuid() == 0 and os.environ.get("CI") == "true" and shutil.which("apt-get"):
        _install()
        found = shutil.which(program)
    if found is None:
        raise ConfigError(
            f"Kafka needs Java 17 or newer and Maven, and there is no `{program}`",
            hint=f"install them (Debian: apt-get install {' '.join(DEBIAN)})",
        )
    return found


def _install() -> None:
    """On a machine that is made for one build, what is missing may be installed."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"} | os.environ
    for step in (["update"], ["install", "--yes", "--no-install-recommends", *DEBIAN]):
        subprocess.run(["apt-get", "-qq", *step], env=quiet, capture_output=True, timeout=GET_LIMIT, check=False)  # noqa: S603, S607
