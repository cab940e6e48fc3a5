"""The output of one attempt: lines, bytes, bounds, and writers that interrupt each other."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from bellringer.core.runs import RunKey, Spec
from bellringer.worker.attempt import Work
from bellringer.worker.output.attempt_output import (
    DROPPED_MESSAGE,
    MAX_CAPTURED_LINES,
    MAX_MESSAGE_BYTES,
    AttemptOutput,
    current_log_fields,
    set_current_output,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORK = Work(key=RunKey(UUID(int=1), NOW), attempt=3, spent=1, task="t", spec=Spec(), claimed_at=NOW, tenant="acme")


class Recorder:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []
        self.output = AttemptOutput(WORK, self, captures=True)

    def __call__(
        self, work: Work, level: str, message: str, fields: dict[str, Any] | None, source: str, *, echo: bool
    ) -> None:
        assert work is WORK
        self.lines.append((source, level, message))

    @property
    def messages(self) -> list[str]:
        return [message for _, _, message in self.lines]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_a_line_is_recorded_when_it_is_complete_and_the_last_one_at_the_end(recorder: Recorder) -> None:
    for text in ("a", "b\nc", "\n\nd"):
        recorder.output.write("stdout", text)
    recorder.output.write("stderr", "beside")
    assert recorder.messages == ["ab", "c", ""]
    recorder.output.end()
    recorder.output.end()
    assert recorder.lines[3:] == [("stdout", "info", "d"), ("stderr", "warning", "beside")]
    assert not recorder.output.captures


def test_a_character_may_be_split_between_two_writes(recorder: Recorder) -> None:
    for byte in "é→\n".encode():
        recorder.output.write_bytes("stdout", bytes([byte]))
    recorder.output.write_bytes("stdout", b"cut \xe2\x86")
    recorder.output.end()
    assert recorder.messages == ["é→", "cut \ufffd"]


@pytest.mark.parametrize(
    ("written", "stored"),
    [("1 %\r2 %\r3 %\n", "3 %"), ("50 %\r60 %\r\n", "60 %"), ("dos\r\n", "dos"), ("\r\r\n", "")],
)
def test_a_carriage_return_starts_the_line_again(recorder: Recorder, written: str, stored: str) -> None:
    for character in written:
        recorder.output.write("stdout", character)
    assert recorder.messages == [stored]


def test_one_line_says_that_the_rest_was_dropped(recorder: Recorder) -> None:
    recorder.output.write("stdout", "x\n" * (MAX_CAPTURED_LINES * 2))
    recorder.output.add("error", "logging:a", "lost")
    recorder.output.write("stderr", "lost")
    recorder.output.end()
    assert recorder.messages[MAX_CAPTURED_LINES - 1 :] == ["x", DROPPED_MESSAGE]
    assert recorder.output.is_full


def test_a_long_message_and_source_are_cut(recorder: Recorder) -> None:
    recorder.output.add("info", "logging:" + "n" * 1000, "m" * 100_000)
    [(source, _, message)] = recorder.lines
    assert len(source.encode()) <= 200
    assert len(message.encode()) <= MAX_MESSAGE_BYTES


def test_a_writer_that_interrupts_itself_is_recorded_afterwards() -> None:
    """As a finalizer or a signal handler that prints while its thread holds the lock."""
    recorder = Recorder()

    class Interrupting(AttemptOutput):
        __slots__ = ()

        def _add(self, *args: Any, **options: Any) -> None:
            super()._add(*args, **options)
            if len(recorder.lines) == 1:
                self.write("stderr", "inside\n")

    output = Interrupting(WORK, recorder, captures=True)
    output.write("stdout", "one\ntwo\n")
    assert recorder.messages == ["one", "two", "inside"]


def test_threads_lose_and_mix_no_lines(recorder: Recorder) -> None:
    def write(name: str) -> None:
        for number in range(100):
            recorder.output.write("stdout", f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcdefgh":
        assert [m for m in recorder.messages if m.startswith(name)] == [f"{name} {n}" for n in range(100)]


def test_the_log_fields_are_those_of_the_current_attempt_until_it_ends(recorder: Recorder) -> None:
    assert current_log_fields() is None
    set_current_output(recorder.output)
    try:
        assert current_log_fields() == {
            "run_id": WORK.key.id,
            "job": None,
            "task": "t",
            "attempt": 3,
            "tenant": "acme",
        }
        recorder.output.end()
        assert current_log_fields() is None
    finally:
        set_current_output(None)
