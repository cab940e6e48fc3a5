"""The headers that a target may have: not those that say where a request ends, or who has signed it.

Values that look like credentials are sealed. What is stored is bound to its tenant, its header and its origin, so
whoever may change a job can neither read it nor have it sent elsewhere.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from bellringer.egress.secrets import Box, Sealed, Unsealable
from bellringer.errors import InvalidInput

MOST: Final = 50
LONGEST_VALUE: Final = 4096
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_OURS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
    | {"proxy-authorization", "proxy-connection", "accept-encoding", "idempotency-key", "forwarded"}
)
_CREDENTIAL: Final = re.compile(
    r"proxy-.*|(?:.*[-_])?auth(?:[-_].*)?|.*(?:authori[sz]ation|authentication|cookie|token|secret|key|passw|credential).*"
)


def is_credential(name: str) -> bool:
    """Whether the value of this header, in lower case, proves who calls; to judge too many so costs nothing."""
    return _CREDENTIAL.fullmatch(name) is not None


def check_headers(headers: object, *, pointer: str = "/headers") -> dict[str, str]:
    """The headers as they are sent: names in lower case, each once."""
    if not isinstance(headers, Mapping):
        raise InvalidInput("headers must be an object of names and values", pointer=pointer, code="type")
    if len(headers) > MOST:
        raise _invalid(f"there are {len(headers)} headers, more than {MOST}", pointer)
    checked: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid(f"{name!r:.60} cannot be the name of a header", pointer)
        low, place = name.lower(), f"{pointer}/{name}"
        if low in _OURS or low.startswith(("webhook-", "x-forwarded-")):
            raise InvalidInput(
                f"the header {name} is set by Bellringer",
                hint="leave it out",
                pointer=place,
                code="header_forbidden",
            )
        if low in checked:
            raise _invalid(f"the header {name} is there twice", place)
        if not isinstance(value, str) or len(value) > LONGEST_VALUE or not _VALUE.fullmatch(value):
            raise _invalid(f"the header {name} has a value that cannot be sent", place)
        checked[low] = value
    return checked


def seal_header(box: Box, name: str, value: str, *, tenant_id: int, origin: str) -> dict[str, str]:
    """A credential as it is stored."""
    sealed = box.seal(value, tenant_id=tenant_id, secret_id=_bound_to(name, origin))
    return {"sealed": f"{sealed.key_id}:{base64.b64encode(sealed.data).decode()}"}


def open_header(box: Box, name: str, stored: Mapping[str, Any], *, tenant_id: int, origin: str) -> str:
    """The value of a stored credential; Unsealable where it was kept for another header or origin."""
    key_id, _, text = str(stored.get("sealed", "")).partition(":")
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Unsealable(f"the header {name} cannot be read", hint="set it anew") from None
    return box.open(Sealed(key_id, data), tenant_id=tenant_id, secret_id=_bound_to(name, origin))


def shown_headers(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Of a credential only that there is one."""
    return {name: {"set": True} if is_credential(name.lower()) else value for name, value in stored.items()}


def _bound_to(name: str, origin: str) -> str:
    return f"header {name} of {origin}"


def _invalid(problem: str, pointer: str) -> InvalidInput:
    hint = f"visible ASCII, one line, at most {LONGEST_VALUE} signs a value"
    return InvalidInput(problem, hint=hint, pointer=pointer, code="header_invalid")
