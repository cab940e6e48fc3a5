#!/opt/bellringer/bin/python -I
"""Exits with 0 if the process in this container is ready. `healthcheck [URL]`; the default is the server's /readyz.

Imports nothing of Bellringer: a check takes 0.1 s instead of 0.5 s of processor time.
"""

import http.client
import os
import sys
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 4.0


def main() -> int:
    """Requests the URL, prints the answer for `docker inspect`, and returns the exit code."""
    default = os.environ.get("HEALTHCHECK_URL") or "http://127.0.0.1:8700/readyz"
    url = urlsplit(sys.argv[1] if len(sys.argv) > 1 else default)
    connection = http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", url.path or "/")
        response = connection.getresponse()
        body = response.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        print(f"{url.geturl()}: {error}")
        return 1
    finally:
        connection.close()
    print(f"{response.status} {body}")
    return 0 if response.status == http.HTTPStatus.OK else 1


if __name__ == "__main__":
    sys.exit(main())
