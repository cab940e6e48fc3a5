// Reasons why a job or run is in its state, each with a remedy.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, part } from "../lib/api.js";
import { openDialog } from "./dialog.js";
import { Loading, copy } from "./elements.js";
import { useData } from "../lib/page_data.js";

const MARKS = { true: ["cross", "bad", "blocking"], ok: ["check", "good", "ok"], false: ["dot", "mute", "info"] };

export function Reasons({ of }) {
  return html`<ol class="reasons">
    ${of.map((reason) => {
      const [icon, tone, word] = MARKS[String(reason.holds)] ?? MARKS.false;
      return html`<li class="tone-${tone}"><${Icon} name=${icon} /> <span class="unseen">${word}:</span> ${reason.text}
        ${reason.fix && html` <button type="button" class="quiet fix" title="Copy this command" onClick=${() => copy(reason.fix)}><code>${reason.fix}</code></button>`}</li>`;
    })}
  </ol>`;
}

export const whyJob = (job) => openDialog(`Why is ${job.name} not running?`, () => html`<${Why} path=${`jobs/${part(job.job_id)}/why`} />`);
export const whyRun = (run) => openDialog("Why is this run in its state?", () => html`<${Why} path=${`runs/${part(run.run_id ?? run.id)}/explain`} />`);

export function Why({ path, terms }) {
  const found = useData((stop) => get(path, terms, stop), [path, JSON.stringify(terms)]);
  return html`<${Loading} of=${found}>${(data) => html`<${Reasons} of=${data.reasons} />`}<//>`;
}
