// A secret that is shown once.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { Snippet } from "./copyable_command.js";

export function Secret({ title, text, close }) {
  return html`<p class="tone-warn"><${Icon} name="warning" /> This secret is shown only once. Copy it now and store it safely.</p>
    <${Snippet} title=${title} text=${text} />
    <div class="actions"><button type="button" class="main" onClick=${close}>I have stored it</button></div>`;
}
