// Login with an API key or token. It is stored for this tab only and sent as a header; there is no cookie that another site could use.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { loginRequired, whoami } from "../lib/api.js";
import { key } from "../lib/preferences.js";
import { Snippet } from "../parts/copyable_command.js";
import { Field } from "../parts/field.js";

const FIRST_KEY = "bellringer keys create first --role admin --dsn postgresql://USER@HOST/DATABASE";
const NEXT_KEY = "bellringer keys create NAME --role operator";

export function Login() {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  useEffect(() => error && field.current?.focus(), [error]);
  async function enter(event) {
    event.preventDefault();
    if (!text.trim()) return void setError({ message: "enter a key or a token" });
    setBusy(true);
    setError(null);
    key.value = text.trim();
    try {
      await whoami();
    } catch (problem) {
      key.value = null;
      loginRequired.value = true;
      setError(problem);
      setBusy(false);
    }
  }
  const faults = !error ? [] : [error.status === 401 ? { detail: "This key or token is not valid. It may have expired or been revoked." } : { detail: error.message, hint: error.hint }];
  return html`<main class="login"><p class="brand"><img src="static/icon.svg" alt="" width="28" height="28" /> Bellringer</p>
    <form class="card" onSubmit=${enter} novalidate>
      <h1>Log in</h1>
      <p class="mute">to the server <strong>${location.host}</strong></p>
      <${Field} label="API key or token" hint="Kept for this tab only: closing the tab logs you out." faults=${faults} announce=${true}>${(named) => html`<input ref=${field} ...${named} type="password" autocomplete="off" placeholder="br_…"
        value=${text} onInput=${(event) => setText(event.target.value)} autofocus required />`}<//>
      <div class="actions"><button type="submit" class="main" disabled=${busy}>${busy ? "Logging in…" : "Log in"}</button></div>
    </form>
    <details class="card"><summary><h2>I don’t have a key</h2></summary>
      <${Snippet} title="Ask an administrator" text=${NEXT_KEY}><p>An administrator can create a key for you in the console (Settings, API keys) or with this command:</p><//>
      <${Snippet} title="Create the first key" text=${FIRST_KEY}><p>For a new server. The command connects to its database, so it needs no key. Run it on a machine that can reach the database:</p><//>
      <p class="mute">If the server was started with <code>BELLRINGER_ROOT_KEY</code>, you can log in with that key and create others.</p>
    </details></main>`;
}
