"""A field of a job is declared once, in `core.jobs.JobFields`; the tables and the wire format have all of them."""

from __future__ import annotations

from datetime import timedelta

from bellringer.core.jobs import JOB_FIELDS, JobFields
from bellringer.store.connection_pool import Store
from bellringer.wire.definitions import render_fields
from bellringer.wire.jobs import Job, JobRequest

NOT_REQUESTED = {"owner", "routed"}  # they follow from who creates the job, and from whether a pool is given


async def columns(store: Store, of: str) -> set[str]:
    query = "select attname from pg_attribute where attrelid = ('bellringer.' || $1)::regclass and attnum > 0"
    return {row["attname"] for row in await store.pool.fetch(query, of)}


async def test_every_field_is_a_column_of_jobs_and_of_their_history(store: Store) -> None:
    assert set(JOB_FIELDS) <= await columns(store, "jobs")
    assert set(JOB_FIELDS) <= await columns(store, "job_terms")


def test_every_field_is_in_responses_and_what_people_choose_in_requests() -> None:
    assert set(JOB_FIELDS) <= set(Job.__struct_fields__)
    assert set(JOB_FIELDS) - NOT_REQUESTED <= set(JobRequest.__struct_fields__)


def test_fields_are_rendered_as_people_write_them() -> None:
    fields = render_fields(JobFields(jitter=timedelta(minutes=10), tags=("a", "b")))
    shown = (fields["jitter"], fields["tags"], fields["late_after"], fields["enabled"])
    assert shown == ("10m", ["a", "b"], None, True)
