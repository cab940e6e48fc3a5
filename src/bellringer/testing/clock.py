"""A clock that a test moves: the real engine asks `bellringer.now()`, and here that reads a table.

Leases and heartbeats keep real time. To move the clock alone means that meanwhile nobody was there to tick;
to live through the time, advance the engine.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store.pool import Store

_INSTALL: Final = """
create table if not exists bellringer.test_clock (
  only_row boolean primary key default true check (only_row), moment timestamptz not null);
create or replace function bellringer.now() returns timestamptz language sql stable parallel safe
  as 'select moment from bellringer.test_clock';
"""

# A day of history is three tables with their indexes, and a test may live through years. So an empty history
# is given a single partition, and every day counts as older than the installation.
_ONE_PARTITION: Final = """
do $$
declare
  parent text;
  child  regclass;
begin
  if exists (select 1 from bellringer.runs) or (select made_at = 'infinity' from bellringer.cluster) then
    return;
  end if;
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    for child in
      select inhrelid::regclass from pg_inherits where inhparent = ('bellringer.' || parent)::regclass
    loop
      execute format('drop table %s', child);
    end loop;
    execute format('create table bellringer.%I partition of bellringer.%I default',
                   parent || '_past', parent);
  end loop;
  update bellringer.cluster set made_at = 'infinity';
end $$;
"""

_SET: Final = """
insert into bellringer.test_clock (moment) values ($1)
on conflict (only_row) do update set moment = excluded.moment
"""


class TestClock:
    """Schedule time in one test database."""

    __test__ = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moment: datetime | None = None

    async def install(self, at: datetime | str) -> None:
        """Put this clock in place of the database's own, at this instant."""
        moment = read_instant(at, what="at")
        await self._store.pool.execute(_ONE_PARTITION)
        await self._store.pool.execute(_INSTALL)
        await self._put(moment)

    def now(self) -> datetime:
        if self._moment is None:
            raise InvalidInput("the test's clock is not installed", hint="call `await clock.install(…)` first")
        return self._moment

    async def set(self, at: datetime | str) -> None:
        """Show this instant; time never goes back."""
        moment = read_instant(at, what="at")
        if moment < self.now():
            raise InvalidInput(f"{moment.isoformat()} is before the test's now, {self.now().isoformat()}")
        await self._put(moment)

    async def advance(self, by: str | float | timedelta) -> None:
        await self.set(self.now() + parse_duration(by, what="advance"))

    async def _put(self, moment: datetime) -> None:
        await self._store.pool.execute(_SET, moment)
        self._moment = moment
