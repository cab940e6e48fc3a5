// A form in a dialog.
import { html, useState } from "../lib/html.js";
import { Trouble } from "./basics.js";

/** `act()` does it; what it answers closes the dialog. `children(faults)` draws the fields. */
export function Ask({ close, verb, act, ready = true, children }) {
  const [busy, work] = useState(false);
  const [error, fail] = useState(null);
  async function go(event) {
    event.preventDefault();
    work(true);
    fail(null);
    try {
      if ((await act()) !== undefined) close();
    } catch (problem) {
      fail(problem);
    }
    work(false);
  }
  return html`<form onSubmit=${go}>${children(error?.errors ?? [])}<${Trouble} error=${error} />
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="main" disabled=${busy || !ready}>${verb}</button></div></form>`;
}
