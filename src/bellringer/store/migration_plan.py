"""Plans an upgrade: pending statements with their locks and durations, functions that change, and programs that keep
working. Only reads the database.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Final

import asyncpg

from bellringer.store import migrate
from bellringer.store.migrate import AppliedMigration, Migration
from bellringer.store.migration_statements import STRENGTH, Effort, LockMode, StatementEffect, classify
from bellringer.store.sql_functions import Functions, load_functions, parse_release

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection | PoolConnectionProxy

# Bytes of a table that a server processes in a second, on a slow disk; real servers are faster.
BYTES_PER_SECOND: Final = {
    Effort.SCAN: 200e6,
    Effort.INDEX: 40e6,
    Effort.REWRITE: 40e6,
    Effort.ROWS: 20e6,
}
METADATA_SECONDS: Final = 0.01
# The time for all functions. They are replaced in the transaction of the migrations, which keeps its locks meanwhile.
FUNCTIONS_SECONDS: Final = 0.3

# Sizes of tables; that of a partitioned table is the sum of its partitions.
TABLES: Final = """
select class.relname as name,
       (select sum(pg_relation_size(part.relid)) from pg_partition_tree(class.oid) part)::bigint as bytes
from pg_class class
where class.relnamespace = to_regnamespace('bellringer') and class.relkind in ('r', 'p') and not class.relispartition
"""
FUNCTIONS: Final = """
select p.proname as name, p.prosrc as body, p.proargnames[:p.pronargs] as arguments
from pg_proc p
where p.pronamespace = to_regnamespace('bellringer')
  and not exists (
    select 1 from pg_depend d where d.objid = p.oid and d.classid = 'pg_proc'::regclass and d.deptype = 'e')
"""
RUNNING: Final = """
select version, kind, count(*)::integer as processes
from (
  select version, 'scheduler' as kind from bellringer.nodes where seen_at > clock_timestamp() - interval '15 s'
  union all
  select version, 'worker' from bellringer.workers
  where state in ('live', 'draining') and seen_at > clock_timestamp() - interval '15 s') process
group by 1, 2 order by 1, 2
"""
_FUNCTION: Final = re.compile(
    r"create or replace function (?:bellringer\.)?(?P<name>\w+)\s*\(.*?as\s+\$(?P<tag>\w*)\$(?P<body>.*?)\$(?P=tag)\$",
    re.DOTALL,
)
_DEFINES: Final = re.compile(r"create or replace function (?:bellringer\.)?(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLock:
    """The lock of an existing table, and the size of the table."""

    table: str
    mode: LockMode
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """A statement of a pending migration. Without locks it touches nothing that exists."""

    sql: str
    work: Effort
    locks: tuple[PlannedLock, ...]
    seconds: float | None  # None: unknown
    contracts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMigration:
    """A pending migration. Programs that need schema `compatible_from` or later work after it; None: only programs
    that have the migration.
    """

    number: int
    name: str
    compatible_from: int | None
    in_transaction: bool
    statements: tuple[PlannedStatement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionChanges:
    """The functions that differ between the database and this program, by name."""

    created: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.replaced or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProgram:
    """Live processes of one release; `keeps_working` is None if the database does not know that release's schema."""

    release: str
    kind: str
    processes: int
    keeps_working: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    """Everything that `migrate` would do. `compatible_from` is the oldest schema whose programs keep working."""

    program: str
    current: int
    wanted: int
    migrations: tuple[PlannedMigration, ...]
    functions: FunctionChanges
    functions_pending: bool
    compatible_from: int
    running: tuple[RunningProgram, ...]

    @property
    def is_empty(self) -> bool:
        return not self.migrations and not self.functions_pending

    @property
    def stops(self) -> tuple[RunningProgram, ...]:
        """The running programs that would not work any more."""
        return tuple(program for program in self.running if program.keeps_working is False)

    def locked_tables(self) -> list[tuple[PlannedLock, float | None]]:
        """The strongest lock of each table, the strongest first, and the seconds until the transaction commits that
        takes it first.
        """
        strongest: dict[str, PlannedLock] = {}
        seconds: dict[str, float | None] = {}
        for statements, more_seconds in self._transactions():
            for index, statement in enumerate(statements):
                held = _sum([*(later.seconds for later in statements[index:]), more_seconds])
                for lock in statement.locks:
                    known = strongest.get(lock.table)
                    if known is None or STRENGTH[lock.mode] > STRENGTH[known.mode]:
                        strongest[lock.table] = lock
                    seconds[lock.table] = _longer(held, seconds.get(lock.table, 0.0))
        ordered = sorted(strongest.values(), key=lambda lock: (-STRENGTH[lock.mode], lock.table))
        return [(lock, seconds[lock.table]) for lock in ordered]

    def _transactions(self) -> list[tuple[list[PlannedStatement], float]]:
        """The statements of each transaction, and the seconds of what else it does. The last one replaces functions."""
        found: list[tuple[list[PlannedStatement], float]] = []
        together: list[PlannedStatement] = []
        for migration in self.migrations:
            if migration.in_transaction:
                together.extend(migration.statements)
                continue
            found += [(together, 0.0), *(([statement], 0.0) for statement in migration.statements)]
            together = []
        return [*found, (together, FUNCTIONS_SECONDS)]


async def plan(
    connection: Connection, migrations: Sequence[Migration] | None = None, functions: Functions | None = None
) -> MigrationPlan:
    """Compares the database with this program, without locks. Raises SchemaMismatch if `migrate` would."""
    if migrations is None:
        migrations, functions = migrate.load(), functions or load_functions()
    functions = functions or Functions()
    found = await migrate.status(connection, migrations, functions)
    migrate.check_history(found.applied, migrations)
    tables = {row["name"]: row["bytes"] or 0 for row in await connection.fetch(TABLES)}
    pending = tuple(_planned(migration, tables) for migration in found.pending)
    compatible_from = max((_oldest(migration) for migration in found.pending), default=0)
    is_pending = bool(found.pending) or found.functions_pending
    return MigrationPlan(
        program=metadata.version("bellringer"),
        current=found.current,
        wanted=found.wanted,
        migrations=pending,
        functions=await _function_changes(connection, functions, found.applied) if is_pending else FunctionChanges(),
        functions_pending=found.functions_pending,
        compatible_from=compatible_from,
        running=tuple(await _running(connection, found.applied, compatible_from)) if "workers" in tables else (),
    )


def _oldest(migration: Migration) -> int:
    return migration.number if migration.compatible_from is None else migration.compatible_from


def _planned(migration: Migration, tables: Mapping[str, int]) -> PlannedMigration:
    return PlannedMigration(
        number=migration.number,
        name=migration.name,
        compatible_from=migration.compatible_from,
        in_transaction=migration.is_transaction,
        statements=tuple(
            _planned_statement(effect, tables)
            for effect in classify(migration.sql)
            if not effect.sql.lower().startswith("set ")
        ),
    )


def _planned_statement(effect: StatementEffect, tables: Mapping[str, int]) -> PlannedStatement:
    locks = tuple(
        PlannedLock(table=lock.table, mode=lock.mode, bytes=tables[lock.table])
        for lock in effect.locks
        if lock.table in tables  # another pending migration creates the table
    )
    work = effect.work if locks or effect.work == Effort.UNKNOWN else Effort.METADATA
    return PlannedStatement(
        sql=effect.sql, work=work, locks=locks, seconds=_estimate(work, locks), contracts=effect.contracts
    )


def _estimate(work: Effort, locks: Sequence[PlannedLock]) -> float | None:
    if work == Effort.UNKNOWN:
        return None
    if work == Effort.METADATA:
        return METADATA_SECONDS
    return METADATA_SECONDS + max(lock.bytes for lock in locks) / BYTES_PER_SECOND[work]


def _sum(seconds: Iterable[float | None]) -> float | None:
    total = 0.0
    for each in seconds:
        if each is None:
            return None
        total += each
    return total


def _longer(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


async def _function_changes(
    connection: Connection, functions: Functions, applied: Sequence[AppliedMigration]
) -> FunctionChanges:
    """Compares bodies and argument names. Functions that a `do` block generates are not compared."""
    if not applied or not functions.files:
        return FunctionChanges()
    ours: dict[str, set[str]] = defaultdict(set)
    generated: set[str] = set()
    for file in functions.files:
        for statement in file.statements:
            if found := _FUNCTION.match(statement):
                ours[found["name"]].add(_shape(_argument_names(statement), found["body"]))
            else:
                generated.update(_DEFINES.findall(statement))
    theirs: dict[str, set[str]] = defaultdict(set)
    for row in await connection.fetch(FUNCTIONS):
        theirs[row["name"]].add(_shape(row["arguments"] or (), row["body"]))
    return FunctionChanges(
        created=tuple(sorted(ours.keys() - theirs.keys())),
        replaced=tuple(sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])),
        dropped=tuple(sorted(theirs.keys() - ours.keys() - generated)),
    )


def _shape(arguments: Iterable[str], body: str) -> str:
    return "\0".join([*arguments, body])


def _argument_names(statement: str) -> list[str]:
    """The names of the input arguments; each of our functions names all of its arguments."""
    start = statement.index("(")
    depth, parts = 0, [""]
    for char in re.sub(r"--[^\n]*", "", statement[start:]):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            break
        if char == "," and depth == 1:
            parts.append("")
        elif not (char == "(" and depth == 1):
            parts[-1] += char
    words = [part.split() for part in parts if part.strip()]
    return [word[1] if word[0] in {"in", "inout", "variadic"} else word[0] for word in words if word[0] != "out"]


async def _running(
    connection: Connection, applied: Sequence[AppliedMigration], compatible_from: int
) -> list[RunningProgram]:
    return [
        RunningProgram(
            release=row["version"],
            kind=row["kind"],
            processes=row["processes"],
            keeps_working=_keeps_working(row["version"], applied, compatible_from),
        )
        for row in await connection.fetch(RUNNING)
    ]


def _keeps_working(release: str, applied: Sequence[AppliedMigration], compatible_from: int) -> bool | None:
    """A release needs at most the schema that it, or an earlier release, has applied."""
    if not parse_release(release):
        return None
    needs = [step.number for step in applied if parse_release(step.program) <= parse_release(release)]
    return max(needs) >= compatible_from if needs else None
