// Differences between two versions, field by field. Objects are compared inside, and what differs within a text is marked. Old and new
// values are marked by a sign as well as by color.
import { html } from "../lib/html.js";
import { write } from "../lib/json.js";

const SHORT = 60; // characters
const BRIEF = 24; // characters of a value in a summary
const MIN_COMMON = 4; // characters that two texts must share at their ends, so that only their middle is marked

const isObject = (value) => value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype;
const same = (one, other) => write(one) === write(other);

/** One change for each inner value that differs: `retry.attempts`, `schedules[0].cron`. */
export function expand({ field, before, after }) {
  if (isObject(before) && isObject(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => !same(before[name], after[name]));
    return names.flatMap((name) => expand({ field: `${field}.${name}`, before: before[name], after: after[name] }));
  }
  if (Array.isArray(before) && Array.isArray(after) && before.length === after.length && [...before, ...after].every(isObject)) {
    return before.flatMap((one, n) => (same(one, after[n]) ? [] : expand({ field: before.length > 1 ? `${field}[${n}]` : field, before: one, after: after[n] })));
  }
  return [{ field, before, after }];
}

function shown(value) {
  if (value === undefined || value === null) return "none";
  if (typeof value === "string") return value || "empty";
  const line = write(value);
  return line.length > SHORT ? write(value, 2) : line;
}

/** Splits two texts into the start they share, what differs, and the end they share. */
function split(one, other) {
  let start = 0;
  while (start < one.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < Math.min(one.length, other.length) - start && one.at(-1 - end) === other.at(-1 - end)) end += 1;
  return start + end < MIN_COMMON ? [0, 0] : [start, end];
}

function Value({ text, cut: [start, end] }) {
  if (!start && !end) return html`<code>${text}</code>`;
  const middle = text.slice(start, text.length - end);
  return html`<code>${text.slice(0, start)}${middle && html`<mark>${middle}</mark>`}${text.slice(text.length - end)}</code>`;
}

/** Differences in one line: "priority 5 → 3, timeout none → 5m". Long values are left out. */
export const summary = (changes) => changes.flatMap(expand).map(({ field, before, after }) => {
  const values = [shown(before), shown(after)];
  return field.replaceAll("_", " ") + (values.every((text) => text.length <= BRIEF && !text.includes("\n")) ? ` ${values.join(" → ")}` : "");
}).join(", ");

function Row({ change, names }) {
  const [before, after] = [shown(change.before), shown(change.after)];
  const cut = change.before === undefined || change.before === null || change.after === undefined || change.after === null ? [0, 0] : split(before, after);
  return html`<tr><th scope="row" data-label="Field">${change.field.replaceAll("_", " ")}</th>
    <td class="before" data-label=${names[0]}><span aria-hidden="true">−</span> <${Value} text=${before} cut=${cut} /></td>
    <td class="after" data-label=${names[1]}><span aria-hidden="true">+</span> <${Value} text=${after} cut=${cut} /></td></tr>`;
}

/** of: [{field, before, after}]; names: what the two versions are called. */
export function Changes({ of, caption = "Differences", names = ["Before", "After"] }) {
  if (!of.length) return html`<p class="mute">No differences.</p>`;
  return html`<div class="table rows diff" role="group" aria-label=${caption} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr><th scope="col">Field</th>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${of.flatMap(expand).map((one) => html`<${Row} key=${one.field} change=${one} names=${names} />`)}</tbody></table></div>`;
}
