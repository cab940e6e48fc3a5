"""The public surface: small, sorted, light to import."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

import bellringer
import bellringer.testing

HEAVY = ["asyncpg", "starlette", "prometheus_client", "structlog", "uvicorn", "httpx2", "rich", "click"]


@pytest.mark.parametrize("package", [bellringer, bellringer.testing])
def test_every_public_name_is_sorted_and_importable(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]

    assert names == sorted(names, key=lambda name: (not name.isupper(), name))  # constants, classes, functions
    assert all(getattr(package, name) is not None for name in names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Ap'"):
        bellringer.Ap  # type: ignore[attr-defined]  # noqa: B018


def test_all_names_show_in_dir() -> None:
    assert set(bellringer.__all__) <= set(dir(bellringer))


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("bellringer").joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    "statement",
    [
        "import bellringer",
        "from bellringer import *",
        "from bellringer import App, cron; app = App(); app.task(lambda: 1, name='x') if 0 else None",
        "import bellringer.testing.plugin",
    ],
)
def test_importing_is_light(statement: str) -> None:
    code = f"{statement}\nimport sys; print([m for m in {HEAVY} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout == "[]\n"
