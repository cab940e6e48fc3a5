// One operation: how far it has come, what could not be done, and how to end it.
import { html } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { counted } from "../lib/pages.js";
import { span } from "../lib/time.js";
import { CopyAs, Facts, Json, Link, Loading, When } from "../parts/basics.js";
import { Progress, about, abort, looked, titleOf, useWhile } from "../parts/operations.js";
import { State } from "../parts/state.js";
import { Table } from "../parts/table.js";

export default function OperationPage({ parts }) {
  const path = `operations/${part(parts.id)}`;
  const found = useData((stop) => get(path, {}, stop), [path]);
  useWhile(found.data?.state === "running", found.again, 1000);
  return html`<nav class="crumbs" aria-label="where you are"><${Link} to="runs" terms=${{ tab: "operations" }}>Operations<//> / ${parts.id}</nav>
    <${Loading} of=${found}>${(operation) => html`<${Page} of=${operation} again=${found.again} />`}<//>`;
}

/** The first line: what was asked, and where it stands. */
function told(of) {
  const all = counted(of.total);
  if (of.state === "running") return `${of.done.toLocaleString("en")} of ${all} done so far`;
  const say = (number, words) => number > 0 && `${number.toLocaleString("en")} ${words}`;
  const rest = [say(of.skipped, "needed nothing"), say(of.failed, "failed")].filter(Boolean).join(", ");
  return `${of.state === "aborted" ? "Aborted: " : ""}${of.done.toLocaleString("en")} of ${all} done${rest && `; ${rest}`}`;
}

const toneOf = (of) => (of.failed ? "bad" : of.state === "aborted" ? "warn" : of.state === "done" ? "good" : "calm");

function Page({ of, again }) {
  const left = of.state === "done" ? 0 : Math.max(of.total.value - looked(of), 0); // what has gone meanwhile is not looked at
  const seconds = (new Date(of.ended_at ?? Date.now()) - new Date(of.created_at)) / 1000;
  return html`<header class="head"><h1>${titleOf(of)}</h1><${State} of=${of.state} /><span class="gap"></span>
      ${of.state === "running" && may("operator") && html`<button type="button" class="danger" onClick=${() => abort(of, again)}>Abort …</button>`}
      <${CopyAs} cli=${`bellringer ops get ${of.operation_id}`} path=${`operations/${part(of.operation_id)}`} /></header>
    <p class="verdict tone-${toneOf(of)}" role="status">${told(of)}</p>
    <${Progress} of=${of} />
    <ul class="figures">
      <li><strong class="tone-good">${of.done.toLocaleString("en")}</strong> done</li>
      <li><strong>${of.skipped.toLocaleString("en")}</strong> needed nothing</li>
      <li><strong class=${of.failed ? "tone-bad" : ""}>${of.failed.toLocaleString("en")}</strong> failed</li>
      <li><strong>${left.toLocaleString("en")}${of.state !== "done" && of.total.relation === "gte" ? " or more" : ""}</strong>${" "}
        ${of.state === "aborted" ? "left undone" : "left"}</li>
    </ul>
    <${Facts} of=${[
      ["About", about(of)],
      ["Asked for by", of.who],
      ["Reason", of.reason ?? "–"],
      ["Rate", of.rate === null ? "as fast as it goes" : `${of.rate} a minute`],
      ["Begun", html`<${When} at=${of.created_at} short=${false} />`],
      of.ended_at ? ["Ended", html`<${When} at=${of.ended_at} short=${false} /> <span
        class="mute">after ${span(seconds)}</span>`] : ["Done by", of.eta ? html`<${When} at=${of.eta} /> <span
        class="mute">at this pace</span>` : "not known yet"],
    ]} />
    ${of.filter && Object.keys(of.filter).length > 0 && html`<details><summary>The filter as it was understood</summary><${Json} value=${of.filter}
      label="the filter" /></details>`}
    ${of.failures.length > 0 && html`<h2>What could not be done</h2>
      <p class="mute">${of.failed > of.failures.length ? `The first ${of.failures.length} of ${of.failed.toLocaleString("en")}.` : "All of them."}</p>
      <${Table} caption="What could not be done" columns=${FAILURES(of.action)} rows=${of.failures} id=${(one) => one.id} />`}`;
}

const FAILURES = (action) => [
  { name: "Item", class: "tight", cell: (one) => html`<${Link} to=${`${action.startsWith("jobs.") ? "jobs" : "runs"}/${part(one.id)}`}><code>${one.id}</code>
    <//>` },
  { name: "Code", class: "tight", cell: (one) => html`<code>${one.code}</code>` },
  { name: "Why", cell: (one) => one.detail },
];
