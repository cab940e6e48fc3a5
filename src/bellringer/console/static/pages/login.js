// Login with an API key or token. It is stored for this tab only and sent as a header; there is no cookie that another site could use.
import { html, useState } from "../lib/html.js";
import { loginRequired, whoami } from "../lib/api.js";
import { key } from "../lib/preferences.js";
import { ErrorMessage } from "../parts/elements.js";

export function Login() {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  async function enter(event) {
    event.preventDefault();
    key.value = text.trim();
    try {
      await whoami();
    } catch (problem) {
      key.value = null;
      loginRequired.value = true;
      setError(problem);
    }
  }
  return html`<main class="login"><h1><img src="static/icon.svg" alt="" width="20" height="20" /> Bellringer</h1>
    <form onSubmit=${enter}>
      <label>API key or token <input type="password" autocomplete="off" value=${text} onInput=${(event) => setText(event.target.value)} autofocus required /></label>
      <p class="mute">Create one with <code>bellringer keys create NAME --role operator</code></p>
      <${ErrorMessage} error=${error} />
      <div class="actions"><button type="submit" class="main">Log in</button></div>
    </form></main>`;
}
