// Dialogs and notifications. Actions that can be undone run at once and offer Undo. Destructive actions ask for confirmation and name the
// object; bulk actions also ask for the count. Buttons repeat the verb, and the focus starts on the safe button.
import { html, signal, useEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { ErrorMessage } from "./elements.js";

const notices = signal([]);
let lastId = 0;

/** Shows a notification; `undo` adds an Undo button. */
export function notify(text, { undo, tone = "good", to } = {}) {
  const notice = { id: (lastId += 1), text, undo, tone, to };
  notices.value = [...notices.peek().slice(-3), notice];
  setTimeout(() => drop(notice.id), undo ? 10_000 : 5_000);
}

const drop = (id) => (notices.value = notices.peek().filter((notice) => notice.id !== id));

export function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">
    ${notices.value.map((notice) => html`<div key=${notice.id} class="notice tone-${notice.tone}">
      <span>${notice.text}</span>${notice.to}
      ${notice.undo && html`<button type="button" onClick=${() => perform(async () => { await notice.undo(); drop(notice.id); })}>Undo</button>`}
      <button type="button" class="quiet" aria-label="Dismiss" onClick=${() => drop(notice.id)}><${Icon} name="close" /></button>
    </div>`)}
  </div>`;
}

/** Runs an action and shows a notification with its result or error. */
export async function perform(act, done, options) {
  try {
    const result = await act();
    if (done) notify(typeof done === "function" ? done(result) : done, options);
    return result;
  } catch (error) {
    notify([error.message, error.detail, error.hint].filter(Boolean).join(" · "), { tone: "bad" });
    return undefined;
  }
}

const current = signal(null);

/** Opens a dialog with the component `body({close})`. Escape closes it, after a question if one of its forms with `data-guarded` has input; the
    focus returns to where it was. */
export function openDialog(title, body) {
  const before = document.activeElement;
  current.value = { title, body, before };
}

export function close() {
  const before = current.peek()?.before;
  current.value = null;
  setTimeout(() => before?.focus?.()); // elements behind the dialog accept the focus only after it is gone
}

export function Dialogs() {
  const dialog = useRef(null);
  const changed = useRef(false);
  const [asking, setAsking] = useState(false);
  const what = current.value;
  useEffect(() => {
    changed.current = false;
    setAsking(false);
    if (what && !dialog.current.open) dialog.current.showModal();
  }, [what]);
  if (!what) return null;
  const noteInput = (event) => (changed.current ||= event.target.closest("[data-guarded]") !== null);
  function dismiss(event) {
    event.preventDefault();
    if (changed.current && !asking) setAsking(true);
    else close();
  }
  // A browser closes the dialog by itself when Escape is pressed twice, so `close` has a listener too.
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onInput=${noteInput} onCancel=${dismiss} onClose=${close}>
    <header><h2 id="dialog-title">${what.title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${dismiss}><${Icon} name="close" /></button></header>
    ${asking && html`<p role="alert" class="tone-warn">Your input is not saved. Close again to discard it.</p>`}
    <${what.body} close=${close} />
  </dialog>`;
}

/** Asks for confirmation. `verb`: text of the button; a `count` above 100, or any count if `weighty`, must be typed; `act(reason)`: the action. */
export function confirm({ title, verb, act, count = 1, weighty = false, samples = [], wantsReason = false, note, done }) {
  openDialog(title, function Confirm({ close }) {
    const [typed, setTyped] = useState("");
    const [reason, setReason] = useState("");
    const [busy, setBusy] = useState(false);
    const [error, setError] = useState(null);
    const many = weighty || count > 100;
    async function go(event) {
      event.preventDefault();
      setBusy(true);
      try {
        const result = await act(reason || undefined);
        close();
        if (done) notify(typeof done === "function" ? done(result) : done);
      } catch (problem) {
        setError(problem);
        setBusy(false);
      }
    }
    return html`<form onSubmit=${go}>
      ${note && html`<p>${note}</p>`}
      ${samples.length > 0 && html`<ul class="samples">${samples.slice(0, 5).map((one) => html`<li>${one}</li>`)}</ul>`}
      ${wantsReason && html`<label>Reason <input value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>`}
      ${many && html`<label>Type <strong>${count}</strong> to continue <input inputmode="numeric" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
      <${ErrorMessage} error=${error} />
      <div class="actions">
        <button type="button" autofocus onClick=${close}>Cancel</button>
        <button type="submit" class="danger" disabled=${busy || (many && typed !== String(count))}>${verb}</button>
      </div>
    </form>`;
  });
}
