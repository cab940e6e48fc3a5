// One of a few, all of them seen: the choice is in the address.
import { html } from "../lib/html.js";
import { narrow, query } from "../lib/place.js";

/** of: {value: word}; usual: what holds where the address says nothing; clear: terms that go with the old choice. */
export function Segments({ name, label, of, usual, clear = [] }) {
  const chosen = segment(name, of, usual);
  const choose = (value) => narrow({ [name]: value === usual ? "" : value, ...Object.fromEntries(clear.map((one) => [one, ""])) });
  return html`<div class="segments" role="group" aria-label=${label}>
    ${Object.entries(of).map(([value, word]) => html`<button type="button" aria-pressed=${value === chosen} onClick=${() => choose(value)}>${word}</button>`)}
  </div>`;
}

export function segment(name, of, usual) {
  const chosen = query.value.get(name);
  return Object.hasOwn(of, chosen ?? "") ? chosen : usual;
}
