"""Names that the table of routes takes away from jobs: a job under such a name could not be reached."""

from __future__ import annotations

import httpx2
import pytest

from bellringer.api.endpoint_table import ROUTES, words_beside
from bellringer.core.jobs import RESERVED_JOB_NAMES
from bellringer.wire.routes import PREFIX

JOBS = f"{PREFIX}/jobs"


def test_every_word_of_the_table_is_reserved() -> None:
    words = words_beside(f"{JOBS}/{{id}}")
    assert {"execute", "bulk", "strips"} <= words
    assert words <= RESERVED_JOB_NAMES


def test_no_other_resource_that_is_found_by_name_has_words_beside_it() -> None:
    """Runs have ids of one form, which no word has; all others are reached by names that people choose."""
    open_ends = {path for path in ROUTES if path.endswith("}")}
    with_words = {path for path in open_ends if words_beside(path)}
    assert with_words == {f"{JOBS}/{{id}}", f"{PREFIX}/runs/{{id}}"}


@pytest.mark.parametrize("name", [*sorted(words_beside(f"{JOBS}/{{id}}")), ".", ".."])
async def test_a_job_cannot_have_the_name_of_a_route(api: httpx2.AsyncClient, name: str) -> None:
    answer = await api.post(JOBS, json={"name": name, "task": "demo", "schedule": {"every": "1h"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "name_reserved")
    several = await api.post(f"{JOBS}/bulk", json={"items": [{"name": name, "task": "demo"}]})
    assert "name_reserved" in several.text, several.text
