// Commands and code snippets with a copy button.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { copy } from "./elements.js";

function useCopied() {
  const [said, setSaid] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function take(text) {
    await copy(text);
    setSaid(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(false), 1500);
  }
  return [said, take];
}

/** The parts of a command between which a line may break: an option stays with its value. */
const words = (text) => text.match(/--?[\w-]+ [^-\s]\S*|\S+/g) ?? [];

/** One line; a click copies it. */
export function Command({ text }) {
  const [said, take] = useCopied();
  return html`<span class="command"><button type="button" class="quiet" title="Copy this command" onClick=${() => take(text)}><code>${words(text).map((word, n) => html`${n > 0 && " "}<span>${word}</span>`)}</code> <span class="mute">${said ? "copied" : html`<${Icon} name="copy" />`}</span></button><span role="status" class="unseen">${said ? "copied" : ""}</span></span>`;
}

/** Several lines with a title and a description. */
export function Snippet({ title, text, children }) {
  const [said, take] = useCopied();
  return html`<section class="snippet"><header><h3>${title}</h3><button type="button" aria-label=${`Copy: ${title}`} onClick=${() => take(text)}>
    ${said ? "Copied" : "Copy"}</button></header>
    ${children}<pre class="json" tabindex="0" aria-label=${title}>${text}</pre><span role="status" class="unseen">${said ? "copied" : ""}</span></section>`;
}
