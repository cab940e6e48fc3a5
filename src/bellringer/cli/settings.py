"""`bellringer settings`: the settings of a server and the source of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from bellringer.cli.command_groups import Command
from bellringer.cli.connect import with_client
from bellringer.cli.output import LIST, output_option, print_list

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.overview import Setting


@click.command(
    cls=Command,
    examples="""
    bellringer settings
    bellringer settings --changed
    """,
)
@click.option("--changed", is_flag=True, help="Only settings that differ from their default.")
@output_option(*LIST)
@with_client
def settings(client: Client, *, changed: bool, output: str) -> None:
    """Show the settings of a server and the source of each. Needs an installation key.

    Values of secrets and passwords in URLs are not shown.
    """
    found = [setting for setting in client.settings().items if setting.source != "default" or not changed]
    print_list(
        output,
        found,
        head=("SETTING", "VALUE", "SOURCE"),
        row=lambda setting: (setting.name, _value(setting), setting.where or setting.source),
        name=lambda setting: setting.name,
        empty="no setting differs from its default" if changed else "the server returned no settings",
    )


def _value(setting: Setting) -> str:
    if setting.value is None:
        return "-"
    return setting.value if isinstance(setting.value, str) else msgspec.json.encode(setting.value).decode()
