"""The reference of cron expressions: fields and names from the parser, descriptions and fires from the real schedules.

An example that the parser does not accept, or an error that it does not raise, ends the generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from bellringer.errors import InvalidSchedule
from bellringer.schedule import cron, next_fires
from bellringer.schedule.cron_ast import FIELDS, WEEKDAY, WEEKDAY_FROM_1, YEAR, Dialect, Field
from bellringer.schedule.cron_dialects import ALIASES, MAX_EXPRESSION_LENGTH
from tools.reference.markdown import code, page, table

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
SEED: Final = "billing"
Example = tuple[str, dict[str, Any]]

INTRODUCTION: Final = f"""\
The whole grammar of cron expressions. [Schedules](../schedules.md) explains the other kinds of schedules, time zones
and repeat counts.

All descriptions and times on this page are computed by the schedules themselves; the times are the next ones after
{START:%Y-%m-%d} 00:00 UTC. `bellringer cron explain '30 9 * * MON-FRI'` shows the same for your expression."""

GRAMMAR: Final = """\
```text
expression = [ ("CRON_TZ=" | "TZ=") zone ] ( macro | fields )
fields     = unix | quartz | aws
unix       = [ second ] minute hour day-of-month month day-of-week
quartz     = second minute hour day-of-month month day-of-week [ year ]
aws        = minute hour day-of-month month day-of-week year
field      = "?" | item { "," item }
item       = ( "*" | value | value "-" value ) [ "/" step ] | hashed
           | special-day | special-weekday
hashed     = "H" [ "(" value "-" value ")" ] [ "/" step ]
special-day     = "L" [ "-" days ] [ "W" ] | day "W"
                | day "-L" [ "/" step ]
special-weekday = value "#" nth | value "L" | "L"
value      = digits | name
```"""

ITEMS: Final[Sequence[tuple[str, str, Example]]] = (
    ("`*`", "every value", ("* * * * *", {})),
    ("`5`", "one value; leading zeros are ignored", ("5 09 * * *", {})),
    ("`MON`, `jan`", "a name, in upper or lower case", ("0 9 * jan MON", {})),
    ("`a-b`", "a range", ("0 9-11 * * *", {})),
    ("`b-a`", "a range that wraps around", ("0 22-1 * * *", {})),
    ("`SAT-MON`", "a range of names, also one that wraps around", ("0 12 * * SAT-MON", {})),
    ("`a,b-c`", "a list of items", ("0 8,12-13 * * *", {})),
    ("`*/n`", "every n-th value, from the first value of the field on", ("*/20 * * * *", {})),
    ("`a-b/n`", "every n-th value of a range", ("10-50/20 * * * *", {})),
    ("`a/n`", "from a to the end of the field in steps of n", ("5/25 * * * *", {})),
    ("`?`", "as `*`, in the day fields", ("0 9 ? * MON", {})),
    ("`L`", "the last day of the month", ("0 18 L * *", {})),
    ("`L-n`", "the n-th day before the last day of the month", ("0 18 L-3 * *", {})),
    ("`d-L`", "from day d to the last day of the month", ("0 18 30-L * *", {})),
    ("`d-L/n`", "every n-th of these days", ("0 18 1-L/10 * *", {})),
    ("`dW`", "the weekday (Monday to Friday) of the month that is nearest to day d", ("0 9 15W * *", {})),
    ("`LW`", "the last weekday of the month", ("0 9 LW * *", {})),
    ("`L-nW`", "the weekday that is nearest to the n-th day before the last", ("0 9 L-3W * *", {})),
    ("`w#n`", "the n-th weekday w of the month, n from 1 to 5", ("0 9 * * FRI#2", {})),
    ("`wL`", "the last weekday w of the month", ("0 9 * * FRIL", {})),
    ("`H`", "a value that a hash of the job's name chooses, the same on every node", ("H 3 * * *", {"seed": SEED})),
    ("`H(a-b)`", "such a value of a range, also one that wraps around", ("H H(0-5) * * *", {"seed": SEED})),
    ("`H/n`", "such a value and every n-th after it", ("H/20 * * * *", {"seed": SEED})),
)
DAY_RULES: Final[Sequence[Example]] = (
    ("0 0 13 * *", {}),
    ("0 0 * * FRI", {}),
    ("0 0 13 * FRI", {}),
    ("0 0 13 * FRI", {"day_match": "both"}),
    ("0 0 */2 * MON", {}),
    ("0 0 */2 * MON", {"day_match": "either"}),
)
SAME_TIMES: Final[Sequence[tuple[str, Sequence[Example]]]] = (
    (
        "weekdays at 9:30",
        (
            ("30 9 * * MON-FRI", {}),
            ("0 30 9 ? * MON-FRI", {"dialect": "quartz"}),
            ("cron(30 9 ? * MON-FRI *)", {"dialect": "aws"}),
        ),
    ),
    (
        "the last Friday of the month at noon",
        (
            ("0 12 * * 5L", {}),
            ("0 0 12 ? * 6L", {"dialect": "quartz"}),
            ("0 12 ? * 6L *", {"dialect": "aws"}),
        ),
    ),
    (
        "every 15 minutes",
        (
            ("*/15 * * * *", {}),
            ("0 /15 * * * ?", {"dialect": "quartz"}),
            ("/15 * * * ? *", {"dialect": "aws"}),
        ),
    ),
    (
        "1 March at 6:00, until 2028",
        (
            ("0 0 6 1 3 ? 2026-2028", {"dialect": "quartz"}),
            ("0 6 1 3 ? 2026-2028", {"dialect": "aws"}),
        ),
    ),
    (
        "Saturday at midnight",
        (("0 0 * * 6", {}), ("0 0 0 ? * L", {"dialect": "quartz"}), ("0 0 ? * L *", {"dialect": "aws"})),
    ),
    ("every 10 seconds", (("*/10 * * * * *", {"seconds": True}), ("*/10 * * * * ?", {"dialect": "quartz"}))),
)
REFUSED: Final[Sequence[Example]] = (
    ("0 9 * *", {}),
    ("0 0 9 * * MON-FRI", {}),
    ("0 0 9 ? * MON-FRI", {}),
    ("30 9 * * MON-FRI", {"dialect": "quartz"}),
    ("0 9 * * MON *", {"dialect": "aws"}),
    ("0 25 * * *", {}),
    ("*/0 * * * *", {}),
    ("/15 * * * *", {}),
    ("0 9 * * L", {}),
    ("0 9 W15 * *", {}),
    ("0 9 * * MON#6", {}),
    ("0 9 31 4 *", {}),
    ("R * * * *", {}),
    ("@every 5m", {}),
    ("@reboot", {}),
    ("@dayly", {}),
    ("rate(5 minutes)", {"dialect": "aws"}),
    ("CRON_TZ=Europe/Berlin 0 9 * * *", {"tz": "Europe/Paris"}),
)
CLOCK_CHANGES: Final[Sequence[tuple[Example, datetime]]] = (
    (("30 2 * * *", {"tz": "Europe/Berlin"}), datetime(2026, 3, 27, 12, tzinfo=UTC)),
    (("30 2 * * *", {"tz": "Europe/Berlin", "gap": "skip"}), datetime(2026, 3, 27, 12, tzinfo=UTC)),
    (("30 2 * * *", {"tz": "Europe/Berlin"}), datetime(2026, 10, 23, 12, tzinfo=UTC)),
    (("30 2 * * *", {"tz": "Europe/Berlin", "fold": "both"}), datetime(2026, 10, 23, 12, tzinfo=UTC)),
    (("*/30 * * * *", {"tz": "Europe/Berlin"}), datetime(2026, 10, 25, 0, tzinfo=UTC)),
)


def render_cron() -> str:
    """Returns the page with the grammar, the fields, and an example of every form."""
    sections = (
        f"## Grammar\n\n{GRAMMAR}\n\n{_GRAMMAR_NOTES}",
        f"## Fields\n\n{_fields()}",
        f"## Items\n\n{_items()}\n\n{_ITEM_NOTES}",
        f"## Macros\n\n{_macros()}",
        f"## Time zone prefix\n\n{_PREFIX}\n\n{_fires_table([('CRON_TZ=Europe/Berlin 0 9 * * *', {})])}",
        f"## Day of month and day of week\n\n{_DAY_NOTES}\n\n{_fires_table(DAY_RULES)}",
        f"## Hashed values\n\n{_HASH_NOTES}\n\n{_hashes()}",
        f"## Dialects\n\n{_DIALECTS}\n\n{_same_times()}",
        f"## Clock changes\n\n{_CLOCK_NOTES}\n\n{_clock_changes()}",
        f"## Refused expressions\n\n{_REFUSED_NOTES}\n\n{_refused()}",
    )
    return page("Cron expressions", INTRODUCTION, *sections)


_GRAMMAR_NOTES: Final = f"""\
`special-day` stands in the day of month, `special-weekday` in the day of week. `hashed`, macros and the time zone are
part of the default dialect only. Fields are separated by spaces or tabs; white space around the expression is ignored.
An expression has at most {MAX_EXPRESSION_LENGTH} ASCII characters. Letters may be lower case."""
_ITEM_NOTES: Final = f"""\
- A step may be wider than its range: `*/90` in the minute field matches only minute 0, once an hour, as in crontab, and
  previews warn about it. For every 90 minutes use `every("90m")`.
- Days of the month wrap after 31. `31W` does not fire in months without a 31st, and `SUN-SUN` is one day.
- The examples with `H` are those of a job whose seed is `{SEED}`."""
_PREFIX: Final = """\
`CRON_TZ=` or `TZ=` in front of an expression of the default dialect names its time zone, as in Kubernetes. Passing
`tz=` is the same; both are only allowed if they agree. Without either the time zone is UTC."""
_DAY_NOTES: Final = """\
If one of the fields is `*` or `?`, the other decides alone. If both are restricted, crontab fires when *either*
matches, except that *both* must match if one of them begins with a star. `day_match` (`either` or `both`) makes the
choice explicit; without it, previews warn about such expressions."""
_HASH_NOTES: Final = """\
`H` spreads jobs over time without a table of slots: the hash of the job's name and of the field chooses the value, so
it is the same on every node and after every restart, and jobs that get the same value share a
[cohort](../cohorts.md). `H` in the day of month chooses from 1 to 28, which every month has. `seed=` replaces the
name. [Policies](../policies.md) compares `H` with jitter."""
_DIALECTS: Final = """\
| rule | `unix` (default) | `quartz` | `aws` |
|---|---|---|---|
| fields | 5, or 6 with `seconds=True` | 6, or 7 with the year | 6 |
| first field | minute, or second | second | minute |
| year | – | optional | required |
| weekday numbers | 0–7, Sunday is 0 and 7 | 1–7, Sunday is 1 | 1–7, Sunday is 1 |
| `?` | same as `*` | in exactly one day field | in exactly one day field |
| both day fields restricted | `day_match` decides | not possible | not possible |
| `L` as day of week | an error | Saturday | Saturday |
| `/15` | an error | `*/15` | `*/15` |
| `H`, macros, `CRON_TZ=` | yes | no | no |
| `cron(…)` around it | no | no | accepted |

An expression that has the shape of another dialect is refused with the name of that dialect. It is never read with
other rules. Clock changes are handled in the same way in all dialects; Quartz itself differs.

The same times in each dialect:"""
_CLOCK_NOTES: Final = """\
`gap` says what happens with a local time that the clock skips: `next` fires at the first instant after the gap, `skip`
does not fire. `fold` says which of two equal local times fires: `first`, `second` or `both`. The default is `next` and
`first` for fixed times of day, and `skip` and `both` for an expression whose minute or hour begins with a star, because
it follows elapsed time."""
_REFUSED_NOTES: Final = """\
Every error has a position in the expression, a code ([error codes](errors.md)) and, where there is one, the way to
write what was meant."""


def _fields() -> str:
    fields: Sequence[tuple[Field, str]] = (
        *((field, "") for field in FIELDS),
        (WEEKDAY_FROM_1, "`quartz`, `aws`"),
        (YEAR, "`quartz`, `aws`"),
    )
    rows = []
    for field, dialects in fields:
        names = f"{field.names[0]}–{field.names[-1]}" if field.names else "–"
        where = dialects or ("`unix`" if field is WEEKDAY else "all")
        if field is FIELDS[0]:
            where = "`quartz`, and `unix` with `seconds=True`"
        rows.append((field.name, f"{field.low}–{field.high}", names, where))
    return table(("field", "values", "names", "dialects"), rows)


def _items() -> str:
    rows = []
    for form, meaning, (text, options) in ITEMS:
        rows.append((form, meaning, code(text), _next(text, options, 3)))
    return table(("item", "meaning", "example", "next times (UTC)"), rows)


def _macros() -> str:
    rows = [(code(name), code(text), _next(name, {}, 2)) for name, text in ALIASES.items()]
    return table(("macro", "stands for", "next times (UTC)"), rows)


def _fires_table(examples: Sequence[Example]) -> str:
    rows = [(_call(*one), cron(one[0], **one[1]).describe(), _next(*one, 4)) for one in examples]
    return table(("schedule", "description", "next times (UTC)"), rows)


def _hashes() -> str:
    rows = []
    for seed in ("billing", "invoices", "reports"):
        one = cron("H H(1-4) * * *", seed=seed)
        rows.append((code(seed), code(one.plain_expression), _next("H H(1-4) * * *", {"seed": seed}, 2)))
    return table(("seed", "`H H(1-4) * * *` becomes", "next times (UTC)"), rows)


def _same_times() -> str:
    rows = []
    for meaning, examples in SAME_TIMES:
        texts = {options.get("dialect", Dialect.UNIX.value): (text, options) for text, options in examples}
        found = {_next(*one, 2) for one in texts.values()}
        assert len(found) == 1, f"{meaning}: the dialects differ: {found}"
        shown = [code(texts[dialect][0]) if dialect in texts else "–" for dialect in ("unix", "quartz", "aws")]
        rows.append((meaning, *shown, found.pop()))
    return table(("meaning", "`unix`", "`quartz`", "`aws`", "next times (UTC)"), rows)


def _clock_changes() -> str:
    rows = []
    for (text, options), after in CLOCK_CHANGES:
        fires = next_fires(cron(text, **options), after, 4)
        times = "<br>".join(
            f"{fire.local:%m-%d %H:%M} (UTC{fire.local:%z}){': ' + ', '.join(fire.flags) if fire.flags else ''}"
            for fire in fires
        )
        rows.append((_call(text, options), f"{after:%Y-%m-%d %H:%M}", times))
    return table(("schedule", "after (UTC)", "next local times and their flags"), rows)


def _refused() -> str:
    rows = []
    for text, options in REFUSED:
        try:
            schedule = cron(text, **options)
        except InvalidSchedule as error:
            rows.append((_call(text, options), f"{error.message} ({code(error.code)})", error.hint or "–"))
        else:
            raise AssertionError(f"{text} is accepted: {schedule.describe()}")
    return table(("schedule", "error", "hint"), rows)


def _call(text: str, options: dict[str, Any]) -> str:
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return code(f"cron({text!r}{given})".replace("'", '"')) if options else code(text)


def _next(text: str, options: dict[str, Any], count: int) -> str:
    fires = [fire.at for fire in next_fires(cron(text, **options), START, count)]
    assert fires, f"{text} never fires"
    has_seconds = any(fire.second for fire in fires)
    return ", ".join(f"{fire:%a %Y-%m-%d %H:%M:%S}" if has_seconds else f"{fire:%a %Y-%m-%d %H:%M}" for fire in fires)
