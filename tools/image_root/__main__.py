"""`python -m tools.image_root`: builds the image in an unpacked root and checks it. `make image-check` calls it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tools.image_root.build import BuildFailed, DebianBase, HostBase, ImageBuilder
from tools.image_root.check import CheckFailed, check, remove_tree, serve_postgres


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.image_root", description=__doc__)
    parser.add_argument("--base", choices=["debian", "host"], default="debian", help="root of the stages")
    parser.add_argument("--cache", type=Path, default=Path(".image"), help="where the Debian root is kept")
    parser.add_argument("--keep", action="store_true", help="keep the built root")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bellringer-image-"))
    folder.chmod(0o755)
    try:
        started = time.monotonic()
        base = DebianBase(given.cache.absolute()) if given.base == "debian" else HostBase()
        builder = ImageBuilder(folder / "roots", base)
        image = builder.build()
        print(f"built {image.sandbox.root} in {time.monotonic() - started:.1f} s, {_size(image.sandbox.root)} MiB;")
        print(f"  /opt/bellringer: {_size(image.sandbox.root / 'opt' / 'bellringer')} MiB")
        for step in builder.skipped:
            print(f"  not executed: RUN {step}")
        with serve_postgres(folder / "postgres") as dsn:
            report = check(image, dsn, folder / "run")
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    except (BuildFailed, CheckFailed) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if not given.keep:
            remove_tree(folder)
    return 0


def _size(folder: Path) -> int:
    done = subprocess.run(["du", "-smx", str(folder)], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return int(done.stdout.split()[0])


if __name__ == "__main__":
    sys.exit(main())
