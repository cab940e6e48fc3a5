// A form in a dialog.
import { html, useRef, useState } from "../lib/html.js";
import { FormError, useFocusOnFault } from "./field.js";

/** `act()` submits the form; a defined result closes the dialog. `children(faults)` renders the fields, which show the errors at their pointers. */
export function DialogForm({ close, verb, act, ready = true, children }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const form = useRef(null);
  useFocusOnFault(form, error);
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
  return html`<form ref=${form} data-guarded onSubmit=${go}>${children(error?.errors ?? [])}<${FormError} error=${error} />
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="main" disabled=${busy || !ready}>${verb}</button></div></form>`;
}
