"""The instructions of the Dockerfile, executed in an unpacked root of this machine's programs, and its entry point.

`make image-check` does the same in a Debian root, where it also installs the packages and the tools of the build.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tools.image_root.build import HostBase, ImageBuilder
from tools.image_root.check import CheckReport, check, serve_postgres
from tools.image_root.dockerfile import UnknownInstruction, parse

NOBODY = "10001\t10001\t10001\t10001"


def test_the_entry_point_runs_as_nobody_special_from_a_read_only_root(tmp_path: Path) -> None:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None:
        assert not os.environ.get("CI"), "mounting needs root on Linux, and unshare of util-linux"
        pytest.skip("mounting needs root on Linux, and unshare of util-linux")
    for folder in (tmp_path, *tmp_path.parents[:2]):  # another user must reach the root
        folder.chmod(0o755)
    builder = ImageBuilder(tmp_path / "roots", HostBase())
    image = builder.build()
    assert [step.split()[0] for step in builder.skipped] == ["apt-get", "python3", "apt-get"]
    assert image.user == "10001:10001"
    assert not list((image.sandbox.root / "opt" / "bellringer").rglob("pip"))
    with serve_postgres(tmp_path / "postgres") as dsn:
        report = check(image, dsn, tmp_path / "run")
    _assert_works(report, image.sandbox.root)


def _assert_works(report: CheckReport, root: Path) -> None:
    assert report.version.startswith("bellringer ")
    assert report.ready["status"] == "ready"
    assert report.result == {"uid": 10001, "gid": 10001, "written": ["/tmp/x"]}
    status = report.status
    assert (status["Uid"], status["Gid"], status["Groups"], status["NoNewPrivs"]) == (NOBODY, NOBODY, "", "1")
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["root"] == str(root)
    assert report.healthy == (0, 0)
    assert report.unhealthy == 1
    assert report.exit_codes == {"worker": 0, "server": 0}


def test_instructions_that_cannot_be_executed_are_refused() -> None:
    (stage,) = parse(
        "ARG BASE=trixie\nFROM debian:${BASE} AS build\n# why\nRUN a && \\\n  b\nCOPY --chmod=755 x y /z/\n"
    )
    assert (stage.base, stage.name) == ("debian:trixie", "build")
    assert stage.instructions[0].text == "a &&  b"
    assert (stage.instructions[1].flags, stage.instructions[1].words) == ({"chmod": "755"}, ["x", "y", "/z/"])
    with pytest.raises(UnknownInstruction, match="ONBUILD"):
        parse("FROM debian\nONBUILD RUN x\n")
