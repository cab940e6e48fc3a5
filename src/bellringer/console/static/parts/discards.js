// Discarded dead letters: the list of the last day, and undoing a discard.
import { html, signal, useMemo, useState } from "../lib/html.js";
import { may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { SelectionBar } from "./bulk.js";
import { Empty, Link, Loading, MoreButton, Time } from "./elements.js";
import { notify, perform } from "./dialog.js";
import { RunId, RunSubject, errorSummary } from "./run_text.js";
import { Table } from "./table.js";

const PAGE = 50;
export const UNDO_MS = 24 * 3600 * 1000; // how long a discard can be undone

const letters = (count) => `${count.toLocaleString("en")} dead ${count === 1 ? "letter" : "letters"}`;

/** Restores discarded dead letters; selection: {runs}, {fingerprint}, {operation_id} or {all: true}. Returns how many. */
async function restore(selection) {
  let count = 0;
  for (let more = true; more; ) {
    const done = await post("dead-letters/restore", selection);
    count += done.count;
    more = done.more;
  }
  return count;
}

/** Restores with a notification, and calls `then` afterwards. */
export async function restoreDiscarded(selection, then = () => {}) {
  const said = (count) => (count ? `Restored ${letters(count)}` : "Nothing to restore: the runs were restored already, or were started again");
  await perform(() => restore(selection), said);
  then();
}

/** Discards one dead letter at once, and offers Undo. */
export function discardOne(letter) {
  return perform(async () => {
    const { count } = await post("dead-letters/discard", { runs: [letter.run_id] });
    if (count) notify("Discarded the dead letter", { undo: () => restore({ runs: [letter.run_id] }) });
    else notify("The run was no longer a dead letter", { tone: "warn" });
  });
}

const COLUMNS = (reload) => [
  { name: "Job or task", class: "whose", phone: "title", cell: (one) => html`<${RunSubject} run=${one} />` },
  { name: "Run", class: "tight rare", phone: "hide", cell: (one) => html`<${RunId} id=${one.run_id} />` },
  { name: "Discarded", class: "tight", phone: "side", cell: (one) => html`<${Time} at=${one.discarded_at} />` },
  { name: "By", class: "tight", phone: "hide", cell: (one) => (one.operation_id ? html`<${Link} to=${`operations/${part(one.operation_id)}`}>${one.discarded_by ?? one.operation_id}<//>` : one.discarded_by ?? "–") },
  { name: "Error", class: "known", phone: "full", cell: (one) => html`<span title=${errorSummary(one)}>${errorSummary(one)}</span>` },
  { name: "Undo until", class: "tight", phone: "line", cell: (one) => html`<${Time} at=${one.restorable_until} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "full", cell: (one) => may("operator") && html`<button type="button"
    aria-label=${`Restore ${one.run_id}`} onClick=${() => restoreDiscarded({ runs: [one.run_id] }, reload)}><${Icon} name="undo" /> Restore</button>` },
];

/** Dead letters that were discarded within the last day. */
export function Discarded() {
  const [wanted, setWanted] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  const found = useData((stop) => fetchPages("dead-letters/discarded", {}, wanted, stop), [wanted]);
  const reload = () => ((selected.value = new Set()), found.reload());
  return html`<${Loading} of=${found} shape="table">${(data) => data.items.length === 0
    ? html`<${Empty} title="Nothing was discarded in the last day"><p>Discarded dead letters stay here for a day, so that you can restore them.</p><//>`
    : html`<div class="tools"><span class="mute">A discard can be undone for a day.</span><span class="gap"></span>
        ${may("operator") && html`<button type="button" onClick=${() => restoreDiscarded({ all: true }, reload)}><${Icon} name="undo" /> Restore all</button>`}</div>
      <${Table} caption="Discarded dead letters" columns=${COLUMNS(reload)} rows=${data.items} id=${(one) => one.run_id}
        open=${(one) => navigate(`runs/${part(one.run_id)}`)} selected=${may("operator") ? selected : undefined} />
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />
      <${SelectionBar} selected=${selected}><button type="button" onClick=${() => restoreDiscarded({ runs: [...selected.value] }, reload)}>
        <${Icon} name="undo" /> Restore</button><//>`}<//>`;
}
