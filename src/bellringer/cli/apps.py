"""`bellringer apps`: the programs whose code declares jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bellringer.cli.command_groups import CommandGroup
from bellringer.cli.connect import with_client
from bellringer.cli.options import fetch_pages, limit_option
from bellringer.cli.output import (
    LIST,
    ONE,
    format_local,
    format_relative,
    output_option,
    print_fields,
    print_list,
    to_json,
)

if TYPE_CHECKING:
    from datetime import datetime

    from bellringer.client import Client
    from bellringer.wire.apps import AppDetails, AppVersionItem
    from bellringer.wire.models import Count


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer apps list
    bellringer apps activate billing 1.4.1
    """,
)
def apps() -> None:
    """Inspect apps: the programs whose code declares jobs."""


@apps.command("list", examples="bellringer apps list -o json")
@limit_option
@output_option(*LIST)
@with_client
def list_apps(client: Client, *, limit: int, output: str) -> None:
    """List apps with their current version and their jobs."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.apps, limit, output=output),
        head=("NAME", "VERSION", "DECLARED", "JOBS", "ORPHANS", "POLICY"),
        row=lambda app: (
            app.name,
            app.version or "–",
            format_relative(app.declared_at, now),
            _number(app.jobs),
            _number(app.orphans),
            app.policy,
        ),
        name=lambda app: app.name,
        empty="no apps; a worker records its app when it starts",
    )


@apps.command("get", examples="bellringer apps get billing")
@click.argument("name")
@output_option(*ONE)
@with_client
def get(client: Client, *, name: str, output: str) -> None:
    """Show an app, its versions, and the number of its jobs and orphans."""
    _print_app(client.app(name), output)


@apps.command("activate", examples="bellringer apps activate billing 1.4.1")
@click.argument("name")
@click.argument("version")
@output_option(*ONE)
@with_client
def activate(client: Client, *, name: str, version: str, output: str) -> None:
    """Make an earlier VERSION of an app current again, after a rollback.

    Running and new processes of that version then declare their jobs.
    """
    _print_app(client.activate_app(name, version), output)


def _print_app(app: AppDetails, output: str) -> None:
    from bellringer.clock import SystemClock

    if output != "table":
        click.echo(to_json(app) if output == "json" else app.name)
        return
    now = SystemClock().now()
    print_fields(
        {
            "name": app.name,
            "version": app.version or "–",
            "declared": f"{format_relative(app.declared_at, now)}  ({format_local(app.declared_at)})",
            "jobs": _number(app.jobs),
            "orphans": _number(app.orphans),
            "policy": app.policy,
            "versions": "\n".join(_describe_version(version, now) for version in app.versions),
        }
    )


def _describe_version(version: AppVersionItem, now: datetime) -> str:
    parts = [
        version.version or "–",
        f"first seen {format_relative(version.first_seen_at, now)}",
        f"activated {format_relative(version.activated_at, now)} by {version.activated_by}"
        if version.activated_at
        else "",
        "current" if version.current else "",
    ]
    return ", ".join(part for part in parts if part)


def _number(count: Count) -> str:
    return f"{count.value:,}" + ("+" if count.relation == "gte" else "")
