"""The benchmark next to the peers: its recorder, its figures, and its report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import click
import pytest
from bench.peers import recorder, report, summary
from bench.peers.__main__ import choose
from bench.peers.catalog import systems
from bench.peers.cpu import cpu_seconds
from bench.peers.figures import Failed, check_exactly_once, drain, herd, lateness, of_occurrence, percentile
from bench.peers.install import HERE
from bench.peers.recorder import SLOT, SLOTS_PER_FILE, Execution, Recorder, Recordings

DUE_NS = 1_800_000_000_000_000_000
MS = 1_000_000


def executed(*late_ms: float, due_ns: int = DUE_NS) -> list[Execution]:
    return [Execution(1, number, due_ns, due_ns + int(late * MS)) for number, late in enumerate(late_ms)]


FORKING = """
import os
from bench.peers.recorder import record
record(1, 0, 0)
if child := os.fork():
    os.waitpid(child, 0)
record(1, 2 if child else 1, 0)
"""
BUSY = """
import os
while sum(os.times()[:2]) < 0.3:
    pass
"""


class TestRecorder:
    def test_it_records_due_and_start_times(self, tmp_path: Path) -> None:
        Recorder(tmp_path).record(3, 7, 1_800_000_000_000_000)
        recordings = Recordings(tmp_path)
        assert recordings.poll(3) == 1
        (execution,) = recordings.of(3)
        assert (execution.number, execution.due_ns) == (7, DUE_NS)
        assert execution.start_ns > 1_700_000_000 * 10**9

    def test_a_poll_reads_only_what_was_added(self, tmp_path: Path) -> None:
        writer, recordings = Recorder(tmp_path), Recordings(tmp_path)
        for number in range(3):
            writer.record(1, number, 0)
            assert recordings.poll(1) == number + 1
        assert [execution.number for execution in recordings.of(1)] == [0, 1, 2]

    def test_a_slot_that_is_not_written_yet_is_read_later(self, tmp_path: Path) -> None:
        path = tmp_path / "1.records"
        path.write_bytes(bytes(SLOT.size) + SLOT.pack(1, 1, 0, 5))
        recordings = Recordings(tmp_path)
        assert recordings.poll(1) == 0
        path.write_bytes(SLOT.pack(1, 0, 0, 4) + SLOT.pack(1, 1, 0, 5))
        assert recordings.poll(1) == 2

    def test_half_a_slot_is_read_when_it_is_complete(self, tmp_path: Path) -> None:
        path, slot = tmp_path / "1.records", SLOT.pack(1, 0, 0, 4)
        path.write_bytes(slot + slot[:10])
        recordings = Recordings(tmp_path)
        assert recordings.poll(1) == 1
        path.write_bytes(slot + slot)
        assert recordings.poll(1) == 2

    def test_threads_write_different_slots(self, tmp_path: Path) -> None:
        writer, jobs = Recorder(tmp_path), 5_000
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: writer.record(1, number, 0), range(jobs)))
        recordings = Recordings(tmp_path)
        assert recordings.poll(1) == jobs
        check_exactly_once(recordings.of(1), jobs)

    def test_a_forked_process_has_its_own_file(self, tmp_path: Path) -> None:
        environment = {**os.environ, recorder.FOLDER_VARIABLE: str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
        subprocess.run([sys.executable, "-c", FORKING], env=environment, check=True)
        recordings = Recordings(tmp_path)
        recordings.poll(1)
        check_exactly_once(recordings.of(1), 3)
        assert len(list(tmp_path.glob("*.records"))) == 2

    def test_a_full_file_is_an_error_and_not_a_lost_execution(self, tmp_path: Path) -> None:
        writer = Recorder(tmp_path)
        writer._offsets = count(SLOT.size * SLOTS_PER_FILE)
        with pytest.raises(Exception, match="buffer"):
            writer.record(1, 0, 0)


class TestFigures:
    @pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
    def test_percentiles_are_values_that_occurred(self, part: float, value: int) -> None:
        assert percentile(range(100, 0, -1), part) == value

    def test_one_value_is_every_percentile(self) -> None:
        assert {percentile([7.0], part) for part in (0.0, 0.5, 0.99, 1.0)} == {7.0}

    def test_exactly_once_is_accepted_in_any_order(self) -> None:
        check_exactly_once(executed(1, 2, 3)[::-1], 3)

    @pytest.mark.parametrize(
        ("executions", "reason"),
        [
            (executed(1, 2), "1 of 3 did not execute"),
            ([], "3 of 3 did not execute"),
            (executed(1, 2, 3) + executed(9), "1 of 3 executed twice"),
            (executed(1, 2, 3, 4), "1 of 3 were never sent"),
            (executed(1, 2, -5), "1 of 3 were early"),
        ],
    )
    def test_anything_else_has_no_figure(self, executions: list[Execution], reason: str) -> None:
        with pytest.raises(Failed, match=f"^{reason}$"):
            check_exactly_once(executions, 3)

    def test_a_lost_job_is_not_hidden_by_a_repeated_one(self) -> None:
        with pytest.raises(Failed, match="1 of 2 did not execute; 1 of 2 executed twice"):
            check_exactly_once(executed(1) + executed(2), 2)

    def test_a_herd_is_measured_from_its_due_time(self) -> None:
        assert herd(executed(100, 300, 500), DUE_NS) == {
            "per_second": 6.0,
            "first_start_late_ms": 100.0,
            "last_start_late_ms": 500.0,
        }

    def test_a_drain_is_measured_from_the_first_start(self) -> None:
        assert drain(executed(100, 200, 300))["per_second"] == 10.0

    def test_lateness(self) -> None:
        assert lateness(executed(*range(1, 101))) == {"p50_ms": 50.0, "p99_ms": 99.0, "max_ms": 100.0}

    def test_an_occurrence_excludes_the_minute_before(self) -> None:
        minute = 60 * 10**9
        unknown_due = [Execution(1, 0, 0, DUE_NS - 1), Execution(1, 1, 0, DUE_NS)]
        known_due = [Execution(1, 2, DUE_NS - minute, DUE_NS + 1), Execution(1, 3, DUE_NS, DUE_NS + 1)]
        found = of_occurrence(unknown_due + known_due, DUE_NS)
        assert [(execution.number, execution.due_ns) for execution in found] == [(1, DUE_NS), (3, DUE_NS)]

    def test_cpu_time_includes_children_that_ended(self) -> None:
        before = cpu_seconds({"this": [os.getpid()]})["this"]
        subprocess.run([sys.executable, "-I", "-c", BUSY], check=True)
        assert cpu_seconds({"this": [os.getpid()]})["this"] - before >= 0.25


def result(system: str, scenario: str, number: int = 1, **figures: object) -> dict[str, object]:
    shared = {"count": 10_000, "cpu_seconds": {"PostgreSQL": 1.25, "worker 1": 0.5}}
    return {"system": system, "scenario": scenario, "round": number, **shared, **figures}


def herd_result(system: str, per_second: float, number: int = 1) -> dict[str, object]:
    return result(system, "S1", number, per_second=per_second, first_start_late_ms=12.3, last_start_late_ms=900.0)


def late_result(system: str, p50: float, p99: float) -> dict[str, object]:
    return result(system, "S4", p50_ms=p50, p99_ms=p99, max_ms=p99)


RESULTS = [
    herd_result("bellringer", 10_000.0),
    herd_result("bellringer", 12_000.0, 2),
    herd_result("pgqueuer", 20_000.0),
    {"system": "pgqueuer", "scenario": "S1", "round": 2, "failed": "7 of 10,000 executed twice"},
    herd_result("dbos", 400.0),
    {"system": "celery", "scenario": "S1", "round": 1, "failed": "the jobs were sent 2.0 s too late\nmore"},
    late_result("bellringer", 2.0, 5.0),
    late_result("apscheduler", 1.0, 4.0),
    late_result("pgqueuer", 20.0, 40.0),
]
DOCUMENT = {
    "date": "2026-11-18",
    "rounds": 2,
    "machine": {
        "processor": "A processor",
        "cores": 2,
        "memory_gib": 24,
        "inserted_rows_per_second": 290_000,
        "commits_per_second_1_clients": 8_000,
        "commits_per_second_8_clients": 21_000,
    },
    "versions": {"PostgreSQL": "15.18", "Python": "3.11.2", "pgqueuer": "1.6.0"},
    "systems": {
        name: {"title": system.title, "runtime": "Python", "store": system.store, "settings": system.settings}
        for name, system in systems().items()
    },
    "results": RESULTS,
}


class TestSummary:
    def test_the_best_round_counts(self) -> None:
        best = summary.best_rounds(RESULTS, "S1")
        assert list(best) == ["pgqueuer", "bellringer", "dbos"]
        assert best["bellringer"].result["round"] == 2

    def test_a_ratio_above_one_is_better_for_rates_and_lateness(self) -> None:
        assert summary.compare(RESULTS, "S1", "per_second").ratio == pytest.approx(0.6)
        assert summary.compare(RESULTS, "S4", "p50_ms").ratio == pytest.approx(0.5)
        assert summary.compare(RESULTS, "S4", "p99_ms").ratio == pytest.approx(0.8)
        assert summary.compare(RESULTS, "S2", "per_second").ratio is None

    def test_a_system_without_a_figure_keeps_its_reason(self) -> None:
        assert list(summary.only_failures(RESULTS, "S1")) == ["celery"]
        assert summary.best_rounds(RESULTS, "S1")["pgqueuer"].failures == ("7 of 10,000 executed twice",)

    def test_only_systems_near_the_best_peer_run_again(self) -> None:
        assert summary.is_contender(RESULTS, "bellringer", ["S1"])
        assert summary.is_contender(RESULTS, "pgqueuer", ["S1"])
        assert not summary.is_contender(RESULTS, "dbos", ["S1"])
        assert not summary.is_contender(RESULTS, "celery", ["S1"])
        assert not summary.is_contender(RESULTS, "pgqueuer", ["S4"])
        assert summary.is_contender(RESULTS, "pgqueuer", ["S4", "S1"])


class TestReport:
    def test_the_comparison_names_the_best_peer_and_the_ratio(self) -> None:
        lines = report.render(DOCUMENT).splitlines()
        title = report.TITLES["S1"]
        assert f"| S1: {title} | 12,000/s | 20,000/s | PgQueuer | 0.60 |" in lines
        assert f"| S4: {report.TITLES['S4']}, p99 | 5.0 ms | 4.0 ms | APScheduler 3 | 0.80 |" in lines

    def test_each_system_has_a_row_and_each_failure_a_reason(self) -> None:
        lines = report.render(DOCUMENT).splitlines()
        assert "| Bellringer | 12,000 | 12.3 ms | 1.25 s | 10,000 | 2 |" in lines
        assert "- Celery has no figure: the jobs were sent 2.0 s too late." in lines
        assert "- PgQueuer failed in 1 of 2 rounds: 7 of 10,000 executed twice." in lines
        assert "| S1 | Bellringer | worker 1 | 0.50 s |" in lines

    def test_all_rows_of_a_table_have_as_many_cells_as_its_head(self) -> None:
        for table in report.render(DOCUMENT).split("\n\n"):
            if table.startswith("|"):
                assert len({line.count(" | ") for line in table.splitlines()}) == 1, table

    def test_a_cell_holds_one_figure(self) -> None:
        rows = [line.strip("|").split("|") for line in report.render(DOCUMENT).splitlines() if line.startswith("|")]
        assert [cell for row in rows for cell in row[1:] if len(re.findall(r"\d[\d.,]*", cell)) > 1] == []

    def test_only_the_text_between_the_markers_changes(self) -> None:
        page = "# Benchmarks\n\nAbout.\n\n## Firing\n\nRows.\n"
        first = report.replace_section(page, "old section")
        second = report.replace_section(first, "new section")
        assert first.startswith("# Benchmarks\n\nAbout.\n")
        assert first.endswith("## Firing\n\nRows.\n")
        assert second == first.replace("old section", "new section")
        assert report.replace_section(second, "new section") == second


class TestSelection:
    def test_names_of_systems_and_scenarios_can_be_mixed(self) -> None:
        chosen, scenarios = choose("pgqueuer, bellringer,s5,S3-single")
        assert [system.name for system in chosen] == ["pgqueuer", "bellringer"]
        assert scenarios == ["S5-1", "S5-2", "S3-single"]

    def test_without_names_everything_runs(self) -> None:
        chosen, scenarios = choose("S1")
        assert len(chosen) == len(systems())
        assert scenarios == ["S1"]
        assert len(choose("")[1]) == 7

    def test_an_unknown_name_is_an_error(self) -> None:
        with pytest.raises(click.UsageError, match="sidekiq is neither"):
            choose("sidekiq")


def test_the_lock_files_name_no_registry() -> None:
    lock = json.loads((HERE / "node" / "package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert "://" not in (HERE / "requirements.txt").read_text()
