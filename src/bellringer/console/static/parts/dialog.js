// Dialogs and notices. The confirm ladder: what can be undone is done at once and offers to undo; what destroys one thing asks, naming
// it; what concerns many asks for the count too. Buttons repeat the verb, and the focus begins on the harmless one.
import { html, signal, useEffect, useRef, useState } from "../lib/html.js";
import { Trouble } from "./basics.js";

const notices = signal([]);
let number = 0;

/** Say that something was done; `undo` takes it back. */
export function tell(text, { undo, tone = "good", to } = {}) {
  const notice = { id: (number += 1), text, undo, tone, to };
  notices.value = [...notices.peek().slice(-3), notice];
  setTimeout(() => drop(notice.id), undo ? 10_000 : 5_000);
}

const drop = (id) => (notices.value = notices.peek().filter((notice) => notice.id !== id));

export function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">
    ${notices.value.map((notice) => html`<div key=${notice.id} class="notice tone-${notice.tone}">
      <span>${notice.text}</span>${notice.to}
      ${notice.undo && html`<button type="button" onClick=${() => attempt(async () => { await notice.undo(); drop(notice.id); })}>Undo</button>`}
      <button type="button" class="quiet" aria-label="dismiss" onClick=${() => drop(notice.id)}>✕</button>
    </div>`)}
  </div>`;
}

/** Do it, and say what went wrong if it does. */
export async function attempt(act, done, options) {
  try {
    const answer = await act();
    if (done) tell(typeof done === "function" ? done(answer) : done, options);
    return answer;
  } catch (error) {
    tell([error.message, error.detail, error.hint].filter(Boolean).join(" · "), { tone: "bad" });
    return undefined;
  }
}

const shown = signal(null);

/** Show a dialog: `body({close})` draws it. It closes with Escape, and gives the focus back. */
export function show(title, body) {
  const before = document.activeElement;
  shown.value = { title, body, before };
}

export function close() {
  const before = shown.peek()?.before;
  shown.value = null;
  setTimeout(() => before?.focus?.()); // what is behind a dialog takes the focus only when it is gone
}

export function Dialogs() {
  const dialog = useRef(null);
  const what = shown.value;
  useEffect(() => {
    if (what && !dialog.current.open) dialog.current.showModal();
  }, [what]);
  if (!what) return null;
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onCancel=${(event) => { event.preventDefault(); close(); }}>
    <header><h2 id="dialog-title">${what.title}</h2><button type="button" class="quiet" aria-label="close" onClick=${close}>✕</button></header>
    <${what.body} close=${close} />
  </dialog>`;
}

/** Ask before something is destroyed. `verb` is on the button; `count` beyond 100, or of what is `weighty`, has to be typed; `act(reason)` does it. */
export function confirm({ title, verb, act, count = 1, weighty = false, samples = [], wantsReason = false, note, done }) {
  show(title, function Confirm({ close }) {
    const [typed, type] = useState("");
    const [reason, because] = useState("");
    const [busy, work] = useState(false);
    const [error, fail] = useState(null);
    const many = weighty || count > 100;
    async function go(event) {
      event.preventDefault();
      work(true);
      try {
        const answer = await act(reason || undefined);
        close();
        if (done) tell(typeof done === "function" ? done(answer) : done);
      } catch (problem) {
        fail(problem);
        work(false);
      }
    }
    return html`<form onSubmit=${go}>
      ${note && html`<p>${note}</p>`}
      ${samples.length > 0 && html`<ul class="samples">${samples.slice(0, 5).map((one) => html`<li>${one}</li>`)}</ul>`}
      ${wantsReason && html`<label>Reason <input value=${reason} onInput=${(event) => because(event.target.value)} /></label>`}
      ${many && html`<label>Type <strong>${count}</strong> to go on <input inputmode="numeric" value=${typed} onInput=${(event) => type(event.target.value)} /></label>`}
      <${Trouble} error=${error} />
      <div class="actions">
        <button type="button" autofocus onClick=${close}>Keep as it is</button>
        <button type="submit" class="danger" disabled=${busy || (many && typed !== String(count))}>${verb}</button>
      </div>
    </form>`;
  });
}
