"""Lengths of time on the command line are written as everywhere else."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.integration.cli.conftest import Ask

from bellringer.cli import cli
from bellringer.store.connection_pool import Store


@pytest.mark.parametrize(
    "arguments",
    [("runs", "wait", "RUN", "--timeout"), ("jobs", "trigger", "bell", "--wait", "--timeout")],
    ids=["runs wait", "jobs trigger"],
)
@pytest.mark.parametrize("length", ["300ms", "0.3", "0s"])
async def test_a_timeout_is_a_length_of_time(ask: Ask, store: Store, arguments: tuple[str, ...], length: str) -> None:
    await ask("jobs", "create", "bell", "demo", "--every", "1h")
    run = (await ask("jobs", "trigger", "bell"))[0].split()[0]
    asked = [run if word == "RUN" else word for word in arguments]
    _, beside = await ask(*asked, length, code=6)
    assert "has not ended" in beside or "still" in beside, beside


@pytest.mark.parametrize("length", ["-1s", "soon", "5 parsecs"])
def test_an_invalid_duration_is_refused(length: str) -> None:
    for arguments in (("runs", "wait", "run_x", "--timeout"), ("webhooks", "test", "whe_1", "--wait")):
        answer = CliRunner().invoke(cli, [*arguments, length], prog_name="bellringer")
        assert answer.exit_code == 2, answer.output
        assert "Traceback" not in answer.output
