"""Finds the app that a worker serves, by what stands on its command line and never by anything in data."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from bellringer.errors import ConfigError
from bellringer.tasks import Registry

_HOW: Final = 'write it as "module:app" or "path/to/file.py:app"'


class Target(Protocol):
    """What a worker needs of an app."""

    @property
    def registry(self) -> Registry: ...


def load_target(target: str) -> Target:
    """Import `module:attribute` or `path/file.py:attribute`; without an attribute, the only app in there."""
    where, _, attribute = target.partition(":")
    if not where:
        raise ConfigError(f"no module in {target!r}", hint=_HOW)
    _reach(Path.cwd())
    name = _name_of_file(where) if where.endswith(".py") or os.sep in where else where
    module = _import(name, where)
    return _named(module, attribute) if attribute else _only(module, where)


def _name_of_file(where: str) -> str:
    """The name by which a file can be imported; a file inside a package goes by its full one."""
    path = Path(where).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {where!r}", hint=f"looked in {Path.cwd()}; {_HOW}")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _reach(folder)
    name = ".".join(parts)
    known = sys.modules.get(name)
    if known is not None and Path(known.__file__ or "").resolve() != path:
        raise ConfigError(
            f"{where!r} cannot be imported as {name!r}: that is already {known.__file__}",
            hint="rename the file",
        )
    return name


def _reach(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"there is no module {where!r}", hint=f"looked in {Path.cwd()}; {_HOW}") from error
        raise _inside(where, error) from error
    except (Exception, SystemExit) as error:
        raise _inside(where, error) from error


def _inside(where: str, error: BaseException) -> ConfigError:
    """The module is there, but importing it fails: say what, and at which line of whose."""
    ours = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    at_fault = frames[-1] if frames and not isinstance(error, SyntaxError) else None  # a syntax error says its own
    place = f" ({at_fault.filename}, line {at_fault.lineno})" if at_fault else ""
    return ConfigError(
        f"importing {where!r} failed: {type(error).__name__}: {error}{place}",
        hint="the module itself was found; mend what it does when imported",
    )


def _named(module: ModuleType, attribute: str) -> Target:
    found = getattr(module, attribute, None)
    if found is None:
        apps = _apps(module)
        hint = f"did you mean {' or '.join(apps)}?" if apps else "make one with `app = App()`"
        raise ConfigError(f"{module.__name__} has no {attribute!r}", hint=hint)
    if not _is_app(found):
        raise ConfigError(f"{module.__name__}:{attribute} is a {type(found).__name__}, not an App", hint=_HOW)
    return found  # type: ignore[no-any-return]


def _only(module: ModuleType, where: str) -> Target:
    apps = _apps(module)
    if not apps:
        raise ConfigError(f"there is no App in {where!r}", hint="make one with `app = App()` at the top level")
    if len({id(app) for app in apps.values()}) > 1:
        options = " or ".join(f"{where}:{name}" for name in apps)
        raise ConfigError(f"there are several Apps in {where!r}", hint=f"say which: {options}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Target]:
    return {name: value for name, value in vars(module).items() if _is_app(value)}


def _is_app(value: Any) -> bool:
    try:
        return not isinstance(value, type) and isinstance(getattr(value, "registry", None), Registry)
    except Exception:  # noqa: BLE001 - any object may stand in a module, also one that raises when looked at
        return False
