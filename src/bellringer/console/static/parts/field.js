// Fields of forms: a label, a control, what it means, and what is wrong with it, tied together for those who do not see them side by side.
import { html, useId } from "../lib/html.js";

/** What is wrong at a place of the document, or below it. */
export const faultsAt = (faults, pointer) => (faults ?? []).filter((one) => one.pointer === pointer || one.pointer?.startsWith(`${pointer}/`));

/** `children(named)` draws the control with what ties it to its label and notes. */
export function Field({ label, hint, faults = [], wide = false, children }) {
  const id = useId();
  const notes = [hint && `${id}-hint`, faults.length > 0 && `${id}-fault`].filter(Boolean).join(" ");
  const named = { id, "aria-describedby": notes || undefined, "aria-invalid": faults.length > 0 ? "true" : undefined };
  return html`<div class="field ${wide ? "wide" : ""}"><label for=${id}>${label}</label>
    ${children(named)}
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
    ${faults.length > 0 && html`<small class="fault tone-bad" id=${`${id}-fault`}>
      ${faults.map((one) => [one.detail, one.hint].filter(Boolean).join(": ")).join(" · ")}</small>`}
  </div>`;
}

export function Text({ value, set, list, type = "text", mono = false, placeholder, required, mode, ...more }) {
  return html`<${Field} ...${more}>${(named) => html`<input ...${named} type=${type} class=${mono ? "mono" : ""} value=${value ?? ""} list=${list}
    placeholder=${placeholder}
    required=${required} inputmode=${mode} autocomplete="off" spellcheck=${false} onInput=${(event) => set(event.target.value)} />`}<//>`;
}

/** One of several: {value: word}. */
export function Select({ value, set, of, ...more }) {
  return html`<${Field} ...${more}>${(named) => html`<select ...${named} value=${value} onChange=${(event) => set(event.target.value)}>
    ${Object.entries(of).map(([one, word]) => html`<option value=${one} selected=${one === value}>${word}</option>`)}
  </select>`}<//>`;
}

export function Tick({ label, value, set, hint }) {
  const id = useId();
  return html`<div class="field"><label><input type="checkbox" checked=${value} aria-describedby=${hint ? id : undefined}
    onChange=${(event) => set(event.target.checked)} /> ${label}</label>
    ${hint && html`<small id=${id}>${hint}</small>`}</div>`;
}

const pad = (number) => String(number).padStart(2, "0");
function toLocal(instant) {
  const at = new Date(instant);
  if (!instant || Number.isNaN(at.getTime())) return "";
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** An instant, chosen in the reader's own zone. */
export function Moment({ value, set, hint, ...more }) {
  const choose = (event) => set(event.target.value ? new Date(event.target.value).toISOString() : "");
  return html`<${Field} ...${more} hint=${hint ?? "in your own zone"}>${(named) => html`<input ...${named} type="datetime-local" step="1"
    value=${toLocal(value)} onChange=${choose} />`}<//>`;
}
