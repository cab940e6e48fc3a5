"""A PostgreSQL in a process of its own, which starts, stops and kills it as the lines of its standard input say.

`database.py FOLDER`: the embedded server must be started by a main thread, and stopped without blocking the driver.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres

# A killed server must keep what it has committed, so commits are written at once; no power cut is part of a history.
SETTINGS = {"fsync": "off", "max_connections": "100", "shared_buffers": "64MB"}


def main(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder, settings=SETTINGS)
    pid = 0
    for line in sys.stdin:
        if line.strip() == "start":
            server = postgres.start()
            pid = server.pid
            print(server.dsn, flush=True)
            continue
        if line.strip() == "kill":
            os.kill(pid, signal.SIGKILL)
        postgres.stop()
        print("stopped", flush=True)
    postgres.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
