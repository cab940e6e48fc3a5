// Bulk actions: the server counts the items, the user confirms the count, and an operation does the work.
import { html, signal } from "../lib/html.js";
import { part, post } from "../lib/api.js";
import { formatCount } from "../lib/pages.js";
import { navigate } from "../lib/router.js";
import { perform, confirm, notify } from "./dialog.js";

/**
 * about: {filter} or {ids}; what: plural noun for the items; named(id): how an item is displayed; paced: offer a rate limit;
 * weighty: the user must always type the count.
 */
export async function startBulk({ action, verb, what, about, named = (id) => html`<code>${id}</code>`, note, paced = false, weighty = false, then = () => {} }) {
  const plan = await perform(() => post("bulk", { action, ...about, dry_run: true }));
  if (!plan) return;
  const { value } = plan.count;
  if (!value) return void notify(`These ${what} no longer exist`, { tone: "warn" });
  const words = value === 1 ? what.replace(/s$/, "") : what;
  const rate = signal("");
  confirm({
    title: `${verb} ${formatCount(plan.count)} ${words}?`,
    verb: `${verb} ${value.toLocaleString("en")} ${words}`,
    count: value,
    weighty,
    samples: plan.sample.map(named),
    wantsReason: true,
    note: html`${note} You can abort the operation while it runs.${value > 5 ? " The first items:" : ""}${paced && html`<${RateField} rate=${rate} />`}`,
    act: (reason) => {
      const pace = rate.peek() && { rate: Number(rate.peek()) };
      return post("bulk", { action, ...about, expected_count: value, ...(reason && { reason }), ...pace });
    },
    done: (operation) => {
      then();
      navigate(`operations/${part(operation.operation_id)}`);
      return `Started ${operation.operation_id}`;
    },
  });
}

function RateField({ rate }) {
  const typed = (event) => (rate.value = event.target.value);
  return html`<label class="pace">At most <input type="number" min="0.1" step="any" value=${rate.value} placeholder="all" onInput=${typed} /> per minute</label>`;
}

/** Toolbar for the selected rows. */
export function SelectionBar({ selected, children }) {
  if (!selected.value.size) return null;
  return html`<div class="bulk" role="region" aria-label="Selection"><strong>${selected.value.size} selected</strong>${children}
    <button type="button" class="quiet" onClick=${() => (selected.value = new Set())}>Clear</button></div>`;
}
