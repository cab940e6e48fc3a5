// Filters whose values are part of the URL: search, select, chips and free text with suggestions.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { setQuery, query } from "../lib/router.js";
import { useShortcuts } from "../lib/shortcuts.js";

const NARROW = matchMedia("(max-width: 48rem)");

export function Search({ name = "q", label, placeholder }) {
  const field = useRef(null);
  const timer = useRef(0);
  const [text, setText] = useState(query.value.get(name) ?? "");
  useShortcuts({ "/": ["search", () => field.current?.focus()] }, "Filters");
  useEffect(() => () => clearTimeout(timer.current), []);
  function typed(event) {
    const { value } = event.target;
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ [name]: value, cursor: "" }), 250);
  }
  return html`<label class="search"><span class="unseen">${label}</span>
    <input ref=${field} type="search" value=${text} placeholder=${placeholder ?? label} onInput=${typed} /></label>`;
}

/** Filters that a button shows; active: how many of them are set. */
export function FoldedFilters({ active, children }) {
  const id = useId();
  const [isOpen, setOpen] = useState(active > 0 && !NARROW.matches);
  return html`<button type="button" class="filter-toggle" aria-expanded=${isOpen} aria-controls=${id} onClick=${() => setOpen(!isOpen)}>
      <${Icon} name="filter" /> Filters${active > 0 && html` <span class="count">(${active})</span>`}</button>
    <div id=${id} class="folded-filters ${isOpen ? "open" : ""}">${children}</div>`;
}

/** Select with the additional option "any". of: {value: label}. */
export function Choice({ name, label, of }) {
  const chosen = query.value.get(name) ?? "";
  return html`<label class="choice"><span>${label}</span>
    <select value=${chosen} onChange=${(event) => setQuery({ [name]: event.target.value, cursor: "" })}>
      <option value="">any</option>
      ${Object.entries(of).map(([value, word]) => html`<option value=${value} selected=${value === chosen}>${word}</option>`)}
    </select></label>`;
}

/** Toggle buttons with counts. `draw(value)`: how a value is displayed. */
export function Chips({ name, label, of, counts = {}, draw = (value) => value.replaceAll("_", " ") }) {
  const chosen = (query.value.get(name) ?? "").split(",").filter(Boolean);
  const press = (value) => setQuery({ [name]: (chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value]).join(","), cursor: "" });
  return html`<div class="chips" role="group" aria-label=${label}>
    ${of.map((value) => html`<button type="button" class="chip" aria-pressed=${chosen.includes(value)} onClick=${() => press(value)}>${draw(value)}${counts[value] !== undefined && html` <span class="count">${counts[value]}</span>`}</button>`)}
  </div>`;
}

/** Text field with suggestions; the value applies on Enter or when the field loses the focus. */
export function Facet({ name, label, of }) {
  const id = useId();
  const chosen = query.value.get(name) ?? "";
  return html`<label class="choice"><span>${label}</span>
    <input class="facet" value=${chosen} list=${id} placeholder="any" autocomplete="off" spellcheck=${false} onChange=${(event) => setQuery({ [name]: event.target.value.trim(), cursor: "" })} />
    <datalist id=${id}>${of.map((value) => html`<option value=${value}></option>`)}</datalist></label>`;
}
