"""Reports failed attempts to Sentry, with their runs. Start it with SENTRY_DSN=… bellringer worker sentry_app.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import sentry_sdk

from bellringer import App, Context

sentry_sdk.init(dsn=os.environ.get("SENTRY_DSN"), environment=os.environ.get("SENTRY_ENVIRONMENT", "production"))

app = App(name="shop")


def reported(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Report the exceptions of a handler whose first parameter is the context. The attempt fails as before."""

    @wraps(handler)
    def call(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        with sentry_sdk.isolation_scope() as scope:  # concurrent attempts do not see each other's tags
            scope.set_transaction_name(ctx.task)
            for name in ("run_id", "job", "task", "tenant", "attempt", "trace_id"):
                scope.set_tag(name, getattr(ctx, name))
            scope.set_context("run", {"scheduled_for": str(ctx.scheduled_for), "lateness": str(ctx.lateness)})
            try:
                return handler(ctx, *args, **kwargs)
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise

    return call


@app.task(retry=3)
@reported
def charge(ctx: Context, invoice: int) -> str:
    if invoice <= 0:
        raise ValueError(f"there is no invoice {invoice}")
    return f"invoice {invoice} is paid"
