"""The cost model: machines and money, checked by hand, and the tables of docs/scale.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bellringer.bench.commands import bench
from bellringer.bench.cost import REFERENCE_COSTS, TIERS, CostTier, Prices, cost_of, read_prices

SCALE = (Path(__file__).parents[3] / "docs" / "scale.md").read_text()
TIER = CostTier(
    name="t", jobs=1_000_000, runs_per_day=10e6, peak_runs_per_second=10_000, requests_per_second=0, handler_ms=1
)


def test_machines_are_sized_for_the_peak_and_disk_for_the_day() -> None:
    found = cost_of(
        TIER, replace(REFERENCE_COSTS, fire_db=20, work_db=24, work_worker=40, kept_bytes=400, wal_bytes=2_000)
    )
    assert found.workers == 15  # 10,000 × 1.04 ms / 0.7
    assert found.schedulers == 2
    assert found.database_vcpus == 2  # 0.63 cores; two are the least
    assert found.wal_gb_per_day == 20.0
    assert found.disk_gb == 181 + 20  # (10 M × 30 × 400 bytes + 1 M × 646 bytes) × 1.5, and room for WAL


def test_money_is_machines_times_prices() -> None:
    prices = Prices(process_vcpu_hour=1, process_gb_hour=0, database_vcpu_hour=0, disk_gb_month=0, archive_gb_month=0)
    found = cost_of(TIER, prices=prices)
    assert found.total_usd == found.processes_usd == 730 * (found.workers + found.schedulers + found.api_processes)
    alone = cost_of(replace(TIER, standby=False), prices=replace(Prices(), process_vcpu_hour=0, process_gb_hour=0))
    both = cost_of(TIER, prices=replace(Prices(), process_vcpu_hour=0, process_gb_hour=0))
    assert both.database_usd == 2 * alone.database_usd


def test_prices_can_be_replaced() -> None:
    assert read_prices(["disk_gb_month=0.08"]).disk_gb_month == 0.08
    with pytest.raises(ValueError, match="there is no price 'disk'"):
        read_prices(["disk=1"])
    done = CliRunner().invoke(bench, ["cost", "--price", "database_vcpu_hour=0", "--json"])
    assert done.exit_code == 0, done.output
    assert {row["database_usd"] for row in json.loads(done.stdout)} == {0}
    refused = CliRunner().invoke(bench, ["cost", "--jobs", "5"])
    assert refused.exit_code == 2
    own = CliRunner().invoke(bench, ["cost", "--jobs", "50000", "--runs-per-day", "5e6", "--peak", "800"])
    assert "total usd" in own.output


def test_the_document_has_the_figures_of_the_model() -> None:
    for tier in TIERS:
        found = cost_of(tier)
        row = re.search(rf"^\| {re.escape(tier.name)} \|(.*)\|$", SCALE.partition("### Money")[2], re.MULTILINE)
        assert row, tier.name
        money = (found.processes_usd, found.database_usd, found.storage_usd, found.total_usd)
        assert [cell.strip() for cell in row[1].split("|")][:4] == [f"{usd:,}" for usd in money]
    for price in (Prices().process_vcpu_hour, Prices().database_vcpu_hour, Prices().disk_gb_month):
        assert f"{price:g}" in SCALE
