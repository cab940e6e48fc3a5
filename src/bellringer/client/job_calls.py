"""Client methods for jobs, runs, workflows, and everything that decides when they run."""

# The methods are declarations: `call` supplies their bodies.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bellringer.client.calls import Document, call
from bellringer.wire.agenda import Agenda
from bellringer.wire.apps import AppDetails, AppPage
from bellringer.wire.backfills import Backfill, BackfillPage, BackfillPlan
from bellringer.wire.calendars import Calendar, CalendarPage, Freeze, FreezePage, Lifted
from bellringer.wire.dead_letters import Bulk, DiscardedLetters, LetterGroups, Letters
from bellringer.wire.job_history import Baseline, Days, JobStats, Ledger, Strips
from bellringer.wire.jobs import BulkCreated, Job, JobPage, Resumed, Revision, RevisionPage, Skip, SkipPage
from bellringer.wire.operations import BulkPlan, Operation, OperationPage
from bellringer.wire.routes import Routes
from bellringer.wire.runs import (
    Attempt,
    Attempts,
    BulkSent,
    Explanation,
    Lines,
    Result,
    Run,
    RunCounts,
    RunPage,
    Waited,
)
from bellringer.wire.schedules import DryRun, Forecast, ParsedSchedule, Preview
from bellringer.wire.workflows import (
    Graph,
    GraphDifference,
    GraphVersions,
    NodePage,
    NodesChanged,
    RunGraph,
    Signalled,
    WorkflowPage,
)


class JobCalls:
    """Jobs: definitions, schedules, history."""

    @call(Routes.jobs)
    def jobs(self, /, *, limit: int | None = None, cursor: str | None = None, **filters: Any) -> JobPage:
        """List jobs, a page at a time.

        Filters are name, q, prefix, tag, state, pool, task, owner, app and orphaned ("true" or "false"). `sort` is id
        or name; count="bounded" adds the number of matches.
        """

    @call(Routes.job)
    def job(self, job: str) -> Job:
        """Return a job by its id or name."""

    @call(Routes.create_job)
    def create_job(self, document: Document) -> Job:
        """Create a job. Raises Conflict if the name is taken."""

    @call(Routes.create_jobs, renamed={"documents": "items"}, headers={"Prefer": "return=minimal"})
    def create_jobs(self, documents: Sequence[Document], atomic: bool = True) -> BulkCreated:
        """Create up to 10,000 jobs in one request and return their ids.

        With `atomic`, one invalid job rejects all; without it, each job succeeds or fails on its own.
        """

    @call(Routes.put_job, if_match="revision")
    def put_job(self, name: str, document: Document, *, revision: int | None = None, create_only: bool = False) -> Job:
        """Create the job, or replace its whole definition.

        With `revision`, only if the job still has that revision; with `create_only`, only if it does not exist.
        """

    @call(Routes.patch_job, if_match="revision")
    def patch_job(self, job: str, patch: Document, *, revision: int | None = None) -> Job:
        """Change the given fields of a job (JSON merge patch); with `revision`, only if it still has that revision."""

    @call(Routes.patch_job.returning(DryRun), if_match="revision", fixed={"dry_run": "true"})
    def dry_run(self, job: str, patch: Document, *, days: int | None = None, revision: int | None = None) -> DryRun:
        """Preview how a patch would change a job and its fires of the next days. Nothing is changed."""

    @call(Routes.delete_job)
    def delete_job(self, job: str, *, runs: str | None = None) -> None:
        """Delete a job. Its running runs finish (runs="keep"), or are cancelled (runs="cancel")."""

    @call(Routes.pause)
    def pause(self, job: str, *, reason: str | None = None, until: str | float | None = None) -> Job:
        """Pause a job until it is resumed, until an instant, or for a length of time."""

    @call(Routes.resume)
    def resume(self, job: str, *, missed: str | None = None) -> Resumed:
        """Resume a paused job. `missed` says which of the missed occurrences run: skip (none), latest or all."""

    @call(Routes.trigger)
    def trigger(self, job: str, *, args: Sequence[Any] | None = None, kwargs: Document | None = None) -> Run:
        """Run a job now, regardless of its schedule. Arguments override the job's own for this run."""

    @call(Routes.job_runs)
    def job_runs(self, job: str, *, limit: int | None = None, cursor: str | None = None) -> RunPage:
        """List the runs of a job, newest first."""

    @call(Routes.why)
    def why(self, job: str, *, at: str | None = None) -> Explanation:
        """Explain why a job does not run now, or what happened to its occurrence at an instant."""

    @call(Routes.baseline)
    def baseline(self, job: str) -> Baseline:
        """Return how long a job usually takes."""

    @call(Routes.skip)
    def skip(self, job: str, at: str, *, reason: str | None = None) -> Skip:
        """Skip one future occurrence of a job."""

    @call(Routes.unskip)
    def unskip(self, job: str, at: str) -> None:
        """Remove the skip of an occurrence, so that it runs."""

    @call(Routes.skips)
    def skips(self, job: str, *, limit: int | None = None, cursor: str | None = None) -> SkipPage:
        """List the skipped future occurrences of a job."""

    @call(Routes.revisions)
    def revisions(self, job: str, *, limit: int | None = None, cursor: str | None = None) -> RevisionPage:
        """List the changes of a job, newest first."""

    @call(Routes.revision)
    def revision(self, job: str, revision: int, *, against: int | None = None) -> Revision:
        """Return a job as of a revision, and its differences from the revision before it or from `against`."""

    @call(Routes.rollback, if_match="expected")
    def rollback(self, job: str, revision: int, *, expected: int | None = None) -> Job:
        """Restore the definition of an old revision; with `expected`, only if the job still has that revision."""

    @call(Routes.strips, renamed={"jobs": "ids"})
    def strips(self, jobs: Sequence[str], *, limit: int | None = None) -> Strips:
        """Return the latest runs of several jobs, given by id."""

    @call(Routes.ledger)
    def ledger(
        self,
        job: str,
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Ledger:
        """List the occurrences of a job and the outcome of each, newest first."""

    @call(Routes.job_days)
    def job_days(self, job: str, *, year: int | None = None) -> Days:
        """Return a year of a job, day by day."""

    @call(Routes.job_stats, renamed={"over": "range"})
    def job_stats(self, job: str, *, over: str | None = None) -> JobStats:
        """Return success rate, waiting times and durations of a job's latest attempts, and a series of them over a
        range: 1h, 24h, 7d, 30d or 90d.
        """

    @call(Routes.apps)
    def apps(self, /, *, limit: int | None = None, cursor: str | None = None) -> AppPage:
        """List the apps whose code declares jobs."""

    @call(Routes.app)
    def app(self, name: str) -> AppDetails:
        """Return an app with its versions."""

    @call(Routes.activate_app)
    def activate_app(self, name: str, version: str | None) -> AppDetails:
        """Make an earlier version of an app current again, for a rollback."""

    @call(Routes.preview, renamed={"after": "from"})
    def preview(
        self, schedule: Document, *, n: int | None = None, after: str | None = None, job: str | None = None
    ) -> Preview:
        """Describe a schedule and list its next occurrences. The name of a job determines the values of `H`."""

    @call(Routes.parse_schedule)
    def parse_schedule(
        self, text: str, *, tz: str | None = None, n: int | None = None, job: str | None = None
    ) -> ParsedSchedule:
        """Read a schedule from plain English, such as "every weekday at 9:30 in Berlin". Nothing is stored."""

    @call(Routes.forecast)
    def forecast(
        self,
        *,
        start: str | None = None,
        end: str | None = None,
        bucket: str | None = None,
        sub_minute: Literal["true", "false"] | None = None,
    ) -> Forecast:
        """Return the expected fires by time bucket and pool, and proposals to spread peaks; with `sub_minute="false"`
        without jobs that fire more often than every minute.
        """

    @call(Routes.agenda)
    def agenda(
        self,
        *,
        start: str | None = None,
        end: str | None = None,
        tz: str | None = None,
        cell: Literal["hour", "day"] | None = None,
        pool: str | None = None,
        tag: str | None = None,
        task: str | None = None,
        limit: int | None = None,
    ) -> Agenda:
        """Return when jobs are due, by hour or day of a time zone, with holidays, freezes and clock changes."""


class RunCalls:
    """Runs, dead letters, and operations on many of them."""

    @call(Routes.runs)
    def runs(
        self,
        *,
        job: str | None = None,
        state: str | Sequence[str] | None = None,
        task: str | None = None,
        pool: str | None = None,
        cause: str | None = None,
        tag: str | None = None,
        worker: int | None = None,
        q: str | None = None,
        start: str | None = None,
        end: str | None = None,
        count: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> RunPage:
        """List runs, newest first. `start` and `end` bound the scheduled time."""

    @call(Routes.run_counts)
    def run_counts(self, /, **filters: Any) -> RunCounts:
        """Count runs by state. The filters are those of `runs`, except state."""

    @call(Routes.run)
    def run(self, run_id: str) -> Run:
        """Return a run with its attempts."""

    @call(Routes.wait_run, renamed={"seconds": "timeout"})
    def wait_run(self, run_id: str, *, seconds: int | None = None) -> Run:
        """Wait up to `seconds` (60 at most) for a run to end, and return it in its current state."""

    @call(Routes.result)
    def result(self, run_id: str) -> Result:
        """Return the result of a finished run."""

    @call(Routes.attempts)
    def attempts(self, run_id: str) -> Attempts:
        """List the attempts of a run."""

    @call(Routes.attempt)
    def attempt(self, run_id: str, number: int) -> Attempt:
        """Return one attempt of a run."""

    @call(Routes.logs)
    def logs(
        self,
        run_id: str,
        *,
        level: str | None = None,
        attempt: int | None = None,
        q: str | None = None,
        source: str | None = None,
        since: str | None = None,
        after: int | None = None,
        tail: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Lines:
        """List the log lines and the captured output of a run.

        `level` is the lowest level to include, `source` a list such as "stdout,stderr" or "logging", `after` the number
        of a line.
        """

    @call(Routes.explain)
    def explain(self, run_id: str) -> Explanation:
        """Explain why a run is in its current state."""

    @call(Routes.cancel)
    def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Cancel a run. A running attempt is asked to stop."""

    @call(Routes.retry)
    def retry(self, run_id: str) -> Run:
        """Run a finished run again, with a new attempt."""

    @call(Routes.replay)
    def replay(
        self,
        run_id: str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Document | None = None,
        reason: str | None = None,
    ) -> Run:
        """Create a new run that repeats a finished one. Arguments override those of the original."""

    @call(Routes.execute)
    def execute(self, /, task: str, *, args: Sequence[Any] = (), kwargs: Document | None = None, **options: Any) -> Run:
        """Run a task without a job. Options are at, delay, expires_in, pool, priority, timeout, retry, delivery
        and key."""

    @call(Routes.execute)
    def execute_http(self, /, http: Document, **options: Any) -> Run:
        """Call a URL without a job. The options are those of `execute`."""

    @call(Routes.start_workflow)
    def start_workflow(
        self,
        /,
        *,
        workflow: Document | None = None,
        name: str | None = None,
        params: Document | None = None,
        **options: Any,
    ) -> Run:
        """Run a workflow without a job: its graph, or that of the workflow job `name`.

        Options are at, delay, pool, priority, timeout and key.
        """

    @call(Routes.wait_runs)
    def wait_runs(self, ids: Sequence[str], *, any: bool = False, timeout: int = 30) -> Waited:  # noqa: A002
        """Wait up to `timeout` seconds (60 at most) until all of 1,000 runs have ended, or one with `any`."""

    @call(Routes.send_many)
    def send_many(
        self, items: Sequence[Document], atomic: bool = True, *, idempotency_key: str | None = None
    ) -> BulkSent:
        """Run up to 10,000 tasks without jobs. The fields of an item are those of `execute`.

        With `atomic`, one invalid item rejects all; without it, each item succeeds or fails on its own. A request that
        is repeated with the same `idempotency_key` creates nothing and returns the first response.
        """

    @call(Routes.dead_letters)
    def dead_letters(
        self,
        *,
        fingerprint: str | None = None,
        job: str | None = None,
        task: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Letters:
        """List dead letters: runs that failed for good, newest first."""

    @call(Routes.dead_letters.returning(LetterGroups), fixed={"group_by": "fingerprint"})
    def dead_letter_groups(self, *, limit: int | None = None, cursor: str | None = None) -> LetterGroups:
        """List dead letters grouped by the error that caused them."""

    @call(Routes.redrive, renamed={"everything": "all"})
    def redrive(
        self,
        runs: Sequence[str] | None = None,
        *,
        fingerprint: str | None = None,
        everything: bool = False,
        rate: float | None = None,
    ) -> Bulk:
        """Run dead letters again: the given runs, those of a fingerprint, or all; at most `rate` per minute."""

    @call(Routes.discard, renamed={"everything": "all"})
    def discard(
        self, runs: Sequence[str] | None = None, *, fingerprint: str | None = None, everything: bool = False
    ) -> Bulk:
        """Remove dead letters: the given runs, those of a fingerprint, or all. They can be restored for a day."""

    @call(Routes.discarded)
    def discarded(
        self,
        *,
        fingerprint: str | None = None,
        operation: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> DiscardedLetters:
        """List dead letters that were discarded within the last day, the latest first."""

    @call(Routes.restore_discarded, renamed={"everything": "all"})
    def restore_discarded(
        self,
        runs: Sequence[str] | None = None,
        *,
        fingerprint: str | None = None,
        operation_id: str | None = None,
        everything: bool = False,
    ) -> Bulk:
        """Restore dead letters that were discarded within the last day: the given runs, those of a fingerprint or of an
        operation, or all. One call restores up to 500; `more` says that further ones are left.
        """

    @call(Routes.bulk.returning(BulkPlan), fixed={"dry_run": True})
    def plan_bulk(
        self,
        action: str,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the field in the API
        ids: Sequence[str] | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> BulkPlan:
        """Count the items that a bulk operation would change. Nothing is changed."""

    @call(Routes.bulk)
    def bulk(
        self,
        action: str,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the name of the field in the API
        ids: Sequence[str] | None = None,
        expected_count: int | None = None,
        rate: float | None = None,
        reason: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Start an operation on the given items, or on all that match a filter; the filter {} matches all.

        `changes` are the fields that jobs.update sets, such as {"retry": {"attempts": 1}}.
        """

    @call(Routes.operations)
    def operations(self, *, limit: int | None = None, cursor: str | None = None) -> OperationPage:
        """List bulk operations, newest first."""

    @call(Routes.operation)
    def operation(self, operation_id: str) -> Operation:
        """Return a bulk operation and its progress."""

    @call(Routes.abort_operation)
    def abort_operation(self, operation_id: str) -> Operation:
        """Stop a bulk operation. Items that it has changed stay changed."""

    @call(Routes.revert_operation)
    def revert_operation(self, operation_id: str) -> Operation:
        """Take back the changes of a jobs.update operation, by another operation."""


class WorkflowCalls:
    """Workflow graphs, and the nodes of workflow runs."""

    @call(Routes.workflows)
    def workflows(
        self,
        *,
        q: str | None = None,
        state: str | None = None,
        count: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> WorkflowPage:
        """List jobs that are workflows, by name. `q` is a part of the name; `state` has states of the last run,
        separated by commas; `count="bounded"` also counts the workflows by state.
        """

    @call(Routes.job_graph)
    def job_graph(self, job: str, *, version: int | None = None, revision: int | None = None) -> Graph:
        """Return the graph of a workflow: the current one, or that of a version or of a revision of the job."""

    @call(Routes.graph_versions)
    def graph_versions(self, job: str) -> GraphVersions:
        """List the versions of a workflow's graph, newest first."""

    @call(Routes.graph_difference, renamed={"before": "from", "after": "to"})
    def graph_difference(self, job: str, *, before: int | None = None, after: int | None = None) -> GraphDifference:
        """Compare two versions of a workflow's graph; by default, the current one with the one before it."""

    @call(Routes.run_graph)
    def run_graph(self, run_id: str) -> RunGraph:
        """Return the nodes of a workflow run, their states, and the path that took the longest."""

    @call(Routes.run_nodes)
    def run_nodes(
        self,
        run_id: str,
        *,
        node: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> NodePage:
        """List the nodes of a workflow run, or the elements of one map node; `state` filters them."""

    @call(Routes.node_why)
    def node_why(self, run_id: str, node: str) -> Explanation:
        """Explain why a node of a workflow run is in its current state."""

    @call(Routes.retry_nodes)
    def retry_nodes(self, run_id: str, nodes: Sequence[str] | None = None) -> NodesChanged:
        """Run nodes again, and all nodes after them; by default, all nodes that did not succeed."""

    @call(Routes.mark_node)
    def mark_node(self, run_id: str, node: str, state: str, *, reason: str, result: Any = None) -> NodesChanged:
        """Set the final state of a node by hand, succeeded or dead; the workflow continues from there."""

    @call(Routes.signal)
    def signal(self, run_id: str, name: str, payload: Any = None) -> Signalled:
        """Send a signal to a workflow run. It is kept until a node waits for it."""


class ScheduleCalls:
    """Backfills, calendars and freezes."""

    @call(Routes.start_backfill.returning(BackfillPlan), fixed={"dry_run": True})
    def plan_backfill(self, /, job: str, start: str, end: str, **terms: Any) -> BackfillPlan:
        """Count the runs that a backfill would create. Terms are order, reprocess, parallelism and rate."""

    @call(Routes.start_backfill)
    def start_backfill(self, /, job: str, start: str, end: str, *, plan: str | None = None, **terms: Any) -> Backfill:
        """Run the occurrences of a job from `start` up to, but not including, `end`.

        With `plan`, the value that `plan_backfill` returned, only if the plan is still accurate.
        """

    @call(Routes.backfills)
    def backfills(self, *, job: str | None = None, limit: int | None = None, cursor: str | None = None) -> BackfillPage:
        """List backfills and catch-ups, newest first, of all jobs or of one."""

    @call(Routes.backfill)
    def backfill(self, backfill_id: str) -> Backfill:
        """Return a backfill and the state of its runs."""

    @call(Routes.pause_backfill)
    def pause_backfill(self, backfill_id: str) -> Backfill:
        """Pause a backfill: it creates no more runs until it is resumed."""

    @call(Routes.resume_backfill)
    def resume_backfill(self, backfill_id: str) -> Backfill:
        """Resume a paused backfill."""

    @call(Routes.cancel_backfill)
    def cancel_backfill(self, backfill_id: str, *, reason: str | None = None) -> Backfill:
        """Cancel a backfill and its waiting runs. Running runs finish."""

    @call(Routes.calendars)
    def calendars(self, *, limit: int | None = None, cursor: str | None = None) -> CalendarPage:
        """List calendars by name."""

    @call(Routes.calendar)
    def calendar(self, name: str) -> Calendar:
        """Return a calendar with its dates."""

    @call(Routes.put_calendar)
    def put_calendar(
        self,
        name: str,
        *,
        dates: Sequence[str] | None = None,
        ics: str | None = None,
        weekend: Sequence[str] | None = None,
        hours: Sequence[str] | None = None,
    ) -> Calendar:
        """Create or replace a calendar. Jobs that use it follow; repeat the call while some are `outdated`."""

    @call(Routes.delete_calendar)
    def delete_calendar(self, name: str) -> None:
        """Delete a calendar. Raises Conflict while jobs use it."""

    @call(Routes.freezes)
    def freezes(self, *, limit: int | None = None, cursor: str | None = None) -> FreezePage:
        """List freezes; the one that ends last comes first."""

    @call(Routes.freeze)
    def freeze(self, freeze: str) -> Freeze:
        """Return a freeze by its id or name."""

    @call(Routes.create_freeze)
    def create_freeze(
        self,
        name: str,
        end: str | float,
        *,
        start: str | None = None,
        policy: str | None = None,
        tags: Sequence[str] | None = None,
        reason: str | None = None,
    ) -> Freeze:
        """Suspend schedules from `start` (default: now) to an instant or for a length of time."""

    @call(Routes.patch_freeze)
    def patch_freeze(self, freeze: str, patch: Document) -> Freeze:
        """Change `to` or `reason` of a freeze."""

    @call(Routes.lift_freeze)
    def lift_freeze(self, freeze: str) -> Lifted:
        """End a freeze now."""
