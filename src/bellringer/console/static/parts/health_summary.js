// The summary line of a page: icon, word and sentence.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";

const WORDS = { good: ["check", "Healthy"], warn: ["warning", "Warning"], bad: ["cross", "Problem"], calm: ["info", ""] };

/** `more`: what follows the sentence, such as further problems. */
export function Verdict({ tone, more, children }) {
  const [icon, word] = WORDS[tone] ?? WORDS.warn;
  return html`<div class="verdict tone-${tone}"><p><${Icon} name=${icon} /> ${word && html`<strong>${word}</strong>`} <span class="said">${children}</span></p>${more}</div>`;
}

/** The worst of several tones. */
export const worst = (tones) => ["bad", "warn", "good"].find((tone) => tones.includes(tone)) ?? "good";
