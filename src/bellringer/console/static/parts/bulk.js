// Many at once: the server counts first, the reader sees the count and the first of them, and an operation does it.
import { html, signal } from "../lib/html.js";
import { part, post } from "../lib/api.js";
import { counted } from "../lib/pages.js";
import { go } from "../lib/place.js";
import { attempt, confirm, tell } from "./dialog.js";

/**
 * about: {filter} or {ids}; what: their word in the plural; named(id): how one is shown; paced: a rate can be given;
 * weighty: the count has to be typed, however small it is.
 */
export async function many({ action, verb, what, about, named = (id) => html`<code>${id}</code>`, note, paced = false, weighty = false, then = () => {} }) {
  const plan = await attempt(() => post("bulk", { action, ...about, dry_run: true }));
  if (!plan) return;
  const { value } = plan.count;
  if (!value) return void tell(`none of these ${what} is there any more`, { tone: "warn" });
  const words = value === 1 ? what.replace(/s$/, "") : what;
  const rate = signal("");
  confirm({
    title: `${verb} ${counted(plan.count)} ${words}?`,
    verb: `${verb} ${value.toLocaleString("en")} ${words}`,
    count: value,
    weighty,
    samples: plan.sample.map(named),
    wantsReason: true,
    note: html`${note} It is done one by one, and can be aborted meanwhile.${value > 5 ? " The first of them:" : ""}${paced && html`<${Pace} rate=${rate} />`}`,
    act: (reason) => {
      const pace = rate.peek() && { rate: Number(rate.peek()) };
      return post("bulk", { action, ...about, expected_count: value, ...(reason && { reason }), ...pace });
    },
    done: (operation) => {
      then();
      go(`operations/${part(operation.operation_id)}`);
      return `${operation.operation_id} has begun`;
    },
  });
}

function Pace({ rate }) {
  const typed = (event) => (rate.value = event.target.value);
  return html`<label class="pace">At most <input type="number" min="0.1" step="any" value=${rate.value} placeholder="all" onInput=${typed} /> a minute</label>`;
}

/** What can be done to the rows that are selected. */
export function Selected({ selected, children }) {
  if (!selected.value.size) return null;
  return html`<div class="bulk" role="region" aria-label="what is selected"><strong>${selected.value.size} selected</strong>${children}
    <button type="button" class="quiet" onClick=${() => (selected.value = new Set())}>Clear</button></div>`;
}
