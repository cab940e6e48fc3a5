// Differences between two versions, field by field. Old and new values are marked by a sign as well as by color.
import { html } from "../lib/html.js";
import { write } from "../lib/json.js";

const SHORT = 60; // characters

function shown(value) {
  if (value === undefined || value === null) return "none";
  if (typeof value === "string") return value;
  const line = write(value);
  return line.length > SHORT ? write(value, 2) : line;
}

/** of: [{field, before, after}]. */
export function Changes({ of, caption = "Differences" }) {
  if (!of.length) return html`<p class="mute">No differences.</p>`;
  return html`<div class="table diff" role="group" aria-label=${caption} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr><th scope="col">Field</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.field}><th scope="row">${one.field.replaceAll("_", " ")}</th>
      <td class="before"><span aria-hidden="true">−</span> <code>${shown(one.before)}</code></td><td class="after"><span aria-hidden="true">+</span> <code>
        ${shown(one.after)}</code></td></tr>`)}</tbody></table></div>`;
}
