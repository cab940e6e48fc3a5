"""The reference of error codes, from the places that raise them."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import NamedTuple

from bellringer import errors
from tools.reference.markdown import SOURCE, code, page, table

INTRODUCTION = (
    "Errors of the API are problem documents (RFC 9457) with a stable `code`, a `detail` that says what happened, and a"
    " `hint` that says what to do. Exceptions of the SDK and messages of the command line carry the same. The messages"
    " below are examples; `…` stands for a value."
)


class RaisedError(NamedTuple):
    """One place that raises an error."""

    code: str
    kind: str
    message: str
    hint: str


def render_errors() -> str:
    """Returns the page with the codes of classes, and the further codes with an example of each."""
    return page("Error codes", INTRODUCTION, _classes(), _codes())


def raised_errors() -> list[RaisedError]:
    """Returns every place in the source that raises an error with an explicit code."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and (kind := _name(node.func)):
                given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
                value = given.get("code")
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                    message = _text(node.args[0]) if node.args else ""
                    found.append(RaisedError(value.value, kind, message, _text(given.get("hint"))))
    return found


def _classes() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    rows = [(code(kind.code), kind.__name__, (kind.__doc__ or "").strip()) for kind in kinds if hasattr(kind, "code")]
    return "## Codes of exceptions\n\n" + table(("code", "exception", "meaning"), rows)


def _codes() -> str:
    by_code: dict[str, list[RaisedError]] = defaultdict(list)
    for error in raised_errors():
        by_code[error.code].append(error)
    rows = []
    for name, places in sorted(by_code.items()):
        best = max(places, key=lambda place: _literal(place.hint) * 2 + _literal(place.message))
        rows.append((code(name), best.message.strip("…") and best.message, best.hint.strip("…") and best.hint))
    return "## Further codes\n\n" + table(("code", "example of a message", "remedy"), rows)


def _literal(text: str) -> int:
    return len(text.replace("…", ""))


def _name(function: ast.expr) -> str:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name if name[:1].isupper() or name.startswith("_") else ""


def _text(value: ast.expr | None) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in value.values)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
        case _:
            return "…" if value is not None else ""
