"""Runs tests that failed in `make test` once more, alone, and reports which ones passed then.

Hundreds of tests kill and stop real processes next to two other test processes on the same cores, so a pause of the
machine can exceed a deadline. A test that fails again, or more than MAX_RETRIED failures, fails the build.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAX_RETRIED = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_RETRIED:
        print(f"  {len(failed)} failures are not retried (only 1 to {MAX_RETRIED} are)")
        return 1
    print(f"\n  {len(failed)} of the tests failed; running them again, alone …", flush=True)
    code = subprocess.call([sys.executable, "-m", "pytest", "--verbose", *failed])  # noqa: S603 - ids of our tests
    if code == 0:
        print("  passed only when run alone, so each of these needs a closer look:")
        print("\n".join(f"    {name}" for name in failed))
    return code


if __name__ == "__main__":
    sys.exit(main())
