"""`bellringer workflows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.arguments import read_value
from bellringer.cli.connect import with_client
from bellringer.cli.groups import Group, fail
from bellringer.cli.output import LIST, ONE, as_json, clean, output_option, print_facts, print_list, print_table
from bellringer.cli.pages import gather, limit_option
from bellringer.cli.times import between, clock_time, from_now, span

if TYPE_CHECKING:
    from bellringer.client import Client
    from bellringer.wire.workflows import FlowNode, Graph, GraphDifference, GraphEdge, MapCounts, RunGraph

ICONS: Final = {
    "blocked": "·",
    "queued": "○",
    "running": "▶",
    "retrying": "↻",
    "waiting": "◷",
    "succeeded": "✓",
    "dead": "✕",
    "cancelled": "⊘",
    "skipped": "–",
}
SKIPPED: Final = {"upstream": "something before it failed", "condition": "its branch was not taken"}


@click.group(
    cls=Group,
    examples="""
    bellringer workflows list
    bellringer workflows graph run_…
    bellringer workflows retry run_… 'transform[3]'
    """,
)
def workflows() -> None:
    """Workflows: jobs whose nodes run after each other. A workflow is made, triggered and paused as any job."""


@workflows.command(
    "list",
    examples="""
    bellringer workflows list
    bellringer workflows list --q etl -o json
    """,
)
@click.option("--q", metavar="TEXT", help="Only those with this text in their name.")
@limit_option
@output_option(*LIST)
@with_client
def list_workflows(client: Client, *, q: str | None, limit: int, output: str) -> None:
    """List workflows by their names, each with its last run."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        gather(client.workflows, limit, output=output, q=q),
        head=("NAME", "NODES", "VERSION", "NEXT", "LAST", "TOOK", "RUN"),
        row=lambda w: (
            w.name,
            str(w.nodes),
            str(w.version),
            "paused" if w.paused else from_now(w.next_at, now),
            w.last.state if w.last else "–",
            between(w.last.started_at, w.last.finished_at) if w.last else "–",
            w.last.run_id if w.last else "–",
        ),
        name=lambda w: str(w.name),
        nothing="no workflows",
    )


@workflows.command(
    "graph",
    examples="""
    bellringer workflows graph run_…
    bellringer workflows graph etl
    bellringer workflows graph etl --version 17 -o json
    """,
)
@click.argument("what", metavar="RUN|JOB")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Of a job: this version of it.")
@output_option(*ONE)
@with_client
def graph(client: Client, *, what: str, version: int | None, output: str) -> None:
    """Show the nodes of a RUN and where each of them is, or of a JOB; each stands behind those that it waits for."""
    told: RunGraph | Graph
    is_run = what.startswith("run_")
    told = client.run_graph(what) if is_run else client.job_graph(what, version=version)
    if output == "json":
        click.echo(as_json(told))
    elif output == "name":
        for node in told.nodes:
            click.echo(clean(node.name))
    elif is_run:
        _print_run(told)  # type: ignore[arg-type] # a run's
    else:
        _print_graph(told)  # type: ignore[arg-type] # a job's


def _print_run(told: RunGraph) -> None:
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    path = told.critical_path
    print_facts(
        {
            "run": told.run_id,
            "workflow": f"{told.job or told.job_id}, version {told.version}",
            "state": told.state,
            "started": clock_time(told.started_at),
            "took": between(told.started_at, told.finished_at or (now if told.started_at else None)),
            "stopped": told.stopped or "",
            "undoing": ("what was done was taken back" if told.finished_at else "what was done is taken back")
            if told.undoing
            else "",
            "longest way": f"{' → '.join(path.nodes)}  ({span(path.seconds)})" if path.nodes else "",
        }
    )
    click.echo()
    print_table(
        ("", "NODE", "STATE", "TOOK", "TRY", "AFTER", "WHY"),
        [
            (
                ICONS.get(node.state, " "),
                node.name + (f" {counted(node.map)}" if node.map else ""),
                node.state,
                between(node.started_at, node.finished_at or (now if node.state == "running" else None)),
                str(node.attempt or "–"),
                f"undoes {node.undoes}" if node.undoes else ", ".join(node.parents) or "–",
                _why(node),
            )
            for node in told.nodes
        ],
    )


def counted(elements: MapCounts) -> str:
    """`×240: 236 ✓ 4 ✕`: how many elements a map has, and how they are."""
    words = ("succeeded", "dead", "cancelled", "skipped", "running", "blocked")
    parts = [f"{count} {ICONS[word]}" for word in words if (count := getattr(elements, word))]
    return f"×{elements.size}" + (f": {' '.join(parts)}" if parts else "")


def _why(node: FlowNode) -> str:
    if node.state == "waiting":
        until = f" until {clock_time(node.due_at)}" if node.due_at else ""
        return f"for the signal {node.signal}{until}" if node.signal else until.strip()
    if node.state == "skipped":
        return SKIPPED.get(node.reason or "", node.reason or "")
    if node.state == "dead" and node.map and not node.reason:
        return f"{node.map.size - node.map.succeeded} of {node.map.size} elements did not go well"
    return node.reason or ""


def _print_graph(told: Graph) -> None:
    print_facts(
        {
            "version": f"{told.version}, of revision {told.revision}",
            "params": ", ".join(told.params),
            "max_parallel": str(told.max_parallel or ""),
            "output": told.output or "",
        }
    )
    click.echo()
    print_table(
        ("NODE", "KIND", "TASK", "AFTER", "WHEN", "POOL"),
        [
            (
                node.name + (f" ≤{node.max_items}" if node.map else ""),
                f"map of {node.kind}s" if node.map else node.kind,
                node.task or "–",
                f"undoes {node.undoes}" if node.undoes else _after(told.edges, node.name),
                node.when,
                node.pool or "–",
            )
            for node in told.nodes
        ],
    )


def _after(edges: Sequence[GraphEdge], name: str) -> str:
    from msgspec import UNSET

    from bellringer.cli.output import short_json

    before = [e for e in edges if e.child == name]
    return ", ".join(e.parent + ("" if e.equals is UNSET else f" is {short_json(e.equals)}") for e in before) or "–"


@workflows.command(
    "nodes",
    examples="""
    bellringer workflows nodes run_… transform --state dead
    bellringer workflows nodes run_… 'transform[3]' -o json
    """,
)
@click.argument("run")
@click.argument("node", required=False)
@click.option("--state", type=click.Choice(tuple(ICONS)), help="Only those in this state.")
@limit_option
@output_option(*LIST)
@with_client
def nodes(client: Client, *, run: str, node: str | None, state: str | None, limit: int, output: str) -> None:
    """List the nodes of a RUN, or the elements of NODE, a map; with what each of them is for."""
    print_list(
        output,
        gather(lambda **page: client.run_nodes(run, node=node, state=state, **page), limit, output=output),
        head=("", "NODE", "STATE", "TOOK", "TRY", "ITEM", "WHY", "RUN"),
        row=lambda item: (
            ICONS.get(item.state, " "),
            item.name,
            item.state,
            between(item.started_at, item.finished_at),
            str(item.attempt or "–"),
            (item.item or "–")[:60],
            (item.reason or "–")[:80],
            item.run_id or "–",
        ),
        name=lambda item: str(item.name),
        nothing="no nodes",
    )


@workflows.command(
    "retry",
    examples="""
    bellringer workflows retry run_…
    bellringer workflows retry run_… 'transform[3]' load
    """,
)
@click.argument("run")
@click.argument("names", metavar="[NODE]...", nargs=-1)
@with_client
def retry(client: Client, *, run: str, names: Sequence[str]) -> None:
    """Run nodes of RUN again, and all that comes after them; without NODE, all that did not go well,
    or, if it succeeded, all of it."""
    done = client.retry_nodes(run, list(names) or None)
    click.echo(f"{done.run_id}  {done.state}")


@workflows.command(
    "mark",
    examples="""
    bellringer workflows mark run_… load succeeded --reason 'loaded by hand'
    bellringer workflows mark run_… extract succeeded --result '["a.csv"]' --reason 'the source is gone'
    """,
)
@click.argument("run")
@click.argument("node")
@click.argument("state", type=click.Choice(("succeeded", "dead")))
@click.option("--reason", required=True, help="Why; the audit keeps it.")
@click.option("--result", metavar="JSON", help="What the nodes after it take; text that is no JSON is itself.")
@with_client
def mark(client: Client, *, run: str, node: str, state: str, reason: str, result: str | None) -> None:
    """Say how NODE of RUN has ended; what comes after it goes on from there."""
    value: Any = None if result is None else read_value(result)
    done = client.mark_node(run, node, state, reason=reason, result=value)
    click.echo(f"{done.run_id}  {done.state}")


@workflows.command(
    "signal",
    examples="""
    bellringer workflows signal run_… approved
    bellringer workflows signal run_… approved --payload '{"by": "ana"}'
    """,
)
@click.argument("run")
@click.argument("name")
@click.option("--payload", metavar="JSON", help="What to tell; text that is no JSON is itself.")
@with_client
def signal(client: Client, *, run: str, name: str, payload: str | None) -> None:
    """Tell RUN of something that a node waits for; before that it is kept."""
    told = None if payload is None else read_value(payload)
    if isinstance(told, str) and told.lstrip()[:1] in ("{", "["):  # a signal cannot be taken back
        fail("--payload looks like JSON, and is none", """write it like --payload '{"by": "ana"}'""")
    done = client.signal(run, name, told)
    click.echo("taken" if done.taken else "kept until a node waits for it")


@workflows.command("versions", examples="bellringer workflows versions etl")
@click.argument("job")
@output_option(*LIST)
@with_client
def versions(client: Client, *, job: str, output: str) -> None:
    """List the versions of JOB, newest first, each with the first revision that had it."""
    print_list(
        output,
        client.graph_versions(job).items,
        head=("VERSION", "REVISION", "SINCE", "BY"),
        row=lambda v: (str(v.version), str(v.revision), clock_time(v.effective_at), v.who),
        name=lambda v: str(v.version),
        nothing="no versions",
    )


@workflows.command(
    "diff",
    examples="""
    bellringer workflows diff etl
    bellringer workflows diff etl 17 21
    """,
)
@click.argument("job")
@click.argument("before", metavar="[FROM", type=click.IntRange(1), required=False)
@click.argument("after", metavar="TO]", type=click.IntRange(1), required=False)
@output_option("table", "json")
@with_client
def diff(client: Client, *, job: str, before: int | None, after: int | None, output: str) -> None:
    """Show what differs between two versions of JOB; without them, between the present one and the one before it."""
    told = client.graph_difference(job, before=before, after=after)
    if output == "json":
        click.echo(as_json(told))
        return
    if before is None and told.before == told.after:
        click.echo(f"version {told.after} is the only one", err=True)
        return
    click.echo(f"version {told.before} → {told.after}")
    lines = _differences(told)
    for line in lines:
        click.echo(clean(line))
    if not lines:
        click.echo("nothing differs", err=True)


def _differences(told: GraphDifference) -> list[str]:
    return [
        *(f"+ {name}" for name in told.added),
        *(f"- {name}" for name in told.removed),
        *(f"~ {change.name}: {', '.join(change.fields)}" for change in told.changed),
        *(f"+ {edge.parent} → {edge.child}" for edge in told.edges_added),
        *(f"- {edge.parent} → {edge.child}" for edge in told.edges_removed),
        *([f"~ the workflow: {', '.join(told.fields)}"] if told.fields else []),
    ]
