"""`bellringer cluster regions`: which shards belong to which region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bellringer.cli.connect import with_client
from bellringer.cli.groups import Command, fail
from bellringer.cli.output import as_json, output_option, print_table

if TYPE_CHECKING:
    from bellringer.client import Client


@click.command(
    "regions",
    cls=Command,
    examples="""
    bellringer cluster regions
    bellringer cluster regions eu us
    bellringer cluster regions eu=0-31 us=32-63
    bellringer cluster regions --none
    """,
)
@click.argument("given", nargs=-1, metavar="[NAME[=SHARDS]]...")
@click.option("--none", "clear", is_flag=True, help="No shard belongs to a region any more.")
@output_option("table", "json")
@with_client
def regions(client: Client, *, given: tuple[str, ...], clear: bool, output: str) -> None:
    """Show which shards belong to which region, or give them to regions.

    The nodes of a region (BELLRINGER_REGION) share its shards; others hold them only while none of its nodes lives.
    Names alone share all shards evenly. What is not named belongs to no region.
    """
    if clear and given:
        fail("--none and regions are both given", "give one of them")
    found = client.put_regions(_read(client, given)) if given or clear else client.regions()
    if output == "json":
        click.echo(as_json(found))
        return
    nobody = [("–", found.others)] if found.others else []
    print_table(("REGION", "SHARDS"), [*sorted(found.regions.items()), *nobody])


def _read(client: Client, given: tuple[str, ...]) -> dict[str, str]:
    from bellringer.leases import spread, write_shards

    pairs = [text.partition("=") for text in given]
    if len({name for name, _, _ in pairs}) < len(pairs):
        fail("a region is given twice", "give all its shards at once, as eu=0-31,40")
    if any(sign for _, sign, _ in pairs):
        if not all(sign for _, sign, _ in pairs):
            fail("some of the regions are given without shards", "give all of them with shards, or none")
        return {name: shards for name, _, shards in pairs}
    total = client.cluster().shards.total
    return {name: write_shards(shards) for name, shards in spread(given, total).items()}
