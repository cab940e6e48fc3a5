// The summary line of a page: icon, word and sentence.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";

const WORDS = { good: ["check", "Healthy"], warn: ["warning", "Warning"], bad: ["cross", "Problem"] };

export function Verdict({ tone, children }) {
  const [icon, word] = WORDS[tone] ?? WORDS.warn;
  return html`<p class="verdict tone-${tone}"><${Icon} name=${icon} /> <strong>${word}</strong> <span class="said">${children}</span></p>`;
}

/** The worst of several tones. */
export const worst = (tones) => ["bad", "warn", "good"].find((tone) => tones.includes(tone)) ?? "good";
