"""Which runs a list or an operation is about: the same words in a query and in a body."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from starlette.datastructures import QueryParams

from bellringer.api.calls import Call, find_job
from bellringer.api.operations import Query, choice, moment, number, string
from bellringer.errors import InvalidInput
from bellringer.runs import Cause
from bellringer.store.run_lists import STATES, RunFilter
from bellringer.wire import instant
from bellringer.wire.reading import Gathering
from bellringer.wire.runs import RunsFilter

LONGEST: Final = 255
_LARGEST: Final = (1 << 31) - 1

QUERY: Final[tuple[Query, ...]] = (
    string("state", f"only those in one of these states, with commas or repeated: {', '.join(STATES)}"),
    string("job", "only those of this job, by id or name"),
    string("task", "only those of this task"),
    string("pool", "only those of this pool"),
    choice("cause", "only those that exist for this cause", list(Cause)),
    string("tag", "only those of jobs with this tag"),
    number("worker", "only those that this worker runs or has run, by its number", 1, _LARGEST),
    string("q", "only those with these words in the name of their job or task"),
    moment("from", "only those scheduled for then or later"),
    moment("to", "only those scheduled for before then"),
)


def of_query(given: QueryParams) -> RunsFilter:
    """The filter that a query spells."""
    worker = given.get("worker")
    if worker is not None and not (worker.isascii() and worker.isdecimal() and 0 < int(worker[:11]) <= _LARGEST):
        raise InvalidInput("worker must be the number of one", hint="`GET /workers` shows them", code="limit_range")
    return RunsFilter(
        state=given.getlist("state") or None,
        **{name: given.get(name) for name in ("job", "task", "pool", "cause", "tag", "q")},
        worker=None if worker is None else int(worker),
        from_at=given.get("from"),
        to_at=given.get("to"),
    )


async def run_filter(call: Call, wanted: RunsFilter, pointer: str = "") -> RunFilter:
    """As the store takes it; what cannot be is refused, all of it at once."""
    g = Gathering()
    for name in ("task", "pool", "tag", "q"):
        text = getattr(wanted, name)
        if text is not None and not 0 < len(text) <= LONGEST:
            g.add(
                InvalidInput(f"{name} must have 1 to {LONGEST} characters", pointer=f"{pointer}/{name}", code="limit")
            )
        elif text is not None and "\0" in text:
            g.add(InvalidInput(f"{name} holds a NUL character", pointer=f"{pointer}/{name}", code="nul_character"))
    states = g.take(f"{pointer}/state", lambda: _states(wanted.state), None)
    cause = g.take(f"{pointer}/cause", lambda: _cause(wanted.cause), None)
    from_at = g.take(f"{pointer}/from", lambda: instant(wanted.from_at, what="from"), None)
    to_at = g.take(f"{pointer}/to", lambda: instant(wanted.to_at, what="to"), None)
    g.done()
    return RunFilter(
        job=None if wanted.job is None else await find_job(call, wanted.job),
        states=states,
        task=wanted.task,
        pool=wanted.pool,
        cause=cause,
        tag=wanted.tag,
        worker=wanted.worker,
        q=wanted.q,
        from_at=from_at,
        to_at=to_at,
    )


def _states(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else given
    words = {word.strip() for text in texts for word in text.split(",")}
    for word in sorted(words):
        _known(word, STATES, "state")
    return tuple(sorted(words)) or None


def _cause(given: str | None) -> str | None:
    return None if given is None else _known(given, list(Cause), "cause")


def _known(word: str, words: Sequence[str], what: str) -> str:
    if word not in words:
        near = get_close_matches(word[:40], words, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(words)}"
        raise InvalidInput(f"there is no {what} {word[:40]!r}", hint=hint, code=f"{what}_unknown")
    return word
