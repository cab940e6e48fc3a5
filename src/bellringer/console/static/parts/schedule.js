// Displays schedules. The server evaluates them; this code never parses a cron expression.
import { html, useEffect, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { request } from "../lib/api.js";
import { write } from "../lib/json.js";
import { fromNow, formatTime } from "../lib/time.js";
import { formatDate } from "../lib/zoned.js";
import { ErrorMessage, Skeleton } from "./elements.js";
import { faultText, unplaced } from "./field.js";

const KINDS = ["cron", "rrule", "every", "delay", "at"];
const FLAGS = {
  dst_gap: ["DST gap", "This local time does not exist; the job fires at the first instant after the gap."],
  dst_fold_first: ["DST fold, first", "This local time occurs twice; this is the first."],
  dst_fold_second: ["DST fold, second", "This local time occurs twice; this is the second."],
};
const ICONS = { dst_gap: "dst-gap", dst_fold_first: "dst-fold", dst_fold_second: "dst-fold" };
const TYPING_PAUSE_MS = 350; // milliseconds without typing before the preview is requested

export const kindOf = (schedule) => KINDS.find((kind) => kind in schedule) ?? "cron";
export const zoneOf = (job) => job.schedules.find((one) => one.tz)?.tz ?? "UTC";

/** A schedule as it was written. */
export function expression(schedule) {
  const kind = kindOf(schedule);
  return kind === "cron" || kind === "rrule" ? `${schedule[kind]}${schedule.tz ? ` ${schedule.tz}` : " UTC"}` : `${kind} ${schedule[kind]}`;
}

/** The server's description of the schedule, and the cron or rrule expression. */
export function Schedule({ job }) {
  return html`<span class="schedule">${job.description}
    ${job.schedules.filter((one) => one.cron || one.rrule).map((one) => html` <code class="mute">${one.cron ?? one.rrule}${one.tz ? "" : " UTC"}</code>`)}</span>`;
}

export function Flags({ of }) {
  return of.map((flag) => {
    const [word, text] = FLAGS[flag] ?? [flag.replaceAll("_", " "), ""];
    return html`<span class="flag tone-warn" title=${text}><${Icon} name=${ICONS[flag] ?? "info"} /> ${word}</span> `;
  });
}

/** Upcoming fires; `act(fire)` renders actions. `brief`: only in the time zone of the schedule. A column that would say the same in other words is left out. */
export function Fires({ fires, zone, act, brief = false, caption = "Next fires" }) {
  if (!fires.length) return html`<p class="mute">No further fires.</p>`;
  const inBoth = !brief && fires.some((fire) => formatTime(fire.at, zone).slice(0, 19) !== formatWallTime(fire.local).slice(0, 19));
  const hasFlags = fires.some((fire) => fire.flags.length);
  return html`<div class="table rows fires" role="group" aria-label=${caption} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr>${inBoth && html`<th scope="col">When</th>`}<th scope="col">${inBoth ? "Schedule time zone" : "When"}</th><th scope="col">In</th>
      ${hasFlags && html`<th scope="col">Notes</th>`}${act && html`<th scope="col"><span class="unseen">Actions</span></th>`}</tr></thead>
    <tbody>${fires.map((fire) => html`<tr key=${fire.at}>${inBoth && html`<td data-phone="title"><time datetime=${fire.at}>${weekdayOf(formatTime(fire.at, zone))} ${formatTime(fire.at, zone)}</time></td>`}
      <td data-phone=${inBoth ? "line" : "title"} title=${formatTime(fire.at, zone)}>${weekdayOf(fire.local)} ${inBoth || brief ? formatWallTime(fire.local) : formatTime(fire.at, zone)}</td><td class="mute" data-phone="line" data-short="in">${fromNow(fire.at).replace(/^in /, "")}</td>
      ${hasFlags && html`<td data-phone="full"><${Flags} of=${fire.flags} /></td>`}${act && html`<td class="tight" data-phone="acts">${act(fire)}</td>`}</tr>`)}</tbody></table></div>`;
}

/** The weekday of a date at the start of a text. */
const weekdayOf = (text) => formatDate(text.slice(0, 10), { weekday: "short" });

/** Formats a local time without fractions of a second: 2026-11-17 02:30:00 +01:00. */
const formatWallTime = (local) => local.replace("T", " ").replace(/\.\d+/, "").replace(/([+-]\d\d:\d\d)$/, " $1").replace(/Z$/, " UTC");

function frequencyText(count) {
  if (count === null) return "frequency unknown";
  if (count === 0) return "none in the next 30 days";
  return `${count >= 10 ? Math.round(count).toLocaleString("en") : +count.toFixed(2)} per day on average`;
}

const sentence = (text) => text[0].toUpperCase() + text.slice(1);

/** Description, frequency and warnings of a schedule. `brief`: without the description, where the page shows it already. */
export function Meaning({ of, brief = false }) {
  return html`<p class="meaning">${!brief && html`<strong>${of.description}</strong> · `}<span class="mute">${brief ? sentence(frequencyText(of.fires_per_day)) : frequencyText(of.fires_per_day)}</span></p>
    ${of.warnings.length > 0 && html`<ul class="warnings">${of.warnings.map((one) => html`<li class="tone-warn">
      <${Icon} name="warning" /> ${sentence(one.text)}</li>`)}</ul>`}`;
}

/** Occurrences that a calendar or an exception removes or moves, with the reason. */
function Excluded({ of }) {
  return of?.length > 0 && html`<details class="excluded"><summary>${of.length} excluded</summary><ul>${of.map((one) => html`<li key=${one.at}>
    <span class="mono">${formatWallTime(one.local)}</span> <span class="mute">${one.reason}</span></li>`)}</ul></details>`;
}

/** Requests a preview after typing pauses, and again when `mark` changes. Returns {response, error, busy}. */
export function usePreview(schedule, { job, n = 10, from, mark } = {}) {
  const [preview, setPreview] = useState({ response: null, error: null, busy: false });
  const text = schedule ? write(schedule) : "";
  useEffect(() => {
    const stop = new AbortController();
    if (!text) return void setPreview({ response: null, error: null, busy: false });
    setPreview((old) => ({ ...old, busy: true }));
    const timer = setTimeout(async () => {
      try {
        const body = { schedule, n, ...(job && { job }), ...(from && { from }) };
        const { data } = await request("POST", "schedules/preview", { body, signal: stop.signal });
        setPreview({ response: data, error: null, busy: false });
      } catch (error) {
        if (!stop.signal.aborted) setPreview({ response: null, error, busy: false });
      }
    }, TYPING_PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text, job, n, from, mark]);
  return preview;
}

/** Preview next to the form. `onFaults` receives the errors, to be shown at the fields. */
export function Preview({ schedule, job, onFaults }) {
  const { response, error, busy } = usePreview(schedule, { job });
  const [heard, setHeard] = useState(null); // the error whose parts the fields show
  useEffect(() => {
    onFaults?.(error?.errors ?? []);
    setHeard(error);
  }, [error]);
  return html`<div class="preview" aria-live="polite" aria-busy=${busy}>
    ${!schedule && html`<p class="mute">Enter a schedule to see the next ten run times.</p>`}
    ${error && (error.errors?.length && onFaults ? html`<p class="mute">Correct the schedule to see its next run times.</p>
      ${heard === error && unplaced(error.errors).map((one) => html`<p class="tone-bad"><${Icon} name="warning" /> ${faultText(one)}</p>`)}`
      : html`<${ErrorMessage} error=${error} />`)}
    ${response && html`<${Meaning} of=${response} /><${Fires} fires=${response.fires} zone=${response.schedule.tz} brief=${true} />
      <${Excluded} of=${response.excluded} />`}
    ${busy && !response && html`<${Skeleton} />`}
  </div>`;
}
