// A secret that is shown once.
import { html } from "../lib/html.js";
import { Snippet } from "./command.js";

export function Secret({ title, text, close }) {
  return html`<p class="tone-warn"><span aria-hidden="true">⚠</span> It is shown this once. Copy it to where it is kept; nobody can read it here again.</p>
    <${Snippet} title=${title} text=${text} />
    <div class="actions"><button type="button" class="main" onClick=${close}>I have kept it</button></div>`;
}
