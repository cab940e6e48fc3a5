// One bulk operation: progress, failures, abort.
import { html } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { write } from "../lib/json.js";
import { useData } from "../lib/page_data.js";
import { formatCount } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { formatDuration } from "../lib/time.js";
import { startBulk } from "../parts/bulk.js";
import { CopyAs, DescriptionList, Json, Link, Loading, Time } from "../parts/elements.js";
import { UNDO_MS, restoreDiscarded } from "../parts/discards.js";
import { Progress, describeItems, describeResults, abort, pastOf, processed, operationTitle, revert, toneOfResults, usePollingWhile } from "../parts/operations.js";
import { RunId, shortId } from "../parts/run_text.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";

export default function OperationPage({ parts }) {
  const path = `operations/${part(parts.id)}`;
  const found = useData((stop) => get(path, {}, stop), [path]);
  usePollingWhile(found.data?.state === "running", found.reload, 1000);
  return html`<nav class="crumbs" aria-label="Breadcrumbs"><${Link} to="runs" terms=${{ tab: "operations" }}>Operations<//> / ${parts.id}</nav>
    <${Loading} of=${found} shape="page">${(operation) => html`<${Page} of=${operation} reload=${found.reload} />`}<//>`;
}

/** The summary line: what became of the items, and the pace. */
function summary(of, seconds) {
  const results = describeResults(of);
  if (of.state === "running") return `${results || "nothing done"}, of ${formatCount(of.total)} so far`;
  const all = of.total.value > 1 && of.done === of.total.value ? "all " : "";
  return `${of.state === "aborted" ? "Aborted: " : ""}${results ? all + results : "nothing was changed"} in ${formatDuration(seconds)}`;
}

/** A discard can be undone for a day after it ended. */
const canUndo = (of) => of.action === "dead_letters.discard" && of.done > 0 && of.ended_at && Date.now() - new Date(of.ended_at) < UNDO_MS && may("operator");

const canRevert = (of) => of.action === "jobs.update" && of.done > 0 && of.state !== "running" && may("editor");

/** How fast the items were processed; undefined for the first second. */
function speed(of, seconds) {
  if (seconds < 1 || !processed(of)) return undefined;
  const rate = processed(of) / seconds;
  return rate >= 1 ? `${Math.round(rate).toLocaleString("en")} per second` : `${(rate * 60).toPrecision(2)} per minute`;
}

const asText = (value) => (typeof value === "string" ? value : write(value));

const OPPOSITES = { "jobs.pause": "jobs.resume", "jobs.resume": "jobs.pause" };

/** The action that takes this one back, on the same items; none if the page does not know all of them. */
const oppositeOf = (of) => (of.done > 0 && of.state !== "running" && of.items?.length === of.named && may("operator") ? OPPOSITES[of.action] : undefined);

function undoByOpposite(of) {
  const action = oppositeOf(of);
  const names = new Map(of.items.map((one) => [one.id, one.name]));
  startBulk({ action, verb: operationTitle({ action }).split(" ")[0], what: "jobs", about: { ids: of.items.map((one) => one.id) }, named: (id) => names.get(id) ?? html`<code>${id}</code>` });
}

function Page({ of, reload }) {
  const seconds = (new Date(of.ended_at ?? Date.now()) - new Date(of.created_at)) / 1000;
  const opposite = oppositeOf(of);
  return html`<header class="head"><h1>${operationTitle(of)}${of.named === 1 && of.items[0].name && html` <span class="of">${of.items[0].name}</span>`}</h1><span class="gap"></span>
      ${of.state === "running" && may("operator") && html`<button type="button" class="danger" onClick=${() => abort(of, reload)}>Abort…</button>`}
      ${canUndo(of) && html`<button type="button" onClick=${() => restoreDiscarded({ operation_id: of.operation_id }, reload)}><${Icon} name="undo" /> Undo</button>`}
      ${canRevert(of) && html`<button type="button" onClick=${() => revert(of)}><${Icon} name="undo" /> Revert…</button>`}
      ${opposite && html`<button type="button" onClick=${() => undoByOpposite(of)}><${Icon} name="undo" /> ${operationTitle({ action: opposite, named: of.named })}…</button>`}
      <${CopyAs} cli=${`bellringer ops get ${of.operation_id}`} path=${`operations/${part(of.operation_id)}`} /></header>
    <p class="verdict operation-verdict tone-${toneOfResults(of)}" role="status"><${State} of=${of.state} /> <span>${summary(of, seconds)}</span></p>
    ${of.state === "running" && html`<${Progress} of=${of} />`}
    ${of.failures.length > 0 && html`<section class="below"><h2>Failures</h2>
      ${of.failed > of.failures.length && html`<p class="mute">The first ${of.failures.length} of ${of.failed.toLocaleString("en")}.</p>`}
      <${Table} caption="Failures" columns=${FAILURES(of.action)} rows=${of.failures} id=${(one) => one.id} /></section>`}
    <${Items} of=${of} />
    <section class="card operation-facts" aria-label="Details"><${DescriptionList} of=${[
      ["Started by", of.who],
      ["Started", html`<${Time} at=${of.created_at} short=${false} />`],
      of.ended_at ? ["Ended", html`<${Time} at=${of.ended_at} short=${false} />`] : ["Estimated end", of.eta ? html`<${Time} at=${of.eta} />` : "unknown"],
      of.reason && ["Reason", of.reason],
      of.items === null && ["Items", describeItems(of)],
      of.changes && ["Changes", html`<ul class="plain">${Object.entries(of.changes).map(([name, value]) => html`<li key=${name}>${name.replaceAll("_", " ")} <code>${asText(value)}</code></li>`)}</ul>`],
      of.reverts && ["Reverts", html`<${Link} to=${`operations/${part(of.reverts)}`}>${of.reverts}<//>`],
      speed(of, seconds) && ["Speed", speed(of, seconds)],
      ["Rate limit", of.rate === null ? "none" : `${of.rate} per minute`],
    ]} /></section>
    ${of.filter && Object.keys(of.filter).length > 0 && html`<details><summary>Filter</summary><${Json} value=${of.filter}
      label="Filter" /></details>`}`;
}

const KINDS = { jobs: "Jobs", runs: "Runs", dead_letters: "Dead letters" };
const describeKind = (of) => KINDS[of.action.split(".")[0]];

/** The items that were given by id, with what became of each as far as it is known: failures are stored, other results are only counted. */
function Items({ of }) {
  if (!of.items?.length) return null;
  const failed = new Set(of.failures.map((one) => one.id));
  const others = of.done && of.skipped ? `${pastOf(of)} or unchanged` : of.done ? pastOf(of) : of.skipped ? "unchanged" : "not done yet";
  const isJobs = of.action.startsWith("jobs.");
  const columns = [
    { name: isJobs ? "Job" : "Job of the run", class: "tight", phone: "title", cell: (one) => (isJobs && one.name ? html`<${Link} to=${`jobs/${part(one.id)}`} class="name">${one.name}<//>`
      : one.name ?? (isJobs ? html`<code>${shortId(one.id)}</code> <span class="mute">deleted</span>` : html`<span class="mute">no job</span>`)) },
    !isJobs && { name: "Run", class: "tight", phone: "line", cell: (one) => html`<${RunId} id=${one.id} />` },
    { name: "Result", class: "tight", phone: "side", cell: (one) => (failed.has(one.id) ? html`<${State} of="failed" />` : html`<span class=${of.done ? "" : "mute"}>${of.done > 0
      && !of.skipped && html`<span class="tone-good"><${Icon} name="check" /></span> `}${others}</span>`) },
  ].filter(Boolean);
  return html`<section class="below"><h2>${describeKind(of)}</h2>
    ${of.named > of.items.length && html`<p class="mute">The first ${of.items.length} of ${of.named.toLocaleString("en")}.</p>`}
    <${Table} caption="Items" columns=${columns} rows=${of.items} id=${(one) => one.id} open=${(one) => navigate(`${isJobs ? "jobs" : "runs"}/${part(one.id)}`)} /></section>`;
}

/** The name of a job that failed; its id if it was deleted. */
function JobName({ id }) {
  const job = useData((stop) => get(`jobs/${part(id)}`, {}, stop).catch(() => null), [id], { once: true }).data;
  return html`<${Link} to=${`jobs/${part(id)}`} title=${id} class="name">${job?.name ?? html`<code>${shortId(id)}</code>`}<//>`;
}

const FAILURES = (action) => [
  { name: action.startsWith("jobs.") ? "Job" : "Run", class: "tight", cell: (one) => (action.startsWith("jobs.") ? html`<${JobName} id=${one.id} />` : html`<${RunId} id=${one.id} />`) },
  { name: "Result", class: "tight", cell: () => html`<${State} of="failed" />` },
  { name: "Code", class: "tight", cell: (one) => html`<code>${one.code}</code>` },
  { name: "Reason", cell: (one) => one.detail },
];
