// The events of a job: failures, delays, pauses and changes, the newest first.
import { html, signal, useMemo } from "../lib/html.js";
import { part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query, setQuery } from "../lib/router.js";
import { write } from "../lib/json.js";
import { formatDuration, formatTime, parseDuration } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading } from "../parts/elements.js";
import { Changes } from "../parts/diff.js";
import { pathOf } from "../parts/job_actions.js";
import { About, ChoiceChips, Moment, countBy, reasonText, runLink, stateChip, useFilteredList, useRevisionChanges } from "../parts/job_lists.js";
import { zoneOf } from "../parts/schedule.js";
import { State } from "../parts/state_badge.js";
import { Table, toggle } from "../parts/table.js";

const DURATION = /^(\d+(\.\d+)?(ms|s|m|h|d))+$/;
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;
const ERROR_STATES = "dead,retrying"; // states of runs that have an error
const CODES = new Set(["after", "misfire", "outcome", "policy", "reason"]); // values that may be codes, such as fire_once
const SAME_MS = 1000; // milliseconds; an event and a revision this close tell the same, such as a pause by the system

/** A value of an event as the console writes it: durations with two units, times in the chosen zone. */
function valueText(name, value, zone) {
  if (typeof value === "object") return value?.message ?? write(value);
  if (DURATION.test(value)) return formatDuration(parseDuration(value));
  if (INSTANT.test(value)) return formatTime(value, zone);
  return CODES.has(name) ? reasonText(String(value)) : String(value);
}

const counted = (count, word) => `${(count ?? "some").toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// What an event says, by kind; `of(name)` is a value as text. Other kinds list their values.
const TEXTS = {
  failed: (of, event) => [event.message, event.data.retry_in && `retry in ${of("retry_in")}`],
  dead: (of, event) => [event.message, reasonText(event.data.reason)],
  recovered: (of) => [`after ${of("after")} since ${of("since")}`],
  late: (of, { data }) => [`${data.not_created ? "not created" : "not started"} ${of("late_after")} after its time`, data.blocked?.length && `blocked by ${data.blocked.join(", ").replaceAll("_", " ")}`],
  missed: (of, { data }) => [`${counted(data.count, "occurrence")} since ${of("from")}`, data.misfire && `misfire policy: ${of("misfire")}`],
  expired: (of, { data }) => [`${counted(data.count ?? 1, "run")} had not started by the deadline, and will not run`],
  slow: (of) => [`running for ${of("running_for")}; usually ${of("usual")}, up to ${of("longest")}`],
  outgrown: (of) => [`usually takes ${of("usual")}, longer than its interval of ${of("interval")}`],
  paused: (of) => [`by ${of("by")}`, of("reason")],
};

function eventText(event, zone) {
  const of = (name) => valueText(name, event.data[name] ?? "", zone);
  const hidden = Array.isArray(event.data.fields) ? ["fields"] : []; // shown as a difference
  const rest = () => Object.keys(event.data).filter((name) => event.data[name] !== null && !hidden.includes(name)).map((name) => `${name.replaceAll("_", " ")}: ${of(name)}`);
  return (TEXTS[event.kind]?.(of, event) ?? rest()).filter(Boolean).join(" · ");
}

/** What an event says beside its kind; the fields that a declaration changed as a difference. */
function Details({ event, zone, changes }) {
  if (event.revision) {
    return html`<span class="said">${[changes.get(event.revision), event.why, `by ${event.by}`].filter(Boolean).join(" · ")} · <${Link} to=${`jobs/${part(event.job_id)}`}
      terms=${{ tab: "revisions", b: event.revision }}>revision ${event.revision}<//></span>`;
  }
  const fields = Array.isArray(event.data.fields) ? event.data.fields : [];
  const first = event.also.at(-1);
  const text = first && event.message ? event.message : eventText(event, zone); // the delay of a retry is that of the newest only
  return html`<span class="said">${text}${first && html` <span class="mute">· ${event.also.length + 1} times, first <${Moment} at=${first.at} job=${zone} ago=${false} /></span>`}</span>${fields.length > 0 && html`<details><summary>${fields.length}
    ${" "}${fields.length === 1 ? "field" : "fields"} overridden</summary><${Changes} of=${fields} caption="Overridden fields" /></details>`}`;
}

const TROUBLES = new Set(["failed", "dead", "late", "missed", "expired", "slow", "skipping"]); // kinds that repeat until something changes

/** Folds troubles that say the same as a newer one of that day, with no other event in between, into the newer one: `also` lists them. */
function foldRepeats(events, zone) {
  const rows = [];
  let open = new Map(); // the rows that older events may be folded into
  for (const event of events) {
    if (!TROUBLES.has(event.kind)) open = new Map();
    const key = JSON.stringify([event.kind, event.message ?? event.data, formatTime(event.at, zone).slice(0, 10)]);
    if (open.has(key)) open.get(key).also.push(event);
    else rows.push({ ...event, also: [] });
    if (TROUBLES.has(event.kind) && !open.has(key)) open.set(key, rows.at(-1));
  }
  return rows;
}

const MAX_LISTED = 100; // events of an unfolded row

const AlsoButton = ({ event, unfolded }) => html` <button type="button" class="also-button" aria-expanded=${unfolded.value.has(event.event_id)} onClick=${() => toggle(unfolded, event.event_id)}><${Icon}
  name=${unfolded.value.has(event.event_id) ? "chevron-down" : "chevron-right"} /> ×${(event.also.length + 1).toLocaleString("en")}</button>`;

/** The events that are folded into a row, as links to their runs. */
const Also = ({ event, zone }) => html`<ul class="also">${event.also.slice(0, MAX_LISTED).map((one) => html`<li key=${one.event_id}>${one.run_id
  ? runLink(one.run_id, html`<${Moment} at=${one.at} job=${zone} ago=${false} />`) : html`<${Moment} at=${one.at} job=${zone} ago=${false} />`}</li>`)}${event.also.length > MAX_LISTED
    && html`<li class="mute">and ${(event.also.length - MAX_LISTED).toLocaleString("en")} more</li>`}</ul>`;

const columnsOf = (events, zone, changes, unfolded) => [
  { name: "Event", class: "tight", phone: "title", cell: (event) => html`<${State} of=${event.kind} />${event.also.length > 0 && html`<${AlsoButton} event=${event} unfolded=${unfolded} />`}` },
  { name: "When", class: "tight", phone: "side", cell: (event) => html`<${Moment} at=${event.at} job=${zone} />` },
  events.some((event) => event.run_id) && { name: "Run", class: "tight", phone: "line", short: "run of", title: "the scheduled time of the run", cell: (event) => event.run_id && runLink(event.run_id, html`<${Moment} at=${event.scheduled_for} job=${zone} ago=${false} />`) },
  events.some((event) => event.attempt) && { name: "Attempt", class: "number tight", phone: "line", short: "· attempt", cell: (event) => (event.also.length === 0 && event.attempt) || "" },
  { name: "Details", class: "details", phone: "full", cell: (event) => html`<${Details} event=${event} zone=${zone} changes=${changes} />` },
].filter(Boolean);

/** The errors of the runs that the events are about: events have only their type. */
async function readErrors(job, events, stop) {
  const about = events.filter((event) => event.data.error && event.run_id);
  if (!about.length) return new Map();
  const from = about.map((event) => event.scheduled_for).sort()[0];
  const { items } = await fetchPages("runs", { job: job.job_id, state: ERROR_STATES, from }, new Set(about.map((event) => event.run_id)).size, stop);
  return new Map(items.map((run) => [run.run_id, run.error]));
}

/** The type of an event's error with the message of its run's last error, if that has the same type. */
function withMessage(event, error) {
  const type = event.data.error;
  return type && typeof type === "string" ? { ...event, message: error?.type === type && error.message ? `${type}: ${error.message}` : type } : event;
}

/** Reads the events, the revisions of the same time, and the errors of runs. If the latter two fail, the events are shown without them. */
async function readEvents(job, wanted, stop) {
  const orNothing = (none) => (error) => {
    if (error.name === "AbortError") throw error;
    return none;
  };
  const [page, revisions] = await Promise.all([
    fetchPages("events", { job: job.job_id }, wanted, stop), fetchPages(`${pathOf(job)}/revisions`, {}, wanted, stop).catch(orNothing({ items: [] })),
  ]);
  const errors = await readErrors(job, page.items, stop).catch(orNothing(new Map()));
  const oldest = page.next_cursor ? Date.parse(page.items.at(-1).at) : 0;
  const isEvent = (one) => page.items.some((event) => event.kind === one.what && Math.abs(Date.parse(event.at) - Date.parse(one.at)) < SAME_MS);
  const changes = revisions.items.filter((one) => Date.parse(one.at) >= oldest && !isEvent(one)).map((one) => ({ ...one, kind: one.what, job_id: job.job_id, event_id: `revision ${one.revision}`, data: {} }));
  const items = [...page.items.map((event) => withMessage(event, errors.get(event.run_id))), ...changes];
  return { ...page, items: items.sort((one, other) => Date.parse(other.at) - Date.parse(one.at)) };
}

export function Events({ job }) {
  const { found, wanted, moreOf } = useFilteredList((count, stop) => readEvents(job, count, stop), [job.job_id, job.revision]);
  const changes = useRevisionChanges(pathOf(job), found.data?.items.filter((event) => event.revision) ?? []);
  const kind = query.value.get("kind") ?? "";
  const unfolded = useMemo(() => signal(new Set()), []);
  return html`<${Loading} of=${found} shape="table">${({ items }) => {
    const counts = countBy(items, (event) => event.kind);
    const rows = foldRepeats(items.filter((event) => !kind || event.kind === kind), zoneOf(job));
    return html`<div class="tools"><${ChoiceChips} label="Filter by kind" all=${items.length} chosen=${kind} choose=${(one) => setQuery({ kind: one })}
        of=${[...counts].map(([one, count]) => [one, stateChip(one), count])} /></div>
      <${About} aside=${html`<${CopyAs} cli=${`bellringer events list --job '${job.name}'`} path=${`events?job=${part(job.job_id)}`} />`}>Failures, delays, pauses and changes of the job. All of its runs are under <${Link} to=${pathOf(job)}>Runs<//>.<//>
      ${rows.length === 0
        ? html`<${Empty} title="No events"><p>Events appear when the job fails, dies, is late, missed, slow or outgrown, and when it has recovered.</p>
            <p>For “late”, set <code>late_after</code>.</p><//>`
        : html`<${Table} caption=${`Events of ${job.name}`} kind="of-job" columns=${columnsOf(rows, zoneOf(job), changes, unfolded)} rows=${rows.slice(0, wanted)} id=${(event) => String(event.event_id)}
          detail=${(event) => event.also.length > 0 && unfolded.value.has(event.event_id) && html`<${Also} event=${event} zone=${zoneOf(job)} />`}
          open=${(event) => event.run_id && navigate(`runs/${part(event.run_id)}`)} />`}
      ${moreOf(rows)}`;
  }}<//>`;
}
