"""Classifies the statements of migrations: which tables each locks, how much work it does, and whether programs of
earlier releases can still work afterwards.

The classifier knows the statements that migrations use. It never runs them: trying a migration, even in a transaction
that is rolled back, takes the same locks as the migration itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 110


class LockMode(StrEnum):
    """Lock modes of tables, the weakest first."""

    NONE = "none"
    ROW_EXCLUSIVE = "row exclusive"  # as every insert, update and delete
    SHARE_UPDATE_EXCLUSIVE = "share update exclusive"  # blocks vacuum and other changes of the table
    SHARE = "share"  # blocks writes
    SHARE_ROW_EXCLUSIVE = "share row exclusive"  # blocks writes
    ACCESS_EXCLUSIVE = "access exclusive"  # blocks reads and writes
    UNKNOWN = "unknown"


class Effort(StrEnum):
    """The work of a statement while it holds its locks."""

    METADATA = "metadata"  # changes the catalog, whatever the size of the table
    ROWS = "rows"  # writes rows
    SCAN = "scan"  # reads the whole table
    INDEX = "index build"  # reads and sorts the whole table
    REWRITE = "rewrite"  # writes the whole table again
    UNKNOWN = "unknown"


STRENGTH: Final = {mode: number for number, mode in enumerate(LockMode)}
_AMOUNT: Final = {work: number for number, work in enumerate(Effort)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLock:
    table: str
    mode: LockMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementEffect:
    """One statement. `contracts` says why programs of earlier releases may fail after it; empty: they do not."""

    sql: str
    locks: tuple[TableLock, ...] = ()
    work: Effort = Effort.METADATA
    contracts: str = ""
    is_marked: bool = False  # a comment `-- contract` above it says that its author knows
    creates: str | None = None  # the table that it creates


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of one action of ALTER TABLE, or of a whole statement."""

    mode: LockMode = LockMode.ACCESS_EXCLUSIVE
    work: Effort = Effort.METADATA
    contracts: str = ""


_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|;|[^-/'"$;]+|.""", re.DOTALL
)
_NAME: Final = r'(?:if\s+(?:not\s+)?exists\s+)?(?:only\s+)?(?:bellringer\.)?"?(?P<table>\w+)"?'
_FLAGS: Final = re.IGNORECASE | re.DOTALL
_CONTRACT: Final = re.compile(r"^--\s*contract\b")
_REFERENCES: Final = re.compile(r"\breferences\s+(?:bellringer\.)?(\w+)", re.IGNORECASE)
_DROPS: Final = re.compile(r"\b(?:drop|rename)\b", re.IGNORECASE)
_DEFAULT: Final = re.compile(r"\bdefault\b", re.IGNORECASE)
# A default that differs from row to row, and columns that the server computes, need a new version of every row.
_COMPUTED: Final = re.compile(
    r"\b(?:clock_timestamp|gen_random_uuid|random|nextval|timeofday)\s*\(|\bgenerated\b|\b(?:big|small)?serial\b",
    re.IGNORECASE,
)

_ADD_COLUMN: Final = re.compile(r"add\s+(?:column\s+)?(?:if\s+not\s+exists\s+)?\w+\s+(?P<rest>.*)", _FLAGS)
_TABLE_CONSTRAINT: Final = r"add\s+(?:constraint\s+\w+\s+)?(?:check|foreign\s+key|unique|primary\s+key|exclude)\b"
# Actions of ALTER TABLE; the first that matches applies.
_ACTIONS: Final[tuple[tuple[str, _Effect], ...]] = (
    (r"validate\s+constraint", _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE, Effort.SCAN)),
    (r"(?:alter\s+(?:column\s+)?\w+\s+)?set\s+(?:statistics|\()", _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE)),
    (r"reset\s*\(", _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE)),
    (r"attach\s+partition", _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE, Effort.SCAN)),
    (r"alter\s+(?:column\s+)?\w+\s+(?:set\s+data\s+)?type\b", _Effect(work=Effort.REWRITE, contracts="changes a type")),
    (r"alter\s+(?:column\s+)?\w+\s+set\s+not\s+null", _Effect(work=Effort.SCAN, contracts="forbids nulls")),
    (r"alter\s+(?:column\s+)?\w+\s+drop\s+not\s+null", _Effect()),
    (r"alter\s+(?:column\s+)?\w+\s+drop\b", _Effect(contracts="drops a default")),
    (r"alter\s+(?:column\s+)?\w+\s+(?:set|add)\b", _Effect()),
    (r"rename\b", _Effect(contracts="renames")),
    (r"drop\s+constraint", _Effect(contracts="drops a constraint")),
    (r"drop\b", _Effect(contracts="drops a column")),
    (r"detach\s+partition", _Effect(contracts="removes a partition")),
    (rf"{_TABLE_CONSTRAINT}.*\bnot\s+valid\b", _Effect(contracts="adds a constraint")),
    (rf"{_TABLE_CONSTRAINT}.*\busing\s+index\b", _Effect(contracts="adds a constraint")),
    (r"add\s+(?:constraint\s+\w+\s+)?(?:unique|primary\s+key|exclude)\b",
     _Effect(work=Effort.INDEX, contracts="adds a constraint")),
    (r"add\s+(?:constraint\s+\w+\s+)?foreign\s+key\b",
     _Effect(LockMode.SHARE_ROW_EXCLUSIVE, Effort.SCAN, "adds a constraint")),
    (r"add\s+(?:constraint\s+\w+\s+)?check\b", _Effect(work=Effort.SCAN, contracts="adds a constraint")),
    (r"add\s+constraint\b", _Effect(work=Effort.UNKNOWN, contracts="adds a constraint")),
    (r"(?:enable|disable|force|no\s+force|owner|replica|cluster|inherit|no\s+inherit)\b", _Effect()),
)  # fmt: skip
# Whole statements; the group `table` is the table that the statement locks.
_STATEMENTS: Final[tuple[tuple[str, _Effect], ...]] = (
    (r"create\s+unique\s+index\s+concurrently\s+.*?\bon\s+" + _NAME,
     _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE, Effort.INDEX, "forbids equal values")),
    (r"create\s+index\s+concurrently\s+.*?\bon\s+" + _NAME, _Effect(LockMode.SHARE_UPDATE_EXCLUSIVE, Effort.INDEX)),
    (r"create\s+unique\s+index\s+.*?\bon\s+" + _NAME, _Effect(LockMode.SHARE, Effort.INDEX, "forbids equal values")),
    (r"create\s+index\s+.*?\bon\s+" + _NAME, _Effect(LockMode.SHARE, Effort.INDEX)),
    (r"create\s+(?:or\s+replace\s+)?(?:constraint\s+)?trigger\s+.*?\bon\s+" + _NAME,
     _Effect(LockMode.SHARE_ROW_EXCLUSIVE)),
    (r"(?:create|alter)\s+policy\s+.*?\bon\s+" + _NAME, _Effect()),
    (r"drop\s+(?:policy|trigger|rule)\s+.*?\bon\s+" + _NAME, _Effect(contracts="drops")),
    (r"drop\s+table\s+" + _NAME, _Effect(contracts="drops a table")),
    (r"truncate\s+(?:table\s+)?" + _NAME, _Effect(contracts="deletes all rows")),
    (r"insert\s+into\s+" + _NAME, _Effect(LockMode.ROW_EXCLUSIVE, Effort.ROWS)),
    (r"update\s+" + _NAME, _Effect(LockMode.ROW_EXCLUSIVE, Effort.ROWS)),
    (r"delete\s+from\s+" + _NAME, _Effect(LockMode.ROW_EXCLUSIVE, Effort.ROWS)),
    (r"lock\s+(?:table\s+)?" + _NAME, _Effect()),
)  # fmt: skip
# Statements that lock no table which other programs use.
_HARMLESS: Final = re.compile(
    r"(?:create\s+(?:type|domain|sequence|schema|(?:or\s+replace\s+)?(?:function|view))"
    r"|alter\s+type\s+\S+\s+add\s+value|grant|comment|set)\b",
    re.IGNORECASE,
)
_UNSAFE: Final[tuple[tuple[str, str], ...]] = (
    (r"alter\s+type\b.*\b(?:add|alter|drop|rename)\s+attribute", "changes a composite type"),
    (r"alter\s+\w+\s+.*\brename\b", "renames"),
    (r"drop\b", "drops"),
    (r"revoke\b", "takes privileges away"),
)


def classify(sql: str) -> tuple[StatementEffect, ...]:
    """Returns the statements of a migration with their effects. Locks of tables that the migration itself creates are
    left out: no other program knows these tables yet.
    """
    created: set[str] = set()
    found: list[StatementEffect] = []
    for text, is_marked in _statements(sql):
        effect = replace(_classify(text), is_marked=is_marked)
        if effect.creates:
            created.add(effect.creates)
        if effect.locks and {lock.table for lock in effect.locks} <= created:
            effect = replace(effect, locks=(), work=Effort.METADATA, contracts="")
        found.append(replace(effect, locks=tuple(lock for lock in effect.locks if lock.table not in created)))
    return tuple(found)


def contractions(sql: str) -> list[StatementEffect]:
    """The statements after which programs of earlier releases may fail, without a comment `-- contract` above them."""
    return [effect for effect in classify(sql) if effect.contracts and not effect.is_marked]


def _statements(sql: str) -> Iterator[tuple[str, bool]]:
    """Splits a script at its semicolons. Yields each statement on one line, and whether it has the mark."""
    text, is_marked = "", False
    for token in _TOKEN.finditer(sql):
        part = token[0]
        if part == ";":
            if text.strip():
                yield " ".join(text.split()), is_marked
            text, is_marked = "", False
        elif part.startswith("--"):
            is_marked = is_marked or _CONTRACT.match(part) is not None
            text += " "
        else:
            text += " " if part.startswith("/*") else part
    if text.strip():
        yield " ".join(text.split()), is_marked


def _classify(text: str) -> StatementEffect:
    shown = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"
    if table := re.match(rf"create\s+(?:unlogged\s+)?table\s+{_NAME}", text, _FLAGS):
        return StatementEffect(sql=shown, locks=_referenced(text), creates=table["table"])
    if table := re.match(rf"alter\s+table\s+{_NAME}\s+(?P<actions>.*)", text, _FLAGS):
        return _alter_table(shown, table["table"], table["actions"])
    for pattern, effect in _STATEMENTS:
        if found := re.match(pattern, text, _FLAGS):
            lock = TableLock(table=found["table"], mode=effect.mode)
            return StatementEffect(sql=shown, locks=(lock,), work=effect.work, contracts=effect.contracts)
    if _HARMLESS.match(text):
        return StatementEffect(sql=shown)
    for pattern, contracts in _UNSAFE:
        if re.match(pattern, text, _FLAGS):
            return StatementEffect(sql=shown, contracts=contracts)
    contracts = "may drop or rename" if _DROPS.search(text) else ""
    return StatementEffect(sql=shown, work=Effort.UNKNOWN, contracts=contracts)


def _alter_table(shown: str, table: str, actions: str) -> StatementEffect:
    effects = [_action(action) for action in _split(actions)]
    mode = max((effect.mode for effect in effects), key=STRENGTH.__getitem__)
    work = max((effect.work for effect in effects), key=_AMOUNT.__getitem__)
    contracts = "; ".join(dict.fromkeys(effect.contracts for effect in effects if effect.contracts))
    locks = (TableLock(table=table, mode=mode), *(lock for lock in _referenced(actions) if lock.table != table))
    return StatementEffect(sql=shown, locks=locks, work=work, contracts=contracts)


def _action(action: str) -> _Effect:
    for pattern, effect in _ACTIONS:
        if re.match(pattern, action, _FLAGS):
            return effect
    if added := _ADD_COLUMN.match(action):
        return _added_column(added["rest"])
    return _Effect(work=Effort.UNKNOWN, contracts="may drop or rename" if _DROPS.search(action) else "")


def _added_column(rest: str) -> _Effect:
    has_default = _DEFAULT.search(rest) is not None
    if re.search(r"\b(?:unique|primary\s+key)\b", rest, _FLAGS):
        return _Effect(work=Effort.INDEX, contracts="adds a constraint")
    if _COMPUTED.search(rest):
        return _Effect(work=Effort.REWRITE)
    if re.search(r"\bnot\s+null\b", rest, _FLAGS) and not has_default:
        return _Effect(work=Effort.SCAN, contracts="adds a column that inserts must name")
    if re.search(r"\bcheck\s*\(", rest, _FLAGS):
        return _Effect(work=Effort.SCAN)
    return _Effect()


def _referenced(text: str) -> tuple[TableLock, ...]:
    """The tables that foreign keys refer to; they get triggers."""
    tables = dict.fromkeys(_REFERENCES.findall(text))
    return tuple(TableLock(table=table, mode=LockMode.SHARE_ROW_EXCLUSIVE) for table in tables)


def _split(actions: str) -> Sequence[str]:
    """Splits the actions of ALTER TABLE at commas outside of parentheses."""
    parts, depth = [""], 0
    for char in actions:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
