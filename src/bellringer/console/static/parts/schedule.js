// What a schedule means: the server says it, here it is only shown. Nothing in this file reads a cron expression.
import { html, useEffect, useState } from "../lib/html.js";
import { ask } from "../lib/api.js";
import { write } from "../lib/json.js";
import { fromNow, full } from "../lib/time.js";
import { Trouble } from "./basics.js";

const KINDS = ["cron", "rrule", "every", "delay", "at"];
const FLAGS = {
  dst_gap: ["⤼ clock forward", "the clock leaves this time out: it fires at the first instant after the gap"],
  dst_fold_first: ["⟲ clock back, first", "the clock shows this time twice: this is the first"],
  dst_fold_second: ["⟲ clock back, second", "the clock shows this time twice: this is the second"],
};
const REST = 350; // milliseconds that the typing has to rest before the server is asked

export const kindOf = (schedule) => KINDS.find((kind) => kind in schedule) ?? "cron";
export const zoneOf = (job) => job.schedules.find((one) => one.tz)?.tz ?? "UTC";

/** A schedule as its author wrote it. */
export function expression(schedule) {
  const kind = kindOf(schedule);
  return kind === "cron" || kind === "rrule" ? `${schedule[kind]}${schedule.tz ? ` ${schedule.tz}` : " UTC"}` : `${kind} ${schedule[kind]}`;
}

/** In English as the server tells it, which names the zone, and as it was written where that says more. */
export function Schedule({ job }) {
  return html`<span class="schedule">${job.description}
    ${job.schedules.filter((one) => one.cron || one.rrule).map((one) => html` <code class="mute">${one.cron ?? one.rrule}${one.tz ? "" : " UTC"}</code>`)}</span>`;
}

export function Flags({ of }) {
  return of.map((flag) => {
    const [word, text] = FLAGS[flag] ?? [flag.replaceAll("_", " "), ""];
    return html`<span class="flag tone-warn" title=${text}>${word}</span> `;
  });
}

/** Coming fires; `act(fire)` draws what can be done about one. `brief`: only in the schedule's own zone. */
export function Fires({ fires, zone, act, brief = false, caption = "the next times" }) {
  if (!fires.length) return html`<p class="mute">It never fires again.</p>`;
  return html`<div class="table fires" role="group" aria-label=${caption} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr>${!brief && html`<th scope="col">When</th>`}<th scope="col">In the schedule's zone</th><th scope="col">From now</th>
      <th scope="col">Remarks</th>${act && html`<th scope="col"><span class="unseen">Actions</span></th>`}</tr></thead>
    <tbody>${fires.map((fire) => html`<tr key=${fire.at}>${!brief && html`<td><time datetime=${fire.at}>${full(fire.at, zone)}</time></td>`}
      <td class="mono" title=${full(fire.at, zone)}>${wall(fire.local)}</td><td>${fromNow(fire.at)}</td>
      <td><${Flags} of=${fire.flags} /></td>${act && html`<td class="tight">${act(fire)}</td>`}</tr>`)}</tbody></table></div>`;
}

/** 2026-11-17 02:30:00 +01:00: as the server wrote it, without parts of a second. */
const wall = (local) => local.replace("T", " ").replace(/\.\d+/, "").replace(/([+-]\d\d:\d\d)$/, " $1").replace(/Z$/, " UTC");

function often(count) {
  if (count === null) return "how often is not known";
  if (count === 0) return "none in the next thirty days";
  return `${count >= 10 ? Math.round(count).toLocaleString("en") : +count.toFixed(2)} a day on average`;
}

/** What the server says of a schedule: English, how often, warnings. */
export function Meaning({ of }) {
  return html`<p class="meaning"><strong>${of.description}</strong> <span class="mute">· ${often(of.fires_per_day)}</span></p>
    ${of.warnings.length > 0 && html`<ul class="warnings">${of.warnings.map((one) => html`<li class="tone-warn">
      <span aria-hidden="true">⚠</span> ${one.text}</li>`)}</ul>`}`;
}

/** Ask what a schedule means, when the typing rests, and again when `mark` has changed. Answers {answer, error, busy}. */
export function usePreview(schedule, { job, n = 10, from, mark } = {}) {
  const [told, tell] = useState({ answer: null, error: null, busy: false });
  const text = schedule ? write(schedule) : "";
  useEffect(() => {
    const stop = new AbortController();
    if (!text) return void tell({ answer: null, error: null, busy: false });
    tell((old) => ({ ...old, busy: true }));
    const timer = setTimeout(async () => {
      try {
        const body = { schedule, n, ...(job && { job }), ...(from && { from }) };
        const { data } = await ask("POST", "schedules/preview", { body, signal: stop.signal });
        tell({ answer: data, error: null, busy: false });
      } catch (error) {
        if (!stop.signal.aborted) tell({ answer: null, error, busy: false });
      }
    }, REST);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text, job, n, from, mark]);
  return told;
}

/** The preview beside a form. `onFaults` hears what is wrong, so that it can be said at the field. */
export function Preview({ schedule, job, onFaults }) {
  const { answer, error, busy } = usePreview(schedule, { job });
  useEffect(() => onFaults?.(error?.errors ?? []), [error]);
  return html`<div class="preview" aria-live="polite" aria-busy=${busy}>
    ${!schedule && html`<p class="mute">Say when, and the next ten times appear here.</p>`}
    ${error && (error.errors?.length && onFaults ? html`<p class="tone-bad"><span
      aria-hidden="true">✕</span> ${error.errors[0].detail}</p>` : html`<${Trouble} error=${error} />`)}
    ${answer && html`<${Meaning} of=${answer} /><${Fires} fires=${answer.fires} zone=${answer.schedule.tz} brief=${true} />`}
    ${busy && !answer && html`<p class="loading">Asking the server …</p>`}
  </div>`;
}
