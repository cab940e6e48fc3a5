"""`bellringer workflows`: graphs of workflows, and the nodes of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bellringer.cli.command_groups import CommandGroup, fail
from bellringer.cli.connect import with_client
from bellringer.cli.options import Length, fetch_pages, limit_option, read_value
from bellringer.cli.output import (
    LIST,
    ONE,
    format_between,
    format_local,
    format_relative,
    format_seconds,
    output_option,
    print_fields,
    print_list,
    print_table,
    sanitize,
    to_json,
)

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
SKIPPED: Final = {"upstream": "an earlier node failed", "condition": "branch not taken"}


@click.group(
    cls=CommandGroup,
    examples="""
    bellringer workflows list
    bellringer workflows graph run_…
    bellringer workflows retry run_… 'transform[3]'
    """,
)
def workflows() -> None:
    """Start and inspect workflows: runs that consist of nodes. Use `bellringer jobs` to trigger or pause their jobs."""


@workflows.command(
    "list",
    examples="""
    bellringer workflows list
    bellringer workflows list --q etl -o json
    bellringer workflows list --state dead,running
    """,
)
@click.option("--q", metavar="TEXT", help="Only workflows whose name contains this text.")
@click.option(
    "--state", metavar="STATE,…", help="Only workflows whose last run has one of these states; none: no run yet."
)
@limit_option
@output_option(*LIST)
@with_client
def list_workflows(client: Client, *, q: str | None, state: str | None, limit: int, output: str) -> None:
    """List workflows by name, with the latest run of each."""
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    print_list(
        output,
        fetch_pages(client.workflows, limit, output=output, q=q, state=state),
        head=("NAME", "NODES", "VERSION", "NEXT", "LAST", "TOOK", "RUN"),
        row=lambda w: (
            w.name,
            str(w.nodes),
            str(w.version),
            "paused" if w.paused else format_relative(w.next_at, now),
            w.last.state if w.last else "–",
            format_between(w.last.started_at, w.last.finished_at) if w.last else "–",
            w.last.run_id if w.last else "–",
        ),
        name=lambda w: str(w.name),
        empty="no workflows",
    )


@workflows.command(
    "start",
    examples="""
    bellringer workflows start etl --param region=eu
    bellringer workflows start graph.json --param region=eu --delay 5m --wait
    """,
)
@click.argument("what", metavar="FILE|NAME")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="One parameter; the value is JSON, or text if it is not valid JSON. Repeatable.",
)
@click.option("--at", metavar="INSTANT", help="Run at this RFC 3339 instant.")
@click.option("--delay", metavar="TIME", help="Run after this time, such as 5m.")
@click.option(
    "--send-key", metavar="TEXT", help="Start only once: a second start with this key within a day does nothing."
)
@click.option("--priority", type=click.IntRange(0, 9), help="Priority; higher runs first.  [default: 5]")
@click.option("--run-timeout", metavar="TIME", help="Maximum duration of the whole run.")
@click.option("--wait", is_flag=True, help="Wait for the run to end; exit with code 3 if it did not succeed.")
@click.option("--timeout", type=Length(), help="Maximum time to wait, such as 30s or 10m.  [default: no limit]")
@output_option(*ONE)
@with_client
def start(
    client: Client,
    /,
    *,
    what: str,
    params: Sequence[str],
    wait: bool,
    timeout: float | None,
    output: str,
    **options: Any,
) -> None:
    """Run a workflow once, without a job: the graph in the JSON document FILE, or that of the workflow job NAME.

    The run does not belong to the job NAME. Use `bellringer jobs trigger` for a run of that job.
    """
    from bellringer.cli.runs import RUN_FAILED_EXIT_CODE, print_run

    given = dict(_read_param(text) for text in params)
    renamed = {"run_timeout": "timeout", "send_key": "key"}
    chosen = {renamed.get(name, name): value for name, value in options.items() if value is not None}
    graph = _read_graph(what)
    source: dict[str, Any] = {"name": what} if graph is None else {"workflow": graph}
    run = client.start_workflow(**source, params=given, **chosen)
    if wait:
        run = client.wait(run.run_id, timeout)
    if output == "table" and not wait:
        click.echo(f"{run.run_id}  {run.state}")
    else:
        print_run(run, output)
    if wait and run.state != "succeeded":
        click.get_current_context().exit(RUN_FAILED_EXIT_CODE)


def _read_param(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        fail(f"--param {text!r} has no value", "write it like --param region=eu")
    return name, read_value(value)


def _read_graph(what: str) -> Any:
    """Read the document of a graph from a file; None if there is no such file."""
    import msgspec

    path = Path(what)
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        fail(f"{what} is not JSON: {error}", "write the graph as in the field `workflow` of a job")


@workflows.command(
    "graph",
    examples="""
    bellringer workflows graph run_…
    bellringer workflows graph etl
    bellringer workflows graph etl --version 17 -o json
    """,
)
@click.argument("what", metavar="RUN|JOB")
@click.option(
    "--version", type=click.IntRange(1), metavar="N", help="Version of the job's graph.  [default: the current one]"
)
@output_option(*ONE)
@with_client
def graph(client: Client, *, what: str, version: int | None, output: str) -> None:
    """Show the nodes of a RUN or JOB in order of dependency. For a RUN, their states are included."""
    shown: RunGraph | Graph
    is_run = what.startswith("run_")
    shown = client.run_graph(what) if is_run else client.job_graph(what, version=version)
    if output == "json":
        click.echo(to_json(shown))
    elif output == "name":
        for node in shown.nodes:
            click.echo(sanitize(node.name))
    elif is_run:
        _print_run(shown)  # type: ignore[arg-type] # the graph of a run
    else:
        _print_graph(shown)  # type: ignore[arg-type] # the graph of a job


def _print_run(shown: RunGraph) -> None:
    from bellringer.clock import SystemClock

    now = SystemClock().now()
    path = shown.critical_path
    print_fields(
        {
            "run": shown.run_id,
            "workflow": f"{shown.job or shown.job_id}, version {shown.version}",
            "state": shown.state,
            "started": format_local(shown.started_at),
            "took": format_between(shown.started_at, shown.finished_at or (now if shown.started_at else None)),
            "stopped": shown.stopped or "",
            "undoing": ("finished nodes were undone" if shown.finished_at else "finished nodes are being undone")
            if shown.undoing
            else "",
            "critical path": f"{' → '.join(path.nodes)}  ({format_seconds(path.seconds)})" if path.nodes else "",
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
                format_between(node.started_at, node.finished_at or (now if node.state == "running" else None)),
                str(node.attempt or "–"),
                f"undoes {node.undoes}" if node.undoes else ", ".join(node.parents) or "–",
                _why(node),
            )
            for node in shown.nodes
        ],
    )


def counted(elements: MapCounts) -> str:
    """Render the element counts of a map node, such as `×240: 236 ✓ 4 ✕`."""
    words = ("succeeded", "dead", "cancelled", "skipped", "running", "blocked")
    parts = [f"{count} {ICONS[word]}" for word in words if (count := getattr(elements, word))]
    return f"×{elements.size}" + (f": {' '.join(parts)}" if parts else "")


def _why(node: FlowNode) -> str:
    if node.state == "waiting":
        until = f" until {format_local(node.due_at)}" if node.due_at else ""
        return f"waits for signal {node.signal}{until}" if node.signal else until.strip()
    if node.state == "skipped":
        return SKIPPED.get(node.reason or "", node.reason or "")
    if node.state == "dead" and node.map and not node.reason:
        return f"{node.map.size - node.map.succeeded} of {node.map.size} elements did not succeed"
    return node.reason or ""


def _print_graph(shown: Graph) -> None:
    print_fields(
        {
            "version": f"{shown.version}, since revision {shown.revision}",
            "params": ", ".join(shown.params),
            "max_parallel": str(shown.max_parallel or ""),
            "output": shown.output or "",
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
                f"undoes {node.undoes}" if node.undoes else _after(shown.edges, node.name),
                node.when,
                node.pool or "–",
            )
            for node in shown.nodes
        ],
    )


def _after(edges: Sequence[GraphEdge], name: str) -> str:
    from msgspec import UNSET

    from bellringer.cli.output import to_compact_json

    before = [e for e in edges if e.child == name]
    return (
        ", ".join(e.parent + ("" if e.equals is UNSET else f" is {to_compact_json(e.equals)}") for e in before) or "–"
    )


@workflows.command(
    "nodes",
    examples="""
    bellringer workflows nodes run_… transform --state dead
    bellringer workflows nodes run_… 'transform[3]' -o json
    """,
)
@click.argument("run")
@click.argument("node", required=False)
@click.option(
    "--state",
    type=click.Choice(tuple(ICONS)),
    metavar="STATE",
    help=f"Only nodes in this state: {', '.join(ICONS)}.",
)
@limit_option
@output_option(*LIST)
@with_client
def nodes(client: Client, *, run: str, node: str | None, state: str | None, limit: int, output: str) -> None:
    """List the nodes of a RUN, or the elements of a map NODE."""
    print_list(
        output,
        fetch_pages(lambda **page: client.run_nodes(run, node=node, state=state, **page), limit, output=output),
        head=("", "NODE", "STATE", "TOOK", "TRY", "ITEM", "WHY", "RUN"),
        row=lambda item: (
            ICONS.get(item.state, " "),
            item.name,
            item.state,
            format_between(item.started_at, item.finished_at),
            str(item.attempt or "–"),
            (item.item or "–")[:60],
            (item.reason or "–")[:80],
            item.run_id or "–",
        ),
        name=lambda item: str(item.name),
        empty="no nodes",
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
    """Run nodes of RUN again, and all nodes after them.

    Without NODE: all nodes that did not succeed, or all nodes if the run succeeded.
    """
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
@click.option("--reason", required=True, help="Reason, stored in the audit log.")
@click.option("--result", metavar="JSON", help="Result for the following nodes; JSON, or text if it is not valid JSON.")
@with_client
def mark(client: Client, *, run: str, node: str, state: str, reason: str, result: str | None) -> None:
    """Set the final state of NODE by hand; RUN continues from there."""
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
@click.option("--payload", metavar="JSON", help="Data of the signal; JSON, or text if it is not valid JSON.")
@with_client
def signal(client: Client, *, run: str, name: str, payload: str | None) -> None:
    """Send the signal NAME to RUN. It is kept until a node waits for it."""
    shown = None if payload is None else read_value(payload)
    if isinstance(shown, str) and shown.lstrip()[:1] in ("{", "["):  # probably a typo, and a signal cannot be revoked
        fail("--payload looks like JSON but is not valid", """write it like --payload '{"by": "ana"}'""")
    done = client.signal(run, name, shown)
    click.echo("received by a waiting node" if done.taken else "stored until a node waits for it")


@workflows.command("versions", examples="bellringer workflows versions etl")
@click.argument("job")
@output_option(*LIST)
@with_client
def versions(client: Client, *, job: str, output: str) -> None:
    """List the graph versions of JOB, newest first."""
    print_list(
        output,
        client.graph_versions(job).items,
        head=("VERSION", "REVISION", "SINCE", "BY"),
        row=lambda v: (str(v.version), str(v.revision), format_local(v.effective_at), v.who),
        name=lambda v: str(v.version),
        empty="no versions",
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
    """Compare two graph versions of JOB. The default is the latest change."""
    shown = client.graph_difference(job, before=before, after=after)
    if output == "json":
        click.echo(to_json(shown))
        return
    if before is None and shown.before == shown.after:
        click.echo(f"version {shown.after} is the only version", err=True)
        return
    click.echo(f"version {shown.before} → {shown.after}")
    lines = _differences(shown)
    for line in lines:
        click.echo(sanitize(line))
    if not lines:
        click.echo("no differences", err=True)


def _differences(shown: GraphDifference) -> list[str]:
    return [
        *(f"+ {name}" for name in shown.added),
        *(f"- {name}" for name in shown.removed),
        *(f"~ {change.name}: {', '.join(change.fields)}" for change in shown.changed),
        *(f"+ {edge.parent} → {edge.child}" for edge in shown.edges_added),
        *(f"- {edge.parent} → {edge.child}" for edge in shown.edges_removed),
        *([f"~ workflow: {', '.join(shown.fields)}"] if shown.fields else []),
    ]
