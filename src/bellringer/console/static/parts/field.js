// Form fields: label, control, hint and errors, linked with ARIA attributes.
import { html, useEffect, useId } from "../lib/html.js";
import { ErrorMessage } from "./elements.js";

const placed = new WeakSet(); // errors that a field shows

/** Marks an error as shown: a field shows another one with the same text. */
export const markShown = (one) => placed.add(one);

/** The errors that no field shows. */
export const unplaced = (faults) => faults.filter((one) => !placed.has(one));

/** The errors at a JSON pointer or below it, for the field that shows them. */
export function faultsAt(faults, pointer) {
  const found = (faults ?? []).filter((one) => one.pointer === pointer || one.pointer?.startsWith(`${pointer}/`));
  for (const one of found) placed.add(one);
  return found;
}

/**
 * The part of an error that no field shows, and how many fields are marked. It must be rendered after the fields. `faults`: the errors as they
 * were passed to `faultsAt`.
 */
export function FormError({ error, faults = error?.errors ?? [], reload }) {
  if (!error) return null;
  const others = unplaced(faults);
  if (!faults.length) return html`<${ErrorMessage} error=${error} reload=${reload} />`;
  const marked = new Set(faults.filter((one) => placed.has(one)).map((one) => one.pointer)).size;
  return html`<div class="form-error" role="alert">
    ${marked > 0 && html`<p>${marked === 1 ? "One field needs a correction." : `${marked} fields need a correction.`}</p>`}
    ${others.map((one) => html`<p key=${one.pointer}>${one.pointer && html`<code>${one.pointer}</code> `}${faultText(one)}</p>`)}
  </div>`;
}

/** Moves the focus to the first invalid field of a form when `error` changes. */
export function useFocusOnFault(form, error) {
  useEffect(() => {
    const marked = error ? [...(form.current?.querySelectorAll('[aria-invalid="true"]') ?? [])] : [];
    for (const one of marked) one.closest("details")?.setAttribute("open", ""); // open the section that contains the invalid field
    marked[0]?.focus();
  }, [error]);
}

const sentence = (text) => (/^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text);

/** An error and its remedy as sentences. `known`: a hint that the field shows already. */
export function faultText(one, known = "") {
  const remedy = one.hint && !(known && one.hint.endsWith(known)) ? one.hint : "";
  return [one.detail ?? one.message, remedy].filter(Boolean).map(sentence).join(". ");
}

/**
 * `children(named)` renders the control with the attributes in `named`, which link it to its label, hint and errors. `announce`: screen readers
 * read errors at once, for a field that keeps the focus.
 */
export function Field({ label, hint, faults = [], wide = false, announce = false, required = false, children }) {
  const id = useId();
  const notes = [hint && `${id}-hint`, faults.length > 0 && `${id}-fault`].filter(Boolean).join(" ");
  const named = { id, "aria-describedby": notes || undefined, "aria-invalid": faults.length > 0 ? "true" : undefined };
  return html`<div class="field ${wide ? "wide" : ""}"><label for=${id} class=${required ? "required" : ""}>${label}</label>
    ${children(named)}
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
    ${faults.length > 0 && html`<small class="fault tone-bad" id=${`${id}-fault`} role=${announce ? "alert" : undefined}><span aria-hidden="true">⚠</span> ${[...new Set(faults.map((one) => faultText(one, hint)))].join(" · ")}</small>`}
  </div>`;
}

export function TextField({ value, set, list, type = "text", mono = false, placeholder, required, mode, ...more }) {
  return html`<${Field} ...${more} required=${required}>${(named) => html`<input ...${named} type=${type} class=${mono ? "mono" : ""} value=${value ?? ""} list=${list}
    placeholder=${placeholder}
    required=${required} inputmode=${mode} autocomplete="off" spellcheck=${false} onInput=${(event) => set(event.target.value)} />`}<//>`;
}

/** Select field. of: {value: label}. */
export function SelectField({ value, set, of, ...more }) {
  return html`<${Field} ...${more}>${(named) => html`<select ...${named} value=${value} onChange=${(event) => set(event.target.value)}>
    ${Object.entries(of).map(([one, word]) => html`<option value=${one} selected=${one === value}>${word}</option>`)}
  </select>`}<//>`;
}

export function Checkbox({ label, value, set, hint, disabled }) {
  const id = useId();
  return html`<div class="field"><label><input type="checkbox" checked=${value} disabled=${disabled} aria-describedby=${hint ? id : undefined}
    onChange=${(event) => set(event.target.checked)} /> ${label}</label>
    ${hint && html`<small id=${id}>${hint}</small>`}</div>`;
}

const pad = (number) => String(number).padStart(2, "0");
function toLocal(instant) {
  const at = new Date(instant);
  if (!instant || Number.isNaN(at.getTime())) return "";
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** Date and time field in the browser's time zone. */
export function DateTimeField({ value, set, hint, ...more }) {
  const choose = (event) => set(event.target.value ? new Date(event.target.value).toISOString() : "");
  return html`<${Field} ...${more} hint=${hint ?? "in your time zone"}>${(named) => html`<input ...${named} type="datetime-local" step="1"
    value=${toLocal(value)} onChange=${choose} />`}<//>`;
}
