// Who logs in shows a key; it is kept for this tab only, and sent with every request. There is no cookie, so no other site can use it.
import { html, useState } from "../lib/html.js";
import { locked, whoami } from "../lib/api.js";
import { key } from "../lib/kept.js";
import { Trouble } from "../parts/basics.js";

export function Login() {
  const [text, type] = useState("");
  const [error, fail] = useState(null);
  async function enter(event) {
    event.preventDefault();
    key.value = text.trim();
    try {
      await whoami();
    } catch (problem) {
      key.value = null;
      locked.value = true;
      fail(problem);
    }
  }
  return html`<main class="login"><h1><img src="static/icon.svg" alt="" width="20" height="20" /> Bellringer</h1>
    <form onSubmit=${enter}>
      <label>API key or token <input type="password" autocomplete="off" value=${text} onInput=${(event) => type(event.target.value)} autofocus required /></label>
      <p class="mute">Make one with <code>bellringer keys create NAME --role operator</code></p>
      <${Trouble} error=${error} />
      <div class="actions"><button type="submit" class="main">Log in</button></div>
    </form></main>`;
}
