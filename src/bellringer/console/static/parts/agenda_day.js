// One day of the calendar: a lane for each job with its occurrences from midnight to midnight.
import { html } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { now } from "../lib/time.js";
import { wallClock } from "../lib/zoned.js";
import { Notes, outcomeOf, plural } from "./agenda.js";
import { Link } from "./elements.js";

const LABEL_EVERY_HOURS = 3;
const MAX_LABELED = 10; // occurrences of a lane that have their time beside them
const LABEL_ROOM = 0.045; // of the day, which the label of the present time takes
const MAX_FAILING = 10; // jobs that repeat and whose failures are drawn
const MAX_FAILURES = 200; // of each
const HOUR_MS = 3_600_000;
const END = 0.94; // of the day: later marks have their time on the left

/** The jobs of a day with their entries, in the order of their first occurrence. */
function lanesOf(day) {
  const lanes = new Map();
  for (const entry of day.cells.flatMap((cell) => cell.entries)) {
    const lane = lanes.get(entry.job_id) ?? lanes.set(entry.job_id, { job_id: entry.job_id, job: entry.job, entries: [] }).get(entry.job_id);
    lane.entries.push(entry);
  }
  return [...lanes.values()];
}

/** The dead runs of jobs that repeat all day and have some, by job. */
function useFailures(day) {
  const failing = day.repeats.items.filter((one) => one.failed > 0).slice(0, MAX_FAILING);
  const read = async (stop) => new Map(await Promise.all(failing.map(async (one) => {
    const { items } = await get("runs", { job: one.job_id, state: "dead", from: day.from, to: day.to, limit: MAX_FAILURES }, stop);
    return [one.job_id, items.map((run) => run.scheduled_for)];
  })));
  return useData(read, [day.from, JSON.stringify(failing)], { once: true }).data ?? new Map();
}

/** The jobs that repeat all day, those with failures first. */
const bandsOf = (day) => day.repeats.items.toSorted((one, other) => (other.failed > 0) - (one.failed > 0));

/** Positions by real time: a day on which clocks change has 23 or 25 hours. */
export function DayLanes({ data, day }) {
  const [from, to] = [Date.parse(day.from), Date.parse(day.to)];
  const share = (instant) => (Date.parse(instant) - from) / (to - from);
  const percent = (value) => `${Math.min(Math.max(value, 0), 1) * 100}%`;
  const hours = Array.from({ length: Math.ceil((to - from) / HOUR_MS) }, (_, n) => new Date(from + n * HOUR_MS).toISOString());
  const at = share(new Date(now.value).toISOString());
  const isFree = (hour) => Math.abs(share(hour) - at) > LABEL_ROOM && Number(wallClock(hour, data.tz).hour) % LABEL_EVERY_HOURS === 0;
  const jobs = day.cells.reduce((most, cell) => Math.max(most, cell.jobs - cell.entries.length), 0);
  const frozen = day.freezes.map((freeze) => html`<span key=${freeze.freeze_id} class="frozen" style=${{ left: percent(share(freeze.from)), right: percent(1 - share(freeze.to)) }}></span>`);
  const failures = useFailures(day);
  const line = at > 0 && at < 1 && html`<span class="now" style=${{ left: percent(at) }}></span>`;
  return html`<div class="agenda day-lanes">
    <div class="notes"><${Notes} day=${day} /></div>
    <div class="axis" aria-hidden="true"><span></span><div class="scale">${hours.filter(isFree).map((hour) => html`<span key=${hour} class="tick" style=${{ left: percent(share(hour)) }}>${wallClock(hour, data.tz).time}</span>`)}
      ${line && html`<span class="tick is-now" style=${{ left: percent(at) }}>${wallClock(now.value, data.tz).time}</span>`}</div></div>
    <ul>${lanesOf(day).map((lane) => html`<li key=${lane.job_id}><${Link} to=${`jobs/${part(lane.job_id)}`} class="lane-name" title=${lane.job}>${lane.job}<//>
        <div class="lane">${frozen}${line}<ol>${lane.entries.map((entry) => html`<${Mark} key=${entry.at} entry=${entry} tz=${data.tz} left=${share(entry.at)} labeled=${lane.entries.length <= MAX_LABELED} />`)}</ol></div></li>`)}
      ${bandsOf(day).map((one) => html`<li key=${one.job_id} class="all-day"><${Link} to=${`jobs/${part(one.job_id)}`} class="lane-name" title=${one.job}>${one.job}<//>
        <div class="lane">${frozen}${line}<span class="band ${one.failed === null ? "" : "has-past"}" style=${{ "--now": percent(at) }}></span>
          ${failures.get(one.job_id)?.map((instant) => html`<span key=${instant} class="failure" style=${{ left: percent(share(instant)) }}></span>`)}</div>
        <span class="figures">${plural(one.times, "time")}${one.failed > 0
          && html` <${Link} to=${`jobs/${part(one.job_id)}`} terms=${{ tab: "ledger", outcome: "failed" }} class="failures"><${Icon} name="cross" />${one.failed.toLocaleString("en")} failed<//>`}</span></li>`)}</ul>
    ${(jobs > 0 || day.repeats.jobs > day.repeats.items.length) && html`<p class="mute">Only the rarest jobs of each hour are shown; choose a pool, a tag or a task to see others.</p>`}
  </div>`;
}

function Mark({ entry, tz, left, labeled }) {
  const { of, icon, text } = outcomeOf(entry);
  const { time } = wallClock(entry.at, tz);
  const title = `${time}${entry.times > 1 ? `, ${plural(entry.times, "time")} in this hour` : ""}${text ? `: ${text}` : ""}`;
  return html`<li class="mark is-${of} ${left > END ? "at-end" : ""}" style=${{ left: `${left * 100}%` }} title=${title}><time datetime=${entry.at} class=${labeled ? "" : "unseen"}>${time}</time>${icon
    && html`<${Icon} name=${icon} />`}<span class="unseen">${text}</span></li>`;
}
