"""Renders the results as the section of docs/benchmarks.md between two markers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.peers import summary
from bench.peers.summary import Best, Comparison

BEGIN: Final = "<!-- begin: written by `make bench` -->"
END: Final = "<!-- end: written by `make bench` -->"

TITLES: Final = {
    "S1": "10,000 one-shots due at the same instant",
    "S2": "10,000 jobs on `* * * * *`",
    "S3-single": "sends, one awaited call at a time",
    "S3-bulk": "sends in calls of 1,000",
    "S4": "2,000 one-shots due evenly over 20 s",
    "S5-1": "20,000 ready jobs, one worker process",
    "S5-2": "20,000 ready jobs, two worker processes",
}
IMAGES: Final = {
    "S1": ("peers-executions.png", "Executions per second in S1, S2 and S5"),
    "S3-single": ("peers-sends.png", "Sends per second"),
    "S4": ("peers-lateness.png", "Lateness in S4"),
}

Document = Mapping[str, Any]
Column = tuple[str, Callable[[Best], str]]


def replace_section(page: str, section: str) -> str:
    """Returns the page with the section between its markers; a page without markers gets it before its first heading
    of the second level."""
    block = f"{BEGIN}\n\n{section.strip()}\n\n{END}"
    if BEGIN in page and END in page:
        head, _, rest = page.partition(BEGIN)
        return head + block + rest.partition(END)[2]
    head, heading, rest = page.partition("\n## ")
    return f"{head}\n{block}\n{heading}{rest}"


def render(document: Document) -> str:
    """Returns the section as Markdown."""
    results: list[dict[str, Any]] = document["results"]
    scenarios = [scenario for scenario in TITLES if any(result["scenario"] == scenario for result in results)]
    parts = [
        "## Next to the peers",
        _introduction(document),
        _comparison(document, results, scenarios),
        *(_scenario(document, results, scenario) for scenario in scenarios),
        _cpu(document, results, scenarios),
        _settings(document),
        _machine(document),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(document: Document) -> str:
    machine = document["machine"]
    return (
        f"`make bench` ran all systems in turn on one machine on {document['date']}, with one PostgreSQL"
        f" {document['versions']['PostgreSQL']} and one Redis-compatible server without persistence. The"
        " PostgreSQL is the distribution's, with 1 GB `shared_buffers` and otherwise as shipped, so every commit is"
        f" durable. {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB of memory. Each"
        f" figure is the best of up to {document['rounds']} rounds. Handlers do nothing except record their start time"
        " in a memory-mapped file; a scenario in which a job was executed twice or not at all has no figure. Lateness"
        " is the start time minus the due time. [bench/peers](../bench/peers/README.md) describes the scenarios; the"
        " results of every round are in [results.json](../bench/peers/results.json)."
    )


def _comparison(document: Document, results: Sequence[Mapping[str, Any]], scenarios: Iterable[str]) -> str:
    rows = []
    for scenario in scenarios:
        for field, suffix in (("p50_ms", ", p50"), ("p99_ms", ", p99")) if scenario == "S4" else (("per_second", ""),):
            compared = summary.compare(results, scenario, field)
            rows.append([f"{scenario}: {TITLES[scenario]}{suffix}", *_compared(document, field, compared)])
    table = _table(["scenario", "Bellringer", "best peer", "which", "ratio"], rows)
    return f"{table}\n\nThe ratio is Bellringer's rate to the peer's; for S4 it is the peer's lateness to Bellringer's."


def _compared(document: Document, field: str, compared: Comparison) -> list[str]:
    ours, peer = compared.ours, compared.peer
    return [
        _figure(field, ours.result[field]) if ours else "failed",
        _figure(field, peer.result[field]) if peer else "–",
        _title(document, peer.system) if peer else "–",
        f"{compared.ratio:.2f}" if compared.ratio is not None else "–",
    ]


def _scenario(document: Document, results: Sequence[Mapping[str, Any]], scenario: str) -> str:
    columns = _columns(scenario)
    best = summary.best_rounds(results, scenario)
    rows = [[_title(document, name), *(column(found) for _, column in columns)] for name, found in best.items()]
    table = _table(["system", *(name for name, _ in columns)], rows)
    notes = [
        f"- {_title(document, name)} has no figure: {_first_line(reason)}."
        for name, reason in summary.only_failures(results, scenario).items()
    ]
    notes += [
        f"- {_title(document, name)} failed in {len(found.failures)} of {found.rounds} rounds:"
        f" {_first_line(found.failures[-1])}."
        for name, found in best.items()
        if found.failures
    ]
    image = [f"![{IMAGES[scenario][1]}](images/{IMAGES[scenario][0]})"] if scenario in IMAGES else []
    heading = f"### {scenario}: {TITLES[scenario]}"
    return "\n\n".join([heading, *image, table, *(["\n".join(notes)] if notes else [])])


def _columns(scenario: str) -> list[Column]:
    jobs: Column = ("jobs", lambda best: f"{best.result['count']:,}")
    rounds: Column = ("rounds", lambda best: str(best.rounds))
    if scenario in {"S1", "S2"}:
        return [
            ("executions/s", lambda best: _number(best.result["per_second"])),
            ("first start late", lambda best: _milliseconds(best.result["first_start_late_ms"])),
            ("PostgreSQL CPU", lambda best: _seconds(best, "PostgreSQL")),
            jobs,
            rounds,
        ]
    if scenario == "S4":
        return [
            ("p50", lambda best: _milliseconds(best.result["p50_ms"])),
            ("p99", lambda best: _milliseconds(best.result["p99_ms"])),
            ("PostgreSQL CPU", lambda best: _seconds(best, "PostgreSQL")),
            jobs,
            rounds,
        ]
    if scenario.startswith("S5"):
        return [
            ("executions/s", lambda best: _number(best.result["per_second"])),
            ("worker CPU per run", lambda best: f"{best.result['worker_us_per_run']:.0f} µs"),
            ("with process start", lambda best: f"{best.result['worker_us_per_run_with_start']:.0f} µs"),
            jobs,
            rounds,
        ]
    return [("sends/s", lambda best: _number(best.result["per_second"])), jobs, rounds]


def _cpu(document: Document, results: Sequence[Mapping[str, Any]], scenarios: Iterable[str]) -> str:
    """CPU seconds of each process, in the round that the figures are from."""
    rows = []
    for scenario in scenarios:
        for name, best in summary.best_rounds(results, scenario).items():
            for group, seconds in best.result.get("cpu_seconds", {}).items():
                rows.append([scenario, _title(document, name), group, f"{seconds:.2f} s"])
    table = _table(["scenario", "system", "process", "CPU"], rows)
    return f"### CPU by process\n\nPostgreSQL includes its backends and background processes.\n\n{table}"


def _settings(document: Document) -> str:
    known = document["versions"]
    rows = [
        [system["title"], known.get(name, "–"), system["store"], system["runtime"]]
        for name, system in document["systems"].items()
    ]
    servers = [[name, known[name], "–", "–"] for name in ("PostgreSQL", "Valkey", "Python", "Node.js") if name in known]
    table = _table(["system", "version", "store", "runtime"], [*rows, *servers])
    settings = "\n".join(f"- {system['title']}: {system['settings']}." for system in document["systems"].values())
    return (
        f"### Versions and settings\n\n{table}\n\nSettings that differ from the defaults:\n\n{settings}\n\n"
        "Systems that need minutes for a scenario run it with fewer jobs. Systems with less than a third of the best"
        " peer's rate run in the first round only."
    )


def _machine(document: Document) -> str:
    machine = document["machine"]
    rows = [
        ["rows inserted with statements of 1,000 rows", f"{machine['inserted_rows_per_second']:,} rows/s"],
        ["single-row inserts, one client (pgbench)", f"{machine['commits_per_second_1_clients']:,} commits/s"],
        ["single-row inserts, eight clients (pgbench)", f"{machine['commits_per_second_8_clients']:,} commits/s"],
    ]
    return "### The machine's own limits\n\n" + _table(["measurement on the same server", "figure"], rows)


def _figure(field: str, value: float) -> str:
    return f"{_number(value)}/s" if field == "per_second" else _milliseconds(value)


def _title(document: Document, system: str) -> str:
    return str(document["systems"][system]["title"])


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _seconds(best: Best, group: str) -> str:
    return f"{best.result['cpu_seconds'][group]:.2f} s"


def _first_line(reason: str) -> str:
    return reason.strip().splitlines()[0].rstrip(".: ")[:200]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(document: Document, page: Path) -> None:
    page.write_text(replace_section(page.read_text(), render(document)))
