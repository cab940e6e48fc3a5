"""The name and the version of an app, if its code does not give them."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, Final

from bellringer.core.apps import MAX_VERSION_LENGTH
from bellringer.core.jobs import check_name
from bellringer.errors import InvalidInput

VERSION_VARIABLE: Final = "BELLRINGER_APP_VERSION"
DEFAULT_NAME: Final = "app"


def module_of(frame: FrameType) -> str:
    """Return the module that a frame executes; for a program that was started directly, the name it is imported as."""
    names = frame.f_globals
    module = str(names.get("__name__") or DEFAULT_NAME)
    if module != "__main__":
        return module
    if (spec := names.get("__spec__")) is not None:  # python -m package.module
        return str(spec.name).removesuffix(".__main__")
    file = names.get("__file__")
    return Path(file).stem if file else DEFAULT_NAME


def find_version(module: str, environ: Any = os.environ) -> str:
    """Return the version that the environment names, or that of the installed distribution of a module, or ""."""
    given = environ.get(VERSION_VARIABLE, "")
    return check_version(given) if given else _installed_version(module)


def check_version(version: object) -> str:
    """Return a version in Unicode form NFC. Raises InvalidInput if it is too long or has invisible characters."""
    checked = check_name(version, what="version", pointer="/version")
    if len(checked) > MAX_VERSION_LENGTH:
        message = f"version has {len(checked)} characters, more than {MAX_VERSION_LENGTH}"
        raise InvalidInput(message, pointer="/version", code="limit")
    return checked


def _installed_version(module: str) -> str:
    """Return the version of the distribution that contains the module's file; "" if there is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ""
    path = Path(file).resolve()
    for name in metadata.packages_distributions().get(module.partition(".")[0], ()):
        found = metadata.distribution(name)
        if any(Path(str(found.locate_file(own))).resolve() == path for own in found.files or ()):
            return found.version[:MAX_VERSION_LENGTH]
    return ""
