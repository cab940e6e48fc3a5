// Operations: what was asked to be done to many, and how far it has come.
import { html, useEffect, useState } from "../lib/html.js";
import { may, part, post } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { useData } from "../lib/load.js";
import { counted, gather } from "../lib/pages.js";
import { go } from "../lib/place.js";
import { CopyAs, Empty, Link, Loading, More, When } from "./basics.js";
import { Command } from "./command.js";
import { confirm } from "./dialog.js";
import { State } from "./state.js";
import { Table } from "./table.js";

const PAGE = 20;
const VERBS = { pause: "Pause", resume: "Resume", delete: "Delete", run: "Run", cancel: "Cancel", retry: "Retry", redrive: "Redrive", discard: "Discard" };

/** jobs.pause → Pause jobs. */
export function titleOf(operation) {
  const [what, verb] = operation.action.split(".");
  return `${VERBS[verb] ?? verb} ${what.replaceAll("_", " ")}`;
}

export const looked = (operation) => operation.done + operation.skipped + operation.failed;

/** Which ones it is about, in words. */
export function about(operation) {
  if (operation.named !== null) return `${operation.named.toLocaleString("en")} by name`;
  const terms = Object.entries(operation.filter ?? {});
  return terms.length ? terms.map(([name, value]) => `${name.replace(/_at$/, "")}: ${value}`).join(" · ") : "all";
}

/** Read again every so many milliseconds while it goes on: an operation's steps are not all told by the pulse. */
export function useWhile(isOn, again, every) {
  useEffect(() => {
    if (!isOn || live.value === "paused") return undefined;
    const timer = setInterval(() => document.hidden || again(), every);
    return () => clearInterval(timer);
  }, [isOn, live.value === "paused"]);
}

export function Progress({ of }) {
  const far = Math.min(looked(of), of.total.value);
  const label = `${looked(of)} of ${counted(of.total)} looked at`;
  return html`<progress class="progress" max=${Math.max(of.total.value, 1)} value=${of.state === "done" ? Math.max(of.total.value, 1) : far}
    aria-label=${label}>${label}</progress>`;
}

export function abort(operation, then = () => {}) {
  confirm({
    title: `Abort ${operation.operation_id}?`,
    verb: `Abort ${operation.operation_id}`,
    note: `${titleOf(operation)}: ${operation.done.toLocaleString("en")} of ${counted(operation.total)} are done. What was done stays done.`,
    act: () => post(`operations/${part(operation.operation_id)}/abort`).then(then),
    done: `${operation.operation_id} is aborted`,
  });
}

const COLUMNS = (again) => [
  { name: "State", class: "tight", cell: (one) => html`<${State} of=${one.state} />` },
  { name: "What", cell: (one) => html`<${Link} to=${`operations/${part(one.operation_id)}`} class="name">${titleOf(one)}<//> <span class="mute">
    ${one.operation_id}</span>` },
  { name: "About", cell: (one) => html`<span class="clip" title=${about(one)}>${about(one)}</span>` },
  { name: "Progress", class: "tight", cell: (one) => html`<${Progress} of=${one} />` },
  { name: "Done", class: "number", cell: (one) => `${one.done.toLocaleString("en")} of ${counted(one.total)}` },
  { name: "Failed", class: "number", cell: (one) => (one.failed ? html`<span class="tone-bad">${one.failed.toLocaleString("en")}</span>` : "0") },
  { name: "By", class: "tight", cell: (one) => one.who },
  { name: "Why", cell: (one) => html`<span class="clip" title=${one.reason}>${one.reason ?? ""}</span>` },
  { name: "Begun", class: "tight", cell: (one) => html`<${When} at=${one.created_at} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (one) => one.state === "running" && may("operator") && html`<button type="button"
    onClick=${() => abort(one, again)}>Abort …</button>` },
];

/** The newest of them. `brief`: a few, below another list. */
export function Operations({ brief = false }) {
  const [wanted, want] = useState(brief ? 5 : PAGE);
  const found = useData((stop) => gather("operations", {}, wanted, stop), [wanted]);
  useWhile(found.data?.items.some((one) => one.state === "running") ?? false, found.again, 2000);
  return html`<${Loading} of=${found}>${(data) =>
    data.items.length === 0
      ? !brief && html`<${Empty} title="No operations yet">
        <p>Whatever is done to many at once is told here: how far it is, what failed, and how to end it.</p><p><${Command}
        text="bellringer ops start runs.cancel --filter state=queued --dry-run" /></p><//>`
      : html`${brief && html`<h2>Recent operations</h2>`}
        ${!brief && html`<div class="tools"><span class="gap"></span><${CopyAs} cli="bellringer ops list" path="operations" /></div>`}
        <${Table} caption="Operations" columns=${COLUMNS(found.again)} rows=${data.items} id=${(one) => one.operation_id}
          open=${(one) => go(`operations/${part(one.operation_id)}`)} />
        ${brief ? html`<p><${Link} to="runs" terms=${{ tab: "operations" }}>All operations<//></p>` : html`<${More} cursor=${data.next_cursor}
          busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}`}<//>`;
}
