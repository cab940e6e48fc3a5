"""Imports the app named on the worker's command line. The name never comes from data."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from bellringer.core.tasks import Registry
from bellringer.errors import ConfigError

_TARGET_SYNTAX: Final = 'write it as "module:app" or "path/to/file.py:app"'


class LoadedApp(Protocol):
    """The part of an App that a worker uses."""

    @property
    def registry(self) -> Registry: ...


def load_target(target: str) -> LoadedApp:
    """Import `module:attribute` or `path/file.py:attribute`. Without an attribute, the module must have one App."""
    where, _, attribute = target.partition(":")
    if not where:
        raise ConfigError(f"no module in {target!r}", hint=_TARGET_SYNTAX)
    _add_to_path(Path.cwd())
    name = _module_name(where) if where.endswith(".py") or os.sep in where else where
    module = _import(name, where)
    return _get_app(module, attribute) if attribute else _get_only_app(module, where)


def _module_name(where: str) -> str:
    """Return the module name of a file, with the names of its packages; add its folder to sys.path."""
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {where!r}", hint=f"looked in {Path.cwd()}; {_TARGET_SYNTAX}")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _add_to_path(folder)
    name = ".".join(parts)
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__ or "").resolve() != path:
        raise ConfigError(
            f"{where!r} cannot be imported as {name!r}: {known.__file__} already has that name",
            hint="rename the file",
        )
    return name


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {where!r}", hint=f"looked in {Path.cwd()}; {_TARGET_SYNTAX}"
            ) from error
        raise _import_error(where, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(where, error) from error


def _import_error(where: str, error: BaseException) -> ConfigError:
    """Return the error for a module that exists but fails to import, with the failing line of the user's code."""
    ours = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    at_fault = (
        frames[-1] if frames and not isinstance(error, SyntaxError) else None
    )  # the message of a SyntaxError has the line
    place = f" ({at_fault.filename}, line {at_fault.lineno})" if at_fault else ""
    return ConfigError(
        f"importing {where!r} failed: {type(error).__name__}: {error}{place}",
        hint="the module was found, but its code raised an error when it was imported",
    )


def _get_app(module: ModuleType, attribute: str) -> LoadedApp:
    found = getattr(module, attribute, None)
    if found is None:
        apps = _find_apps(module)
        hint = f"did you mean {' or '.join(apps)}?" if apps else "create one with `app = App()`"
        raise ConfigError(f"{module.__name__} has no {attribute!r}", hint=hint)
    if not _is_app(found):
        raise ConfigError(f"{module.__name__}:{attribute} is a {type(found).__name__}, not an App", hint=_TARGET_SYNTAX)
    return found  # type: ignore[no-any-return]


def _get_only_app(module: ModuleType, where: str) -> LoadedApp:
    apps = _find_apps(module)
    if not apps:
        raise ConfigError(f"there is no App in {where!r}", hint="create one with `app = App()` at the top level")
    if len({id(app) for app in apps.values()}) > 1:
        options = " or ".join(f"{where}:{name}" for name in apps)
        raise ConfigError(f"there are several Apps in {where!r}", hint=f"choose one: {options}")
    return next(iter(apps.values()))


def _find_apps(module: ModuleType) -> dict[str, LoadedApp]:
    return {name: value for name, value in vars(module).items() if _is_app(value)}


def _is_app(value: Any) -> bool:
    try:
        return not isinstance(value, type) and isinstance(getattr(value, "registry", None), Registry)
    except Exception:  # noqa: BLE001 - attribute access on a user-defined object can raise anything
        return False
