// Reasons why a job or run is in its state, each with a remedy.
import { html, signal, useEffect } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, part } from "../lib/api.js";
import { openDialog } from "./dialog.js";
import { Loading, copy } from "./elements.js";
import { useData } from "../lib/page_data.js";
import { formatTime } from "../lib/time.js";
import { zoneOf } from "./schedule.js";

const MARKS = { true: ["cross", "bad", "blocking"], ok: ["check", "good", "ok"], false: ["dot", "mute", "info"] };
const WAITS = ["clock", "calm", "waiting"]; // nothing is wrong: it waits for its time
const CALM_CODES = new Set(["not_due_yet", "waits_for_upstream", "no_schedule", "no_more_instants", "waits_for_signal", "waits_until", "waits_for_node", "waits_for_nodes",
  "waits_for_room", "waits_to_undo"]);

export function Reasons({ of }) {
  return html`<ol class="reasons">
    ${of.map((reason) => {
      const [icon, tone, word] = (reason.holds === true && CALM_CODES.has(reason.code) ? WAITS : MARKS[String(reason.holds)]) ?? MARKS.false;
      return html`<li class="tone-${tone}"><${Icon} name=${icon} /> <span class="unseen">${word}:</span> ${reason.text}
        ${reason.fix && html` <button type="button" class="quiet fix" title="Copy this command" onClick=${() => copy(reason.fix)}><code>${reason.fix}</code></button>`}</li>`;
    })}
  </ol>`;
}

/** Titles of jobs that are fine and only wait for their time, by the code of the first reason. */
const CALM_TITLES = {
  not_due_yet: (job, { next_at: at }) => (at ? `Next run at ${formatTime(at, job.schedules && zoneOf(job))}` : `${job.name} waits for its last run to end`),
  waits_for_upstream: (job) => `${job.name} starts after another job`,
  no_schedule: (job) => `${job.name} runs only when it is triggered`,
  no_more_instants: (job) => `The schedule of ${job.name} has ended`,
  ready: (job) => `${job.name} is about to run`,
  running: (job) => `${job.name} is running`,
};

/** The title asks why a job does not run only if something keeps it from running. */
function WhyTitle({ job, found }) {
  const data = found.value;
  if (!data) return job.name;
  const isCalm = data.reasons.every((one) => one.holds !== true || CALM_CODES.has(one.code));
  const title = isCalm && CALM_TITLES[data.reasons[0]?.code];
  return title ? title(job, data) : `Why is ${job.name} not running?`;
}

export function whyJob(job) {
  const found = signal(null);
  openDialog(html`<${WhyTitle} job=${job} found=${found} />`, () => html`<${Why} path=${`jobs/${part(job.job_id)}/why`} hear=${(data) => (found.value = data)} />`);
}

export const whyRun = (run) => openDialog("Why is this run in its state?", () => html`<${Why} path=${`runs/${part(run.run_id ?? run.id)}/explain`} />`);

/** `hear(data)` receives the explanation, for the title of a dialog; `offers(fix)`: whether a remedy applies, usually each. */
export function Why({ path, terms, hear, offers = () => true }) {
  const found = useData((stop) => get(path, terms, stop), [path, JSON.stringify(terms)]);
  useEffect(() => found.data && hear?.(found.data), [found.data]);
  return html`<${Loading} of=${found}>${(data) => html`<${Reasons} of=${data.reasons.map((one) => (one.fix && !offers(one.fix) ? { ...one, fix: null } : one))} />`}<//>`;
}
