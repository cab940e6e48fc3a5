"""The reference of error codes, from the places that raise them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bellringer import errors
from bellringer.wire.problems import Problem
from tools.reference.markdown import SOURCE, code, page, table

INTRODUCTION: Final = """\
Errors of the API are problem documents (RFC 9457) with a stable `code`, a `detail` that says what happened, and a
`hint` that says what to do. Exceptions of the SDK and messages of the command line carry the same. Compare codes, not
messages: the messages and remedies below are examples of one place each, and `…` stands for a value.

A number in the column *raised as* is the status of a response that only the API sends. `InvalidInput` has the status
422 there, `NotFound` 404, `Conflict` 409, `QuotaExceeded` 429 and `Unavailable` 503."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
CLIENT_SIDE: Final = {"sdk", "cli", "simulate", "testing", "client", "worker", "backends", "dev"}
_MAX_DEPTH: Final = 6  # of names that refer to names


class RaisedError(NamedTuple):
    """One place that raises an error."""

    code: str
    kind: str
    message: str
    hint: str
    is_of_server: bool = True


class _ErrorClass(NamedTuple):
    code: str
    parameters: tuple[str, ...]


class _Scope(NamedTuple):
    """What names stand for at one place: texts of arguments, assignments above it, and functions of its file."""

    arguments: Mapping[str, str]
    assigned: Mapping[str, ast.expr]
    functions: Mapping[str, _Function]


def render_errors() -> str:
    """Returns the page with the exceptions, and all codes with an example of each."""
    return page("Error codes", INTRODUCTION, _exceptions(), _codes())


def best_examples() -> dict[str, RaisedError]:
    """Returns the place with the most telling texts for every code that the source raises."""
    by_code: dict[str, list[RaisedError]] = defaultdict(list)
    for error in raised_errors():
        by_code[error.code].append(error)
    return {name: max(places, key=_telling) for name, places in sorted(by_code.items())}


def complete_examples() -> dict[str, RaisedError]:
    """Returns the examples; the docstring of the exception stands in for texts that only exist when it is raised."""
    meanings = {name: " ".join(found.split()).partition(". ") for name, found in _docstrings().items()}
    found = {}
    for name, error in best_examples().items():
        first, _, more = meanings.get(error.kind, ("", "", ""))
        message = error.message if _literal(error.message) else first
        found[name] = error._replace(message=message, hint=error.hint if _literal(error.hint) else more)
    return found


def raised_errors() -> list[RaisedError]:
    """Returns every place in the source that raises an error whose code the source text names."""
    trees = {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}
    classes = _error_classes(trees)
    helpers = _helpers(trees, classes)
    return [
        error._replace(is_of_server=file.relative_to(SOURCE).parts[0] not in CLIENT_SIDE)
        for file, tree in trees.items()
        for error in _errors_of(file, tree, classes, helpers)
    ]


def exceptions() -> Iterator[type[errors.BellringerError]]:
    """Yields the public exceptions with a code of their own."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.BellringerError) and "code" in vars(kind):
            yield kind


def _exceptions() -> str:
    rows = [(code(kind.code), code(kind.__name__), " ".join((kind.__doc__ or "").split())) for kind in exceptions()]
    return "## Exceptions\n\nThe code of each exception, unless a row of the next table names another.\n\n" + table(
        ("code", "exception", "meaning"), rows
    )


def _codes() -> str:
    rows = [
        (code(name), error.kind if error.kind.isdigit() else code(error.kind), error.message, error.hint)
        for name, error in complete_examples().items()
    ]
    return "## Codes\n\n" + table(("code", "raised as", "example of a message", "remedy"), rows)


def _telling(error: RaisedError) -> tuple[bool, bool, bool, int]:
    message, hint = _literal(error.message), _literal(error.hint)
    return bool(message and hint), bool(hint), error.is_of_server, min(message, 60) + min(hint, 60)


def _literal(text: str) -> int:
    return len(text.replace("…", "").strip())


def _docstrings() -> dict[str, str]:
    trees = [ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")]
    kinds = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {kind.name: ast.get_docstring(kind) or "" for kind in kinds}


# What raises errors: classes, and functions that make them


def _error_classes(trees: Mapping[Path, ast.Module]) -> dict[str, _ErrorClass]:
    """Returns the classes below BellringerError with their codes and the parameters of their constructors."""
    nodes = {n.name: n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    root = errors.BellringerError.__name__
    found = {name: _error_class(node, nodes) for name, node in nodes.items() if root in _ancestry(name, nodes)}
    return found | {Problem.__name__: _ErrorClass("", ())}


def _ancestry(name: str, nodes: Mapping[str, ast.ClassDef]) -> list[str]:
    """Returns the class and the first bases of its bases, the nearest first."""
    found = [name]
    while (node := nodes.get(found[-1])) and node.bases and isinstance(node.bases[0], ast.Name):
        found.append(node.bases[0].id)
    return found


def _error_class(node: ast.ClassDef, nodes: Mapping[str, ast.ClassDef]) -> _ErrorClass:
    value, parameters = "", None
    for owner in (nodes[name] for name in _ancestry(node.name, nodes) if name in nodes):
        for part in owner.body:
            if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "code":
                value = value or _constant(part.value)
            if isinstance(part, ast.FunctionDef) and part.name == "__init__" and parameters is None:
                parameters = tuple(arg.arg for arg in [*part.args.args[1:], *part.args.kwonlyargs])
                default = _defaults(part).get("code")
                value = value or (_constant(default) if default else "")
    return _ErrorClass(value, parameters or ())


def _helpers(
    trees: Mapping[Path, ast.Module], classes: Mapping[str, _ErrorClass]
) -> dict[tuple[Path, str], tuple[_Function, ast.Call]]:
    """Returns the functions that make an error from their parameters; private ones by their file."""
    found = {}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, _Function) and node.name != "__init__":
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and _name(call.func) in classes and _passes_on(call, node):
                        found[file if node.name.startswith("_") else Path(), node.name] = (node, call)
    return found


def _passes_on(call: ast.Call, function: _Function) -> bool:
    """Returns whether the error gets its code or its texts from parameters of the function."""
    used = {name.id for part in ast.walk(call) for name in [part] if isinstance(name, ast.Name)}
    returned = any(isinstance(node, ast.Return) and node.value is call for node in ast.walk(function))
    texts = {"code"} | ({"problem", "message", "hint", "detail", "what", "where"} if returned else set())
    return bool(used & texts & set(_parameters(function)))


def _parameters(function: _Function) -> list[str]:
    given = [*function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in given if argument.arg not in {"self", "cls"}]


def _defaults(function: _Function) -> dict[str, ast.expr]:
    given = function.args
    positional = zip([argument.arg for argument in given.args[::-1]], given.defaults[::-1], strict=False)
    named = (
        (argument.arg, value) for argument, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value
    )
    return {**dict(positional), **dict(named)}


# Where errors are raised


def _errors_of(
    file: Path,
    tree: ast.Module,
    classes: Mapping[str, _ErrorClass],
    helpers: Mapping[tuple[Path, str], tuple[_Function, ast.Call]],
) -> Iterator[RaisedError]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    made_inside = {id(call) for _, call in helpers.values()}
    for function, call in _calls(tree):
        scope = _Scope({}, _assigned(tree, function, call.lineno), functions)
        name = _name(call.func)
        if name in classes and id(call) not in made_inside:
            yield from _error_of(name, classes[name], call, scope)
        elif helper := helpers.get((file, name)) or helpers.get((Path(), name)):
            made, inner = helper
            texts = {key: _text(value, scope) for key, value in _defaults(made).items()}
            texts |= {key: _text(value, scope) for key, value in _arguments(call, _parameters(made)).items()}
            kind = _name(inner.func)
            yield from _error_of(
                kind, classes[kind], inner, _Scope(texts, _assigned(tree, made, inner.lineno), functions)
            )


def _error_of(name: str, kind: _ErrorClass, call: ast.Call, scope: _Scope) -> Iterator[RaisedError]:
    given = _arguments(call, kind.parameters)
    codes = _codes_of(given["code"], scope) if "code" in given else [kind.code]
    shown = _text(given["status"], scope) if "status" in given else name
    for value in codes:
        if value and "…" not in value + shown:
            message = given.get("message") or given.get("detail")
            yield RaisedError(value, shown, _text(message, scope), _text(given.get("hint"), scope))


def _codes_of(value: ast.expr, scope: _Scope) -> list[str]:
    if isinstance(value, ast.IfExp):
        return [*_codes_of(value.body, scope), *_codes_of(value.orelse, scope)]
    if isinstance(value, ast.Name) and value.id in scope.assigned:
        return _codes_of(scope.assigned[value.id], scope)
    return [_text(value, scope)]


def _calls(tree: ast.Module) -> Iterator[tuple[_Function | None, ast.Call]]:
    """Yields all calls with the innermost function around each."""

    def visit(node: ast.AST, function: _Function | None) -> Iterator[tuple[_Function | None, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield function, child
            yield from visit(child, child if isinstance(child, _Function) else function)

    return visit(tree, None)


def _assigned(tree: ast.Module, function: _Function | None, line: int) -> dict[str, ast.expr]:
    """Returns the last value that each name got above the line, in the module or the function."""
    nodes: list[ast.AST] = [*tree.body, *(ast.walk(function) if function else ())]
    found: dict[str, ast.expr] = {}
    for node in sorted((n for n in nodes if isinstance(n, ast.Assign | ast.AnnAssign)), key=lambda one: one.lineno):
        if node.lineno <= line and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                _bind(target, node.value, found)
    return found


def _bind(target: ast.expr, value: ast.expr | None, found: dict[str, ast.expr]) -> None:
    if isinstance(target, ast.Name) and value is not None:
        found[target.id] = value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            _bind(one, part, found)


def _arguments(call: ast.Call, parameters: tuple[str, ...] | list[str]) -> dict[str, ast.expr]:
    positional = dict(zip(parameters, call.args, strict=False))
    return positional | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


# Texts of expressions


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _constant(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _text(value: ast.expr | None, scope: _Scope, depth: int = 0) -> str:  # noqa: C901, PLR0911, PLR0912 - one case per form
    """Returns the text of an expression; `…` stands for what is only known when it runs."""
    if depth > _MAX_DEPTH:
        return "…"
    match value:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=int(number)):
            return str(number)
        case ast.JoinedStr():
            return "".join(_text(part, scope, depth) for part in value.values).replace("……", "…")
        case ast.FormattedValue():
            return _text(value.value, scope, depth + 1) if isinstance(value.value, ast.Name) else "…"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, scope, depth) + _text(right, scope, depth)
        case ast.IfExp(body=first, orelse=other):
            texts = _text(first, scope, depth + 1), _text(other, scope, depth + 1)
            return max(texts, key=_literal)
        case ast.BoolOp(values=values):
            return max((_text(one, scope, depth + 1) for one in values), key=_literal)
        case ast.Name(id=name) if name in scope.arguments:
            return scope.arguments[name]
        case ast.Name(id=name) if name in scope.assigned:
            return _text(scope.assigned[name], scope, depth + 1)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name)) if (
            name in scope.functions
        ):
            return _returned(scope.functions[name], scope, depth)
        case _:
            return "…"


def _returned(function: _Function, scope: _Scope, depth: int) -> str:
    """Returns the longest text that the function can return."""
    inner = _Scope({}, _assigned(ast.Module([], []), function, function.end_lineno or 0), scope.functions)
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
    texts = [_text(value, inner, depth + 1) for value in returned if not isinstance(value, ast.Tuple)]
    return max(texts, key=_literal, default="…")
