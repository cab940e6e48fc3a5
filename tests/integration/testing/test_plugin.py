"""The plugin as a user's test run loads it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from bellringer.testing.postgres import TestServer

SHOP = """
    from bellringer import App, cron

    app = App()

    @app.schedule(cron("30 2 * * *", tz="Europe/Paris"))
    @app.task
    def cleanup(days: int = 30) -> int:
        return days

    def test_nightly(bellringer_test):
        t = bellringer_test(app, at="2026-03-28T12:00:00+01:00")
        t.advance("3d", drain=True)
        assert [fire.outcome for fire in t.fires("cleanup")] == ["fired"] * 3

    def test_every_test_has_a_database_of_its_own(bellringer_test):
        assert bellringer_test(app).runs("cleanup") == []
"""


def test_a_users_test_run(bellringer_server: TestServer, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(textwrap.dedent(SHOP))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", str(tmp_path)],
        env={**os.environ, "BELLRINGER_TEST_DSN": bellringer_server.dsn},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "2 passed" in done.stdout, done.stdout + done.stderr
