// Bulk operations and their progress.
import { html, useEffect, useState } from "../lib/html.js";
import { may, part, post } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { useData } from "../lib/page_data.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "./elements.js";
import { Command } from "./copyable_command.js";
import { confirm } from "./dialog.js";
import { State } from "./state_badge.js";
import { Table } from "./table.js";

const PAGE = 20;
const VERBS = { pause: "Pause", resume: "Resume", delete: "Delete", run: "Run", cancel: "Cancel", retry: "Retry", redrive: "Redrive", discard: "Discard" };

/** jobs.pause → Pause jobs. */
export function operationTitle(operation) {
  const [what, verb] = operation.action.split(".");
  return `${VERBS[verb] ?? verb} ${what.replaceAll("_", " ")}`;
}

export const processed = (operation) => operation.done + operation.skipped + operation.failed;

/** Describes the items of an operation. */
export function describeItems(operation) {
  if (operation.named !== null) return `${operation.named.toLocaleString("en")} selected items`;
  const terms = Object.entries(operation.filter ?? {});
  return terms.length ? terms.map(([name, value]) => `${name.replace(/_at$/, "")}: ${value}`).join(" · ") : "all";
}

/** Reloads at an interval while `isOn`, because the live stream does not announce every step. */
export function usePollingWhile(isOn, reload, every) {
  useEffect(() => {
    if (!isOn || live.value === "paused") return undefined;
    const timer = setInterval(() => document.hidden || reload(), every);
    return () => clearInterval(timer);
  }, [isOn, live.value === "paused"]);
}

export function Progress({ of }) {
  const far = Math.min(processed(of), of.total.value);
  const label = `${processed(of)} of ${formatCount(of.total)} processed`;
  return html`<progress class="progress" max=${Math.max(of.total.value, 1)} value=${of.state === "done" ? Math.max(of.total.value, 1) : far}
    aria-label=${label}>${label}</progress>`;
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

const COLUMNS = (reload) => [
  { name: "State", class: "tight", cell: (one) => html`<${State} of=${one.state} />` },
  { name: "Action", cell: (one) => html`<${Link} to=${`operations/${part(one.operation_id)}`} class="name">${operationTitle(one)}<//> <span class="mute">
    ${one.operation_id}</span>` },
  { name: "Items", cell: (one) => html`<span class="clip" title=${describeItems(one)}>${describeItems(one)}</span>` },
  { name: "Progress", class: "tight", cell: (one) => html`<${Progress} of=${one} />` },
  { name: "Done", class: "number", cell: (one) => `${one.done.toLocaleString("en")} of ${formatCount(one.total)}` },
  { name: "Failed", class: "number", cell: (one) => (one.failed ? html`<span class="tone-bad">${one.failed.toLocaleString("en")}</span>` : "0") },
  { name: "By", class: "tight", cell: (one) => one.who },
  { name: "Reason", cell: (one) => html`<span class="clip" title=${one.reason}>${one.reason ?? ""}</span>` },
  { name: "Started", class: "tight", cell: (one) => html`<${Time} at=${one.created_at} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (one) => one.state === "running" && may("operator") && html`<button type="button"
    onClick=${() => abort(one, reload)}>Abort …</button>` },
];

/** The latest operations. `brief`: only a few, below another list. */
export function Operations({ brief = false }) {
  const [wanted, setWanted] = useState(brief ? 5 : PAGE);
  const found = useData((stop) => fetchPages("operations", {}, wanted, stop), [wanted]);
  usePollingWhile(found.data?.items.some((one) => one.state === "running") ?? false, found.reload, 2000);
  return html`<${Loading} of=${found}>${(data) =>
    data.items.length === 0
      ? !brief && html`<${Empty} title="No operations yet">
        <p>Bulk actions appear here with their progress and failures.</p><p><${Command}
        text="bellringer ops start runs.cancel --filter state=queued --dry-run" /></p><//>`
      : html`${brief && html`<h2>Recent operations</h2>`}
        ${!brief && html`<div class="tools"><span class="gap"></span><${CopyAs} cli="bellringer ops list" path="operations" /></div>`}
        <${Table} caption="Operations" columns=${COLUMNS(found.reload)} rows=${data.items} id=${(one) => one.operation_id}
          open=${(one) => navigate(`operations/${part(one.operation_id)}`)} />
        ${brief ? html`<p><${Link} to="runs" terms=${{ tab: "operations" }}>All operations<//></p>` : html`<${MoreButton} cursor=${data.next_cursor}
          busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}`}<//>`;
}
