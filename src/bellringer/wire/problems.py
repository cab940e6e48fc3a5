"""Problem documents (RFC 9457): how an error travels."""

from __future__ import annotations

import msgspec


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where (a JSON pointer, RFC 6901)."""

    pointer: str = ""
    code: str = ""
    detail: str = ""
    hint: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable and safe to branch on; `hint` says what to do."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    code: str = ""
    hint: str = ""
    request_id: str = ""
    errors: list[Fault] = []
