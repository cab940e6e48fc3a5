// Filters whose values are in the address: chips, choices and a search that waits until the typing rests.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { narrow, query } from "../lib/place.js";
import { useKeys } from "../lib/keys.js";

export function Search({ name = "q", label, placeholder }) {
  const field = useRef(null);
  const timer = useRef(0);
  const [text, type] = useState(query.value.get(name) ?? "");
  useKeys({ "/": ["search", () => field.current?.focus()] }, "Filters");
  useEffect(() => () => clearTimeout(timer.current), []);
  function typed(event) {
    const { value } = event.target;
    type(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => narrow({ [name]: value, cursor: "" }), 250);
  }
  return html`<label class="search"><span class="unseen">${label}</span>
    <input ref=${field} type="search" value=${text} placeholder=${placeholder ?? label} onInput=${typed} /></label>`;
}

/** One of several, or none: {value: word}. */
export function Choice({ name, label, of }) {
  const chosen = query.value.get(name) ?? "";
  return html`<label class="choice"><span>${label}</span>
    <select value=${chosen} onChange=${(event) => narrow({ [name]: event.target.value, cursor: "" })}>
      <option value="">any</option>
      ${Object.entries(of).map(([value, word]) => html`<option value=${value} selected=${value === chosen}>${word}</option>`)}
    </select></label>`;
}

/** Values as chips, each with its count; pressing one keeps to it. `draw(value)`: how one is shown. */
export function Chips({ name, label, of, counts = {}, draw = (value) => value.replaceAll("_", " ") }) {
  const chosen = (query.value.get(name) ?? "").split(",").filter(Boolean);
  const press = (value) => narrow({ [name]: (chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value]).join(","), cursor: "" });
  return html`<div class="chips" role="group" aria-label=${label}>
    ${of.map((value) => html`<button type="button" class="chip" aria-pressed=${chosen.includes(value)} onClick=${() => press(value)}>${draw(value)}${counts[value] !== undefined && html` <span class="count">${counts[value]}</span>`}</button>`)}
  </div>`;
}

/** A value that is typed, with those that are known to choose from; it holds once the field is left or Enter is pressed. */
export function Facet({ name, label, of }) {
  const id = useId();
  const chosen = query.value.get(name) ?? "";
  return html`<label class="choice"><span>${label}</span>
    <input class="facet" value=${chosen} list=${id} placeholder="any" autocomplete="off" spellcheck=${false} onChange=${(event) => narrow({ [name]: event.target.value.trim(), cursor: "" })} />
    <datalist id=${id}>${of.map((value) => html`<option value=${value}></option>`)}</datalist></label>`;
}
