// What differs between two states of a thing, field by field: the old and the new are marked by a sign and a word, not by colour alone.
import { html } from "../lib/html.js";
import { write } from "../lib/json.js";

const SHORT = 60; // signs of a line

function shown(value) {
  if (value === undefined || value === null) return "none";
  if (typeof value === "string") return value;
  const line = write(value);
  return line.length > SHORT ? write(value, 2) : line;
}

/** of: [{field, before, after}]. */
export function Changes({ of, caption = "what differs" }) {
  if (!of.length) return html`<p class="mute">Nothing differs.</p>`;
  return html`<div class="table diff" role="group" aria-label=${caption} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr><th scope="col">Field</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.field}><th scope="row">${one.field.replaceAll("_", " ")}</th>
      <td class="before"><span aria-hidden="true">−</span> <code>${shown(one.before)}</code></td><td class="after"><span aria-hidden="true">+</span> <code>
        ${shown(one.after)}</code></td></tr>`)}</tbody></table></div>`;
}
