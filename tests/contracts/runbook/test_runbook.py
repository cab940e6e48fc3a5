"""Every command of docs/runbook.md runs against an installation in the state of its section, and prints what it shows.

`BELLRINGER_FILL_RUNBOOK=1 pytest tests/contracts/runbook` writes the output of commands that have no sample yet.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest
import yaml
from tests.contracts.runbook.document import RUNBOOK, fill_samples, first_difference, read_sections
from tests.contracts.runbook.incident import installation
from tests.contracts.runbook.incidents import FAILOVER, SERVER_SETTINGS, STATES
from tests.support.failover_pair import Pair, start_pair

from bellringer import telemetry
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.cli import cli
from bellringer.errors import ConfigError
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate
from bellringer.testing.postgres import (
    FAST_SETTINGS,
    FILE_COPY_STRATEGY,
    TestServer,
    find_memory_folder,
    prepare_server,
)

ROOT = Path(__file__).parents[3]
SECTIONS = read_sections()
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
# Each alert's section answers these questions, in this order.
PARTS = ("**Meaning.**", "**Urgency.**", "**Look:**", "**Decide:**", "**Over when:**")
FILL = "BELLRINGER_FILL_RUNBOOK" in os.environ


def alert_names() -> set[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Schedulers and workers run in this process; their log must not be taken for the output of a command."""
    telemetry.configure("json", "critical")
    yield
    telemetry.configure()


def test_every_alert_has_its_section_and_every_such_section_its_alert() -> None:
    assert {title for title in SECTIONS if title.startswith("Bellringer")} == alert_names()


def test_every_alert_links_to_its_section() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        if "alert" in rule:
            assert rule["annotations"]["runbook_url"].endswith(f"docs/runbook.md#{rule['alert'].lower()}")


@pytest.mark.parametrize("title", sorted(alert_names()))
def test_the_section_of_an_alert_is_complete(title: str) -> None:
    text = SECTIONS[title].text
    positions = [text.find(part) for part in PARTS]
    assert -1 not in positions, PARTS[positions.index(-1)]
    assert positions == sorted(positions)
    assert SECTIONS[title].steps


def test_every_section_with_commands_has_a_state() -> None:
    with_commands = {title for title, section in SECTIONS.items() if section.steps}
    assert with_commands == set(STATES)


def test_every_command_in_the_text_exists() -> None:
    """Commands in running text are not executed, but they have to exist."""
    for line in sorted(set(re.findall(r"`(bellringer [^`]+)`", RUNBOOK.read_text()))):
        _parse(cli, shlex.split(line)[1:], line)


def _parse(command: click.Command, words: list[str], whole: str) -> None:
    context: click.Context | None = None
    while isinstance(command, click.Group) and words:
        context = click.Context(command, parent=context, info_name=words[0])
        found = command.get_command(context, words[0])
        assert found is not None, f"`{whole}`: there is no command {words[0]!r}"
        command, words = found, words[1:]
    options = {option for parameter in command.params for option in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    assert unknown == [], f"`{whole}`"


@pytest.fixture
def failover_pair(title: str) -> Iterator[Pair | None]:
    """The servers of the state of a failover."""
    if title != FAILOVER:
        yield None
        return
    try:
        with start_pair() as pair:
            asyncio.run(migrate_pair(pair))
            yield pair
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO STOCK POSTGRESQL FOR THIS TEST: {error}")


async def migrate_pair(pair: Pair) -> None:
    connection = await connect(pair.dsn)
    await migrate(connection)
    await connection.close()


@pytest.fixture
def server(title: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestServer]:
    """The shared server, or one with the settings that the state of a section needs."""
    if title not in SERVER_SETTINGS:
        yield request.getfixturevalue("bellringer_server")
        return
    folder = Path(tempfile.mkdtemp(prefix="bellringer-runbook-", dir=find_memory_folder()))
    try:
        with (
            EmbeddedPostgres(folder, settings={**FAST_SETTINGS, **SERVER_SETTINGS[title]}) as running,
            prepare_server(running.dsn, FILE_COPY_STRATEGY) as prepared,
        ):
            yield prepared
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def database_of(server: TestServer, pair: Pair | None) -> AsyncIterator[str]:
    if pair is not None:
        yield pair.dsn
        return
    async with server.database() as dsn:
        yield dsn


@pytest.mark.parametrize("title", STATES)
async def test_the_commands_of_the_section_run(
    title: str, server: TestServer, failover_pair: Pair | None, tmp_path: Path
) -> None:
    outputs, differences = [], []
    async with database_of(server, failover_pair) as dsn, installation(dsn, tmp_path) as incident:
        incident.pair = failover_pair
        await STATES[title](incident)
        for step in SECTIONS[title].steps:
            output = await incident.execute(step)
            outputs.append(output)
            missing = first_difference(step.sample, output)
            if missing is not None:
                differences.append(f"`{step.command}` does not print\n{missing}\nbut\n{output}")
    if FILL:
        RUNBOOK.write_text(fill_samples(RUNBOOK.read_text(), {title: outputs}))
    assert differences == []


def test_samples_are_compared_by_their_shape() -> None:
    sample = ("STATE  NODE    SEEN", "live   node-1  2s ago", "…", "claims …")
    assert first_difference(sample, "STATE NODE SEEN\nlive node-7 14m 3s ago\nx\nclaims 7 silent\n") is None
    assert first_difference(sample, "STATE NODE SEEN\ngone node-7 14m 3s ago\nclaims\n") == sample[1]
    assert first_difference(("b", "a"), "a\nb\n") == "a"


def test_the_sign_of_a_number_is_compared() -> None:
    assert first_difference(("live  3 s ago",), "live -599684 ms ago") == "live  3 s ago"
    assert first_difference(("live  3 s ago",), "live 281 ms ago") is None


def test_no_sample_shows_a_negative_duration() -> None:
    samples = [line for section in SECTIONS.values() for step in section.steps for line in step.sample]
    assert [line for line in samples if re.search(r"(?<=\s)-\d+(?:\.\d+)? (?:ms|s)\b", line)] == []
