"""Archives runs past retention: writes a batch in parts, verifies them, writes the manifest, drops the tables.

Each step can be repeated: the tables of a batch do not change, so a part that is written again has the same rows. The
database records a part after the part was written, and drops the tables after everything was read back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Final

import msgspec
import zstandard

from bellringer.clock import Clock
from bellringer.core.archive import ArchiveManifest, ArchivePart, ObjectStore, batch_name, part_path
from bellringer.core.fault_injection import fault_point
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.redaction import redact_arguments, redact_document
from bellringer.core.runs import RunKey, Spec
from bellringer.egress.targets import hide_target_secrets
from bellringer.errors import BellringerError
from bellringer.store import archive
from bellringer.store.archive import ArchiveBatch, ArchiveCursor, ExpiredRun
from bellringer.store.connection_pool import Store
from bellringer.store.runs import AttemptRow
from bellringer.telemetry import log
from bellringer.wire.archive import ArchivedRun
from bellringer.wire.runs import Attempt

ROWS_PER_PAGE: Final = 500
MAX_ROWS_PER_PART: Final = 50_000
MAX_BYTES_PER_PART: Final = 16 << 20  # before compression
SLICE_SECONDS: Final = 5.0  # of one call; other steps of the scheduler are not delayed, but the database is shared
COMPRESSION_LEVEL: Final = 6

_ENCODER: Final = msgspec.json.Encoder()


class ArchiveDamaged(BellringerError):
    """The archive does not contain what was written to it. Check the storage; the runs stay in the database."""

    code = "archive_damaged"


async def archive_slice(store: Store, target: ObjectStore, clock: Clock, seconds: float = SLICE_SECONDS) -> int:
    """Continues the oldest batch for some seconds; returns the number of batches that were completed.

    A failure is recorded with the batch, which is kept, and raised.
    """
    ends, completed = clock.monotonic() + seconds, 0
    while clock.monotonic() < ends and (batch := await archive.next_batch(store)) is not None:
        try:
            completed += await _continue(store, target, batch)
        except Exception as error:
            await archive.record_failure(store, batch, f"{type(error).__name__}: {error}")
            raise
    return completed


async def _continue(store: Store, target: ObjectStore, batch: ArchiveBatch) -> bool:
    """Writes the next part, or completes the batch; returns whether it is complete."""
    if batch.state == "open":
        if await _write_part(store, target, batch):
            return False
        await _complete(store, target, batch)
    await archive.drop_batch(store, batch)
    fault_point("archive.dropped")
    log.info("runs archived", day=batch.day.isoformat(), runs=batch.rows, parts=batch.parts, bytes=batch.bytes)
    return True


async def _write_part(store: Store, target: ObjectStore, batch: ArchiveBatch) -> bool:
    """Writes the next part of the batch; returns False if there is none."""
    tenant_id, after = batch.tenant_id, batch.after
    while (tenant := await archive.next_tenant(store, batch, tenant_id)) is not None:
        if tenant[0] != batch.tenant_id:
            after = ArchiveCursor()
        lines, rows, last = await _read_lines(store, batch, tenant, after)
        if rows == 0:
            tenant_id = tenant[0] + 1
            continue
        data = await asyncio.to_thread(_compress, lines)
        path = part_path(batch.day, tenant[1], batch_name(batch.opened_at, batch.batch_id), batch.parts + 1)
        digest = hashlib.sha256(data).hexdigest()
        await target.put(path, data)
        fault_point("archive.uploaded")
        part = ArchivePart(path=path, tenant=tenant[1], rows=rows, bytes=len(data), sha256=digest)
        await archive.add_part(store, batch, tenant[0], part, last)
        fault_point("archive.recorded")
        return True
    return False


async def _read_lines(
    store: Store, batch: ArchiveBatch, tenant: tuple[int, str], after: ArchiveCursor
) -> tuple[bytearray, int, ArchiveCursor]:
    """Reads runs of one tenant until a part is full; returns their lines, their number and the position after them."""
    lines, rows = bytearray(), 0
    while rows < MAX_ROWS_PER_PART and len(lines) < MAX_BYTES_PER_PART:
        page = await archive.read_page(store, batch, tenant[0], after, ROWS_PER_PAGE)
        for each in page:
            lines += _ENCODER.encode(render_archived_run(each, tenant[1])) + b"\n"
        rows += len(page)
        after = page[-1].cursor if page else after
        if len(page) < ROWS_PER_PAGE:
            break
    return lines, rows, after


def _compress(lines: bytearray) -> bytes:
    """Compresses without a checksum or date of its own, so that equal lines give equal bytes."""
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(bytes(lines))


async def _complete(store: Store, target: ObjectStore, batch: ArchiveBatch) -> None:
    """Verifies all parts by reading them back, and writes the manifest."""
    parts = await archive.list_parts(store, batch)
    rows, stored = sum(part.rows for part in parts), await archive.count_rows(store, batch)
    if rows != stored:
        raise ArchiveDamaged(f"the parts of {batch.day} have {rows} runs, the batch has {stored}")
    if stored == 0:  # a day without runs needs no manifest
        await archive.mark_archived(store, batch)
        return
    for part in parts:
        await verify_part(target, part)
    fault_point("archive.verified")
    manifest = ArchiveManifest(
        day=batch.day,
        batch=batch_name(batch.opened_at, batch.batch_id),
        rows=rows,
        bytes=sum(part.bytes for part in parts),
        parts=parts,
        program=metadata.version("bellringer"),
    )
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    await target.put(manifest.path, encoded)
    if await target.get(manifest.path) != encoded:
        raise ArchiveDamaged(f"{manifest.path} differs from what was written")
    fault_point("archive.manifest")
    await archive.mark_archived(store, batch)
    fault_point("archive.archived")


async def verify_part(target: ObjectStore, part: ArchivePart, each_line: Callable[[bytes], None] | None = None) -> None:
    """Raises ArchiveDamaged unless the part has the size, digest and number of rows that its manifest says."""
    data = await target.get(part.path)
    if (len(data), hashlib.sha256(data).hexdigest()) != (part.bytes, part.sha256):
        raise ArchiveDamaged(f"{part.path} has another size or digest than its manifest")
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(data).splitlines()
    if len(lines) != part.rows:
        raise ArchiveDamaged(f"{part.path} has {len(lines)} rows, its manifest says {part.rows}")
    for line in lines if each_line else ():
        each_line(line)  # type: ignore[misc]


def render_archived_run(expired: ExpiredRun, tenant: str) -> ArchivedRun:
    """Renders a run as the API does: secrets of HTTP targets and values at `redact` paths are hidden."""
    run, attempts = expired.run, expired.attempts
    spec = run.spec or Spec()
    args, kwargs = _shown_arguments(spec, is_http=run.task == HTTP_TASK)
    return ArchivedRun(
        run_id=run.key.id,
        tenant=tenant,
        job_id=str(run.key.job_id),
        job=run.job,
        task=run.task,
        state=run.state.value,
        cause=run.cause,
        scheduled_for=run.key.scheduled_for,
        slot=run.key.slot,
        attempt=run.attempt,
        fired_at=run.fired_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        pool=run.pool,
        priority=run.priority,
        worker_id=attempts[-1].worker_id if attempts else None,
        revision=run.revision,
        token=run.token,
        reason=run.reason,
        error=run.error,
        args=args,
        kwargs=kwargs,
        result=redact_document(run.result, spec.redact),
        attempts=[_render_attempt(attempt, spec.redact) for attempt in attempts],
        replay_of=None if run.of_slot is None else RunKey(run.key.job_id, run.key.scheduled_for, run.of_slot).id,
    )


def _shown_arguments(spec: Spec, *, is_http: bool) -> tuple[list[Any], dict[str, Any]]:
    if not is_http:
        return redact_arguments(spec.args, spec.kwargs, spec.redact)
    shown = hide_target_secrets(spec.kwargs)
    if "body" in shown:
        shown["body"] = redact_document(shown["body"], spec.redact)
    return list(spec.args), shown


def _render_attempt(attempt: AttemptRow, hidden: Sequence[str]) -> Attempt:
    return Attempt(**{**msgspec.structs.asdict(attempt), "result": redact_document(attempt.result, hidden)})
