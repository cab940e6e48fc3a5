// Why something has not run: the reasons in their order, each with what to do about it.
import { html } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { show } from "./dialog.js";
import { Loading, copy } from "./basics.js";
import { useData } from "../lib/load.js";

const MARKS = { true: ["✕", "bad", "in the way"], ok: ["✓", "good", "fine"], false: ["•", "mute", "for your information"] };

export function Reasons({ of }) {
  return html`<ol class="reasons">
    ${of.map((reason) => {
      const [icon, tone, word] = MARKS[String(reason.holds)] ?? MARKS.false;
      return html`<li class="tone-${tone}"><span aria-hidden="true">${icon}</span> <span class="unseen">${word}:</span> ${reason.text}
        ${reason.fix && html` <button type="button" class="quiet fix" title="copy this command" onClick=${() => copy(reason.fix)}><code>${reason.fix}</code></button>`}</li>`;
    })}
  </ol>`;
}

export const whyJob = (job) => show(`Why does ${job.name} not run?`, () => html`<${Why} path=${`jobs/${part(job.job_id)}/why`} />`);
export const whyRun = (run) => show("Why is this run where it is?", () => html`<${Why} path=${`runs/${part(run.run_id ?? run.id)}/explain`} />`);

export function Why({ path, terms }) {
  const found = useData((stop) => get(path, terms, stop), [path, JSON.stringify(terms)]);
  return html`<${Loading} of=${found}>${(data) => html`<${Reasons} of=${data.reasons} />`}<//>`;
}
