// A form in a dialog.
import { html, useState } from "../lib/html.js";
import { ErrorMessage } from "./elements.js";

/** `act()` submits the form; a defined result closes the dialog. `children(faults)` renders the fields. */
export function DialogForm({ close, verb, act, ready = true, children }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  async function go(event) {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      if ((await act()) !== undefined) close();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  }
  return html`<form onSubmit=${go}>${children(error?.errors ?? [])}<${ErrorMessage} error=${error} />
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="main" disabled=${busy || !ready}>${verb}</button></div></form>`;
}
