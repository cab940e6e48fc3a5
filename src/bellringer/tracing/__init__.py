"""Tracing with OpenTelemetry. Optional: until `enable` is called, nothing is imported and nothing is traced.

Callers write `if (tracer := tracing.active()) is not None:`, so disabled tracing costs one call of a function.
"""

from __future__ import annotations

import atexit
import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from bellringer.errors import ConfigError

if TYPE_CHECKING:
    from bellringer.tracing.opentelemetry_tracer import OpenTelemetryTracer

TRACING_VARIABLE: Final = "BELLRINGER_TRACING"
_enabled: list[OpenTelemetryTracer] = []  # at most one


def active() -> OpenTelemetryTracer | None:
    """Returns the tracer of this process, or None if tracing is off."""
    return _enabled[0] if _enabled else None


def enable(service_name: str) -> None:
    """Turns tracing on in this process. Uses the TracerProvider that the app has set, or else sets one from the
    variables OTEL_…; `service_name` is the default of OTEL_SERVICE_NAME.

    Raises ConfigError if OpenTelemetry is not installed. Does nothing if OTEL_SDK_DISABLED is true.
    """
    if _enabled:
        return
    try:
        module = import_module("bellringer.tracing.opentelemetry_tracer")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracing is on, but {error.name} is not installed", hint="pip install 'bellringer[tracing]'"
        ) from None
    if (tracer := module.create_tracer(service_name)) is not None:
        _enabled.append(tracer)
        atexit.register(disable)


def enable_from_environment(service_name: str) -> None:
    """Turns tracing on if BELLRINGER_TRACING is "on": for programs that have no Config, such as apps that send."""
    if not _enabled and os.environ.get(TRACING_VARIABLE) == "on":
        enable(service_name)


def disable() -> None:
    """Turns tracing off, and exports the spans that this process has not exported yet. Also called at exit."""
    while _enabled:
        _enabled.pop().close()
