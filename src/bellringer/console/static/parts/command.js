// A command to copy: what it says, and a button that takes it.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { copy } from "./basics.js";

function useCopied() {
  const [said, say] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function take(text) {
    await copy(text);
    say(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => say(false), 1500);
  }
  return [said, take];
}

/** One line; pressing it copies it. */
export function Command({ text }) {
  const [said, take] = useCopied();
  return html`<span class="command"><button type="button" class="quiet" title="copy this command" onClick=${() => take(text)}><code>
    ${text}</code> <span class="mute">${said ? "copied" : "copy"}</span></button><span role="status" class="unseen">${said ? "copied" : ""}</span></span>`;
}

/** Several lines, with their title and what they are for. */
export function Snippet({ title, text, children }) {
  const [said, take] = useCopied();
  return html`<section class="snippet"><header><h3>${title}</h3><button type="button" aria-label=${`Copy: ${title}`} onClick=${() => take(text)}>
    ${said ? "Copied" : "Copy"}</button></header>
    ${children}<pre class="json" tabindex="0" aria-label=${title}>${text}</pre><span role="status" class="unseen">${said ? "copied" : ""}</span></section>`;
}
