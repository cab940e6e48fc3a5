"""`bellringer runs export` writes every run that the filters select, page by page."""

from __future__ import annotations

import csv
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zstandard

from bellringer.cli import export_runs
from bellringer.engine import send
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Ask = Callable[..., Awaitable[tuple[str, str]]]


async def test_all_runs_are_exported_page_by_page(
    store: Store, catalog: Catalog, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_runs, "PAGE", 2)
    specs = [send.SendSpec(task=task) for task in ("demo", "demo", "demo", "demo", "demo", "other")]
    made = [(await send.send(store, catalog, spec, tenant_id=1)).key.id for spec in specs]
    out, _ = await ask("runs", "export", "--task", "demo")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert {line["run_id"] for line in lines} == set(made[:5])
    file = tmp_path / "runs.csv"
    await ask("runs", "export", "--format", "csv", "--since", "2020-01-01T00:00:00Z", "--output", str(file))
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert {row["run_id"]: row["task"] for row in rows}.keys() == set(made)
    file = tmp_path / "runs.zst"
    await ask("runs", "export", "--zstd", "--output", str(file))
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
    assert len(plain.splitlines()) == len(made)
