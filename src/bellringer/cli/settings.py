"""`bellringer settings`: how a server runs, and where each setting comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command
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
@click.option("--changed", is_flag=True, help="Only those that are not the defaults.")
@output_option(*LIST)
@with_client
def settings(client: Client, *, changed: bool, output: str) -> None:
    """Show the settings of the server that answers, and where each comes from; it takes a key of the installation.

    Of secrets it is told whether they are set, and addresses come without their passwords.
    """
    found = [setting for setting in client.settings().items if setting.source != "default" or not changed]
    print_list(
        output,
        found,
        head=("SETTING", "VALUE", "SOURCE"),
        row=lambda setting: (setting.name, _value(setting), setting.where or setting.source),
        name=lambda setting: setting.name,
        nothing="no setting differs from its default" if changed else "the server tells no settings",
    )


def _value(setting: Setting) -> str:
    if setting.value is None:
        return "-"
    return setting.value if isinstance(setting.value, str) else msgspec.json.encode(setting.value).decode()
