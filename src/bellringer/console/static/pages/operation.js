// One bulk operation: progress, failures, abort.
import { html } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { write } from "../lib/json.js";
import { useData } from "../lib/page_data.js";
import { formatCount } from "../lib/pages.js";
import { formatDuration } from "../lib/time.js";
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

const VERDICT_ICONS = { good: "check", calm: "info", warn: "warning", bad: "cross" };

/** The summary line. */
function summary(of) {
  const results = describeResults(of);
  if (of.state === "running") return results ? `${results}, of ${formatCount(of.total)} so far` : `0 of ${formatCount(of.total)} done so far`;
  return `${of.state === "aborted" ? "Aborted: " : ""}${results || "nothing was changed"}`;
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

function Page({ of, reload }) {
  const left = of.state === "done" ? 0 : Math.max(of.total.value - processed(of), 0); // items that no longer exist are not counted
  const seconds = (new Date(of.ended_at ?? Date.now()) - new Date(of.created_at)) / 1000;
  return html`<header class="head"><h1>${operationTitle(of)}</h1><${State} of=${of.state} /><span class="gap"></span>
      ${of.state === "running" && may("operator") && html`<button type="button" class="danger" onClick=${() => abort(of, reload)}>Abort …</button>`}
      ${canUndo(of) && html`<button type="button" onClick=${() => restoreDiscarded({ operation_id: of.operation_id }, reload)}><${Icon} name="undo" /> Undo</button>`}
      ${canRevert(of) && html`<button type="button" onClick=${() => revert(of)}><${Icon} name="undo" /> Revert …</button>`}
      <${CopyAs} cli=${`bellringer ops get ${of.operation_id}`} path=${`operations/${part(of.operation_id)}`} /></header>
    <p class="verdict tone-${toneOfResults(of)}" role="status"><${Icon} name=${VERDICT_ICONS[toneOfResults(of)]} /> ${summary(of)}</p>
    <${Progress} of=${of} />
    <ul class="figures">
      <li><strong class=${of.done ? "tone-good" : ""}>${of.done.toLocaleString("en")}</strong> ${pastOf(of)}</li>
      <li><strong>${of.skipped.toLocaleString("en")}</strong> unchanged</li>
      <li><strong class=${of.failed ? "tone-bad" : ""}>${of.failed.toLocaleString("en")}</strong> failed</li>
      <li><strong>${left.toLocaleString("en")}${of.state !== "done" && of.total.relation === "gte" ? " or more" : ""}</strong>${" "}
        ${of.state === "aborted" ? "not done" : "remaining"}</li>
    </ul>
    <${DescriptionList} of=${[
      ["Items", describeItems(of)],
      ["Started by", of.who],
      ["Reason", of.reason ?? "–"],
      of.changes && ["Changes", html`<ul class="plain">${Object.entries(of.changes).map(([name, value]) => html`<li key=${name}>${name.replaceAll("_", " ")} <code>${asText(value)}</code></li>`)}</ul>`],
      of.reverts && ["Reverts", html`<${Link} to=${`operations/${part(of.reverts)}`}>${of.reverts}<//>`],
      ["Speed", [speed(of, seconds), of.rate === null ? "not limited" : `limited to ${of.rate} per minute`].filter(Boolean).join(", ")],
      ["Started", html`<${Time} at=${of.created_at} short=${false} />`],
      of.ended_at ? ["Ended", html`<${Time} at=${of.ended_at} short=${false} /> <span
        class="mute">after ${formatDuration(seconds)}</span>`] : ["Estimated end", of.eta ? html`<${Time} at=${of.eta} />` : "unknown"],
    ]} />
    ${of.filter && Object.keys(of.filter).length > 0 && html`<details><summary>Filter</summary><${Json} value=${of.filter}
      label="Filter" /></details>`}
    ${of.failures.length > 0 && html`<h2>Failures</h2>
      <p class="mute">${of.failed > of.failures.length ? `The first ${of.failures.length} of ${of.failed.toLocaleString("en")}.` : "All of them."}</p>
      <${Table} caption="Failures" columns=${FAILURES(of.action)} rows=${of.failures} id=${(one) => one.id} />`}`;
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
