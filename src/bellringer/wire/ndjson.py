"""Lines of JSON out of a stream of bytes. Only a newline ends one: text may hold other signs that look like an end."""

from __future__ import annotations


class Lines:
    """Collects what comes until a line is whole."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line for line in whole if line]
