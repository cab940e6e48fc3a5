// Bulk operations and their progress.
import { html, useEffect, useState } from "../lib/html.js";
import { may, part, post } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { useData } from "../lib/page_data.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { formatDuration, now, secondsBetween } from "../lib/time.js";
import { Empty, Link, Loading, MoreButton, Time } from "./elements.js";
import { Command } from "./copyable_command.js";
import { confirm } from "./dialog.js";
import { State } from "./state_badge.js";
import { Table } from "./table.js";

const PAGE = 20;
const NAMED_ITEMS = 2; // jobs that a list names
const BRIEF = 5; // operations below another list
const VERBS = { pause: "Pause", resume: "Resume", delete: "Delete", run: "Run", cancel: "Cancel", retry: "Retry", redrive: "Retry", discard: "Discard", update: "Update", revert: "Revert" };
const PAST = { pause: "paused", resume: "resumed", delete: "deleted", run: "started", cancel: "cancelled", retry: "retried", redrive: "retried", discard: "discarded", update: "changed", revert: "reverted" };
const OBJECTS = { jobs: "job", runs: "run", dead_letters: "dead letter" };
const RECENT_EXAMINED = 100; // operations among which those of one kind are found: the list has no filter by action
// Why the items of an action were left as they are: they were in the wanted state, or were deleted in the meantime.
const UNCHANGED = {
  "jobs.pause": "already paused", "jobs.resume": "not paused", "jobs.delete": "already deleted", "jobs.run": "deleted", "jobs.update": "already so, or deleted",
  "jobs.revert": "deleted or changed since", "runs.cancel": "already ended", "runs.retry": "no longer failed",
  "dead_letters.redrive": "no longer dead letters", "dead_letters.discard": "no longer dead letters",
};

/** jobs.pause → Pause jobs; Pause job, if one was given. */
export function operationTitle(operation) {
  const [what, verb] = operation.action.split(".");
  return `${VERBS[verb] ?? verb} ${operation.named === 1 ? OBJECTS[what] : what.replaceAll("_", " ")}`;
}

export const processed = (operation) => operation.done + operation.skipped + operation.failed;

/** Describes the items of an operation: "pay publishers", "pay publishers, newsletter and 3 more", "9 runs". */
export function describeItems(operation) {
  if (operation.named !== null) {
    const names = operation.action.startsWith("jobs.") ? operation.items.map((one) => one.name).filter(Boolean) : [];
    const shown = names.slice(0, NAMED_ITEMS);
    const more = operation.named - shown.length;
    if (shown.length) return `${shown.join(", ")}${more ? ` and ${more.toLocaleString("en")} more` : ""}`;
    const what = OBJECTS[operation.action.split(".")[0]] ?? "item";
    return `${operation.named.toLocaleString("en")} ${what}${operation.named === 1 ? "" : "s"}`;
  }
  const terms = Object.entries(operation.filter ?? {});
  return terms.length ? terms.map(([name, value]) => `${name.replace(/_at$/, "")}: ${value}`).join(" · ") : `all ${operation.action.split(".")[0].replaceAll("_", " ")}`;
}

/** Reloads at an interval while `isOn`, because the live stream does not announce every step. */
export function usePollingWhile(isOn, reload, every) {
  useEffect(() => {
    if (!isOn || live.value === "paused") return undefined;
    const timer = setInterval(() => document.hidden || reload(), every);
    return () => clearInterval(timer);
  }, [isOn, live.value === "paused"]);
}

/** What became of an item that was processed: "paused". */
export const pastOf = (operation) => PAST[operation.action.split(".")[1]] ?? "done";

/** What became of the items so far: "3 paused, 1 unchanged (already paused), 2 failed". */
export function describeResults(operation) {
  const say = (count, words) => count > 0 && `${count.toLocaleString("en")} ${words}`;
  const reason = UNCHANGED[operation.action];
  return [say(operation.done, pastOf(operation)), say(operation.skipped, `unchanged${reason ? ` (${reason})` : ""}`), say(operation.failed, "failed")].filter(Boolean).join(", ");
}

/** An operation that changed nothing is neither a success nor a failure. */
export const toneOfResults = (operation) => (operation.failed ? "bad" : operation.state === "aborted" ? "warn" : operation.state === "done" && operation.done ? "good" : "calm");

const SEGMENTS = [["done", "good"], ["skipped", "calm"], ["failed", "bad"]];

/** A bar with one segment each for the items that are done, unchanged and failed. */
export function Progress({ of }) {
  const all = Math.max(of.state === "done" ? processed(of) : of.total.value, processed(of), 1); // items that no longer exist are not counted
  const label = `${processed(of).toLocaleString("en")} of ${formatCount(of.total)} processed`;
  return html`<span class="progress results" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax=${all} aria-valuenow=${processed(of)}
    aria-valuetext=${describeResults(of) || label} title=${describeResults(of) || label}>
    ${SEGMENTS.filter(([name]) => of[name] > 0).map(([name, tone]) => html`<span key=${name} class="tone-${tone}" style=${{ width: `${(of[name] / all) * 100}%` }}></span>`)}</span>`;
}

/** Takes back what an operation on jobs has changed, in another operation. */
export function revert(operation) {
  confirm({
    title: `Revert ${operation.operation_id}?`,
    verb: `Revert ${operation.operation_id}`,
    note: "Each job gets back the values that it had before. Jobs that were changed again since then stay as they are.",
    act: () => post(`operations/${part(operation.operation_id)}/revert`),
    done: (begun) => {
      navigate(`operations/${part(begun.operation_id)}`);
      return `Started ${begun.operation_id}`;
    },
  });
}

export function abort(operation, then = () => {}) {
  confirm({
    title: `Abort ${operation.operation_id}?`,
    verb: `Abort ${operation.operation_id}`,
    note: `${operationTitle(operation)}: ${operation.done.toLocaleString("en")} of ${formatCount(operation.total)} are done and stay done.`,
    act: () => post(`operations/${part(operation.operation_id)}/abort`).then(then),
    done: `Aborted ${operation.operation_id}`,
  });
}

/** The result of an operation in words; while it runs, with a bar. */
function Result({ of }) {
  const isRunning = of.state === "running";
  return html`${isRunning && html`<${Progress} of=${of} />`}<span class=${of.failed ? "tone-bad" : ""}>${describeResults(of) || (isRunning ? "nothing yet" : "nothing changed")}${isRunning
    && html` <span class="mute">of ${formatCount(of.total)}</span>`}</span>`;
}

const COLUMNS = (reload) => [
  { name: "State", class: "tight", phone: "side", cell: (one) => html`<${State} of=${one.state} />` },
  { name: "Action", class: "tight", phone: "title", cell: (one) => html`<${Link} to=${`operations/${part(one.operation_id)}`} class="name">${operationTitle(one)}<//>` },
  { name: "Items", phone: "line", cell: (one) => html`<span class="clip" title=${describeItems(one)}>${describeItems(one)}</span>` },
  { name: "Result", phone: "line", short: "·", cell: (one) => html`<${Result} of=${one} />` },
  { name: "Reason", phone: "hide", cell: (one) => html`<span class="clip" title=${one.reason}>${one.reason ?? html`<span class="mute">–</span>`}</span>` },
  { name: "By", class: "tight", phone: "hide", cell: (one) => one.who },
  { name: "Started", class: "tight", phone: "line", short: "·", cell: (one) => html`<${Time} at=${one.created_at} />` },
  { name: "Took", class: "number", phone: "hide", cell: (one) => formatDuration(secondsBetween(one.created_at, one.ended_at ?? now.value)) },
  { name: "Id", class: "tight", phone: "hide", cell: (one) => html`<code class="mute">${one.operation_id}</code>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "acts", cell: (one) => one.state === "running" && may("operator") && html`<button type="button"
    onClick=${() => abort(one, reload)}>Abort…</button>` },
];

/** The latest operations. `only`: the latest few on these objects, such as `dead_letters`, below another list. */
export function Operations({ only }) {
  const brief = only !== undefined;
  const [wanted, setWanted] = useState(PAGE);
  const found = useData(async (stop) => {
    const page = await fetchPages("operations", {}, brief ? RECENT_EXAMINED : wanted, stop);
    return brief ? { ...page, items: page.items.filter((one) => one.action.startsWith(`${only}.`)).slice(0, BRIEF) } : page;
  }, [wanted, only]);
  usePollingWhile(found.data?.items.some((one) => one.state === "running") ?? false, found.reload, 2000);
  return html`<${Loading} of=${found}>${(data) =>
    data.items.length === 0
      ? !brief && html`<${Empty} title="No operations yet">
        <p>Actions on many jobs, runs or dead letters appear here with their progress and failures.</p><p><${Command}
        text="bellringer ops start runs.cancel --filter state=queued --dry-run" /></p><//>`
      : html`${brief && html`<h2>Recent operations on ${OBJECTS[only]}s</h2>`}
        <${Table} caption="Operations" columns=${COLUMNS(found.reload)} rows=${data.items} id=${(one) => one.operation_id}
          open=${(one) => navigate(`operations/${part(one.operation_id)}`)} />
        ${brief ? html`<p><${Link} to="runs" terms=${{ tab: "operations" }}>All operations<//></p>` : html`<${MoreButton} cursor=${data.next_cursor}
          busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}`}<//>`;
}
