"""How the app is found that a worker serves."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

from bellringer.errors import ConfigError
from bellringer.worker.app_loader import load_target

numbers = count(1)
SMALL = "from bellringer.core.tasks import Registry\nclass App:\n    def __init__(self): self.registry = Registry()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    return tmp_path


def test_an_app_is_found_by_module_by_file_and_inside_a_package(folder: Path) -> None:
    (folder / "found_one.py").write_text(SMALL + "app = App()\nalias = app\n")
    package = folder / "found_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "names.py").write_text("NAME = 'x'\n")
    (package / "jobs.py").write_text("from .names import NAME\n" + SMALL + "bells = App()\n")
    one = load_target("found_one:app")
    assert load_target("found_one") is one
    assert load_target("found_one.py") is one
    assert load_target(f"{folder}/found_one.py:alias") is one
    assert load_target("found_package/jobs.py:bells") is load_target("found_package.jobs")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("", "missing_module_x", "there is no module 'missing_module_x'"),
        ("", "missing_file_x.py", "there is no file 'missing_file_x.py'"),
        ("", ":app", "no module in ':app'"),
        ("import missing_inside\n", "{}", "No module named 'missing_inside'"),
        ("import os\n1 / 0\n", "{}.py", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)\n", "{}", "SystemExit: 2"),
        ("def broken(:\n", "{}", "SyntaxError"),
        ("x = 1\n", "{}", "there is no App in"),
        (SMALL + "a = App()\nb = App()\n", "{}", "several Apps"),
        (SMALL + "a = App()\n", "{}:b", "did you mean a?"),
        ("x = 1\n", "{}:x", "is a int, not an App"),
    ],
)
def test_what_cannot_be_found_is_explained(folder: Path, source: str, target: str, says: str) -> None:
    name = f"sought{next(numbers)}"
    (folder / f"{name}.py").write_text(source)
    with pytest.raises(ConfigError) as refusal:
        load_target(target.format(name))
    assert says in str(refusal.value)


def test_an_error_inside_the_app_keeps_its_cause_and_its_place(folder: Path) -> None:
    (folder / "failing_app.py").write_text("import os\n\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"failing_app.py, line 3") as refusal:
        load_target("failing_app")
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)


def test_a_file_that_another_module_hides_is_refused(folder: Path) -> None:
    (folder / "json.py").write_text(SMALL + "app = App()\n")
    with pytest.raises(ConfigError, match="rename the file"):
        load_target("json.py")
