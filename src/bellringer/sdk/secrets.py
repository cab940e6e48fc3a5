"""References to secrets in the arguments of sends, jobs and workflow nodes."""

from __future__ import annotations

from typing import Any

from bellringer.core.secret_references import make_reference


def secret(name: str, *, prefix: str = "") -> Any:
    """Return a reference to a secret, for any argument: `charge.send(7, key=secret("stripe-key"))`.

    The reference is stored, and the worker passes the value of the secret to the handler, after `prefix`. Each attempt
    looks the value up again, so a retry gets the present one.
    """
    return make_reference(name, prefix=prefix)
