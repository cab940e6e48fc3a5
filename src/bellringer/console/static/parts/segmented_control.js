// Segmented control; the choice is part of the URL.
import { html } from "../lib/html.js";
import { setQuery, query } from "../lib/router.js";

/** of: {value: label}; usual: default value; clear: query parameters that are removed when the choice changes. */
export function Segments({ name, label, of, usual, clear = [] }) {
  const chosen = segment(name, of, usual);
  const choose = (value) => setQuery({ [name]: value === usual ? "" : value, ...Object.fromEntries(clear.map((one) => [one, ""])) });
  return html`<div class="segments" role="group" aria-label=${label}>
    ${Object.entries(of).map(([value, word]) => html`<button type="button" aria-pressed=${value === chosen} onClick=${() => choose(value)}>${word}</button>`)}
  </div>`;
}

export function segment(name, of, usual) {
  const chosen = query.value.get(name);
  return Object.hasOwn(of, chosen ?? "") ? chosen : usual;
}
