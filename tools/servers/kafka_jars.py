"""Downloads Kafka's jars by Maven, once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bellringer.errors import ConfigError, Unavailable
from tools.servers.ports_and_pids import held

VERSION: Final = "4.1.1"
POM: Final = Path(__file__).with_name("kafka.pom.xml")
DOWNLOAD_TIMEOUT_SECONDS: Final = 900.0
DEBIAN: Final = ("openjdk-17-jre-headless", "maven")


def get(folder: Path) -> Path:
    """Returns the folder of the jars, `folder/<version>/lib`; the first call downloads them, concurrent calls wait."""
    jars = folder / VERSION / "lib"
    if not jars.exists():
        with held(folder):
            if not jars.exists():
                _download(folder)
    return jars


def java() -> str:
    """Returns the path of the Java program."""
    if home := os.environ.get("JAVA_HOME"):
        given = Path(home) / "bin" / "java"
        if os.access(given, os.X_OK):
            return str(given)
    return _require("java")


def _download(folder: Path) -> None:
    """Download into a temporary folder and rename it at the end, so that a failed attempt leaves no partial result."""
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
        f"-Dmaven.repo.local={staging / 'repository'}",  # nothing outside of this folder is read or written
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
                timeout=DOWNLOAD_TIMEOUT_SECONDS,
                check=False,
            )
        said, failed = log.read_text(errors="replace"), done.returncode != 0
    except subprocess.TimeoutExpired:
        said, failed = f"not done after {DOWNLOAD_TIMEOUT_SECONDS:.0f} s", True
    if failed:
        tail = "\n".join(said.strip().splitlines()[-6:])
        raise Unavailable(
            f"Kafka {VERSION} could not be downloaded:\n{tail}", hint=f"see {log}; does `mvn` reach its registry?"
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
    """Install missing packages, but only on a build machine (CI=true, as root)."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"} | os.environ
    for step in (["update"], ["install", "--yes", "--no-install-recommends", *DEBIAN]):
        command = ["apt-get", "-qq", *step]
        subprocess.run(command, env=quiet, capture_output=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False)  # noqa: S603
