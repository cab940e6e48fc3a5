// The calendar: what is to come, when it is fullest, and how to spread what comes all at once.
import { html, useEffect, useMemo } from "../lib/html.js";
import { ask, get, may, part } from "../lib/api.js";
import { useBeat } from "../lib/beat.js";
import { pulse, state } from "../lib/live.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { narrow, query } from "../lib/place.js";
import { clock, full } from "../lib/time.js";
import { zone } from "../lib/kept.js";
import { write } from "../lib/json.js";
import { Card, CopyAs, Empty, Link, Loading } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { attempt, confirm, tell } from "../parts/dialog.js";
import { Choice } from "../parts/filters.js";
import { Heat } from "../parts/heat.js";
import { expression } from "../parts/schedule.js";
import { Segments, segment } from "../parts/segments.js";
import { Verdict } from "../parts/verdict.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const BEAT = 60; // seconds
const BUSIEST = 10; // buckets in the table
const LOOKED_AT = 400; // jobs that are asked whether they fire in a bucket
const ASKED = 48; // different schedules of those …
const AT_ONCE = 6; // … so many together
const HOT = 2; // times what is usual in a pool
const SPREAD = 100; // jobs that are changed from here; more by the command line
const SPANS = { hour: "Next hour", day: "Next 24 hours", week: "Next 7 days" };
const BUCKETS = { "1m": "minute", "10m": "ten minutes" };

// What is asked for, and how it is laid out: `row` and `cell` of the clock, `lane` for the rows by pool.
const LAYOUTS = {
  hour: { to: "1h", bucket: "1m", cell: MINUTE, row: HOUR, lane: MINUTE, every: 10 },
  day: { to: "24h", bucket: "1m", cell: MINUTE, row: HOUR, lane: 10 * MINUTE, every: 10 },
  week: { to: "7d", bucket: "10m", cell: 10 * MINUTE, row: DAY, lane: HOUR, every: 18 },
};

const number = (count) => count.toLocaleString("en");
const fires = (count) => `${number(count)} ${count === 1 ? "fire" : "fires"}`;
const bucketWord = (data) => BUCKETS[data.bucket] ?? data.bucket;
const minute = (at) => full(at).slice(0, 16);

export default function Calendar() {
  const chosen = segment("span", SPANS, "day");
  const layout = LAYOUTS[chosen];
  const found = useData((stop) => get("forecast", { to: layout.to, bucket: layout.bucket }, stop), [chosen], { still: true });
  useBeat(found, BEAT);
  const jobs = pulse.value.jobs;
  useEffect(() => {
    if (found.at && state.peek() !== "paused") found.again();
  }, [jobs]);
  return html`<header class="head"><h1>Calendar</h1><span class="gap"></span>
    <${CopyAs} cli=${`bellringer forecast --to ${layout.to} --bucket ${layout.bucket}`} path=${`forecast?to=${layout.to}&bucket=${layout.bucket}`} /></header>
    <div class="tools"><${Segments} name="span" label="how far to look ahead" of=${SPANS} usual="day" clear=${["at", "in"]} />
      <${Choice} name="pool" label="Pool" of=${Object.fromEntries((found.data?.pools ?? []).map((pool) => [pool, pool]))} /></div>
    <${Loading} of=${found}>${(data) => (data.total === 0 ? html`<${Nothing} chosen=${chosen} />`
      : html`<${Ahead} data=${data} chosen=${chosen} again=${found.again} />`)}<//>`;
}

function Nothing({ chosen }) {
  return html`<${Verdict} tone="good">Nothing fires in the ${SPANS[chosen].toLowerCase()}.<//>
    <${Empty} title="Nothing to come"><p>What jobs fire is shown here as soon as one has a schedule:</p>
      <p><${Command} text="bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris" /></p>
      ${may("editor") && html`<p><${Link} to="jobs/new" class="button">Create a job<//></p>`}<//>`;
}

const countOf = (bucket, pool) => (pool ? (bucket.fires[pool] ?? 0) : Object.values(bucket.fires).reduce((sum, count) => sum + count, 0));

/** Fires by the instant that a stretch of so many milliseconds begins at, and in which of these a herd comes. */
function gathered(data, pool, length, origin) {
  const start = (at) => origin + Math.floor((Date.parse(at) - origin) / length) * length;
  const sums = new Map();
  for (const bucket of data.buckets) sums.set(start(bucket.at), (sums.get(start(bucket.at)) ?? 0) + countOf(bucket, pool));
  return { sums, hot: new Set(data.proposals.map((one) => start(one.at)).filter((at) => sums.get(at))) };
}

/** Cells from `start` on; those that end before the forecast begins, or begin when it is over, are none. */
function cellsOf({ sums, hot }, start, length, count, [from, to]) {
  return Array.from({ length: count }, (_, n) => {
    const at = start + n * length;
    if (at + length <= from || at >= to) return null;
    const sum = sums.get(at) ?? 0;
    return { at, count: sum, hot: hot.has(at), title: `${minute(at)} → ${fires(sum)}${hot.has(at) ? ", a herd" : ""}` };
  });
}

/** Where rows begin: whole hours, or midnight where the reader is. */
function firstRow(from, row) {
  if (row !== DAY) return from - (from % row);
  const day = new Date(from);
  return zone.value === "utc" ? from - (from % DAY) : new Date(day.getFullYear(), day.getMonth(), day.getDate()).getTime();
}

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const dayName = (at) => `${WEEKDAYS[zone.value === "utc" ? new Date(at).getUTCDay() : new Date(at).getDay()]} ${full(at).slice(5, 10)}`;

/** Rows by the clock: an hour or a day each. */
function byClock(data, layout, pool) {
  const bounds = [Date.parse(data.from), Date.parse(data.to)];
  const origin = firstRow(bounds[0], layout.row);
  const counted = gathered(data, pool, layout.cell, origin);
  const rows = [];
  for (let start = origin; start < bounds[1]; start += layout.row) {
    rows.push({ name: layout.row === DAY ? dayName(start + HOUR) : clock(start).slice(0, 5),
      cells: cellsOf(counted, start, layout.cell, layout.row / layout.cell, bounds) });
  }
  return rows;
}

/** Rows by pool, over the whole span. */
function byPool(data, layout, pool) {
  const bounds = [Date.parse(data.from), Date.parse(data.to)];
  const origin = bounds[0] - (bounds[0] % layout.lane);
  const count = Math.ceil((bounds[1] - origin) / layout.lane);
  const rows = data.pools.filter((one) => !pool || one === pool).map((name) => {
    const counted = gathered(data, name, layout.lane, origin);
    const usual = [...counted.sums.values()].reduce((sum, one) => sum + one, 0) / count;
    counted.hot = new Set([...counted.hot].filter((at) => counted.sums.get(at) >= HOT * usual)); // the herd is of some pools, not of all
    return { name, cells: cellsOf(counted, origin, layout.lane, count, bounds) };
  });
  return { rows, origin, count };
}

function ticksOf(cells, every, word) {
  return Array.from({ length: Math.ceil((cells - every / 3) / every) }, (_, n) => ({ at: n * every, text: word(n * every) }));
}

const CLOCK_TICKS = { day: (n) => `:${String(n).padStart(2, "0")}`, week: (n) => `${String(n / 6).padStart(2, "0")}:00` };

function Ahead({ data, chosen, again }) {
  const layout = LAYOUTS[chosen];
  const pool = query.value.get("pool") ?? "";
  const drawn = useMemo(() => ({ time: byClock(data, layout, pool), pools: byPool(data, layout, pool) }), [data, chosen, pool, zone.value]);
  const at = Date.parse(query.value.get("at") ?? "");
  const lane = query.value.get("in") ?? undefined;
  const pickTime = (cell) => narrow({ at: new Date(cell.at).toISOString(), in: "" });
  const pickLane = (cell, row) => narrow({ at: new Date(cell.at).toISOString(), in: row.name });
  const { pools } = drawn;
  const top = drawn.time.flatMap((row) => row.cells).reduce((most, cell) => (cell?.count > (most?.count ?? 0) ? cell : most), null);
  return html`<${Judged} data=${data} pool=${pool} />
    ${chosen !== "hour" && html`<${Card} title=${chosen === "day" ? "By hour and minute" : "By day and ten minutes"} wide=${true}
      aside=${html`<span class="mute">${pool || "all pools"}${top && ` · peak ${minute(top.at).slice(5)} → ${fires(top.count)}`}</span>`}>
      <${Heat} label=${`fires ${chosen === "day" ? "by hour and minute" : "by day and ten minutes"}; Enter shows the jobs of a cell`} rows=${drawn.time}
        ticks=${ticksOf(layout.row / layout.cell, layout.every, CLOCK_TICKS[chosen])}
        picked=${Number.isNaN(at) || lane ? null : { at }} pick=${pickTime} /><//>`}
    <${Card} title=${{ hour: "By minute and pool", day: "By pool and ten minutes", week: "By pool and hour" }[chosen]} wide=${true}>
      <${Heat} label="fires by pool; Enter shows the jobs of a cell" rows=${pools.rows} picked=${Number.isNaN(at) || !lane ? null : { at, row: lane }}
        pick=${pickLane}
        ticks=${ticksOf(pools.count, { hour: 10, day: 18, week: 24 }[chosen],
          (n) => (chosen === "week" ? dayName(pools.origin + n * layout.lane) : clock(pools.origin + n * layout.lane).slice(0, 5)))} /><//>
    ${!Number.isNaN(at) && html`<${Picked} key=${`${at} ${lane}`} data=${data} at=${at} length=${lane ? layout.lane : layout.cell} pool=${lane ?? pool} />`}
    <div class="cards"><${Busiest} data=${data} pool=${pool} /><${Herds} data=${data} again=${again} /></div>`;
}

function Judged({ data, pool }) {
  const { peak } = data;
  const crowded = data.proposals.length > 0;
  const notes = [data.left_out > 0 && `${number(data.left_out)} jobs are not counted: they, or their schedules, are too many`, data.timers_until
    && `timers from ${full(data.timers_until)} on are not counted`].filter(Boolean);
  return html`<${Verdict} tone=${crowded ? "warn" : "good"}>${fires(data.total)} to come${pool && ` in all pools`}; the fullest ${bucketWord(data)} is${" "}
      <${Link} to="calendar" terms=${{ ...Object.fromEntries(query.value), at: peak.at, in: "" }}>${clock(peak.at).slice(0, 5)} → ${fires(peak.fires)}<//>
        ${peak.fires > 1 && `, most of them in ${peak.pool}`}${crowded
        ? `; ${data.proposals.length === 1 ? "a herd" : `${data.proposals.length} herds`} could be spread` : ""}.<//>
    ${notes.map((text) => html`<p class="mute">${text}.</p>`)}`;
}

function Busiest({ data, pool }) {
  const most = data.buckets.map((bucket) => ({ ...bucket, count: countOf(bucket, pool) })).filter((bucket) => bucket.count).sort((a, b) => b.count - a.count
    || Date.parse(a.at) - Date.parse(b.at)).slice(0, BUSIEST);
  return html`<${Card} title="Fullest" aside=${html`<span class="mute">each ${bucketWord(data)}</span>`}>
    <div class="table" role="group" aria-label="The fullest buckets" tabindex="0"><table><caption class="unseen">The fullest buckets</caption>
    <thead><tr><th scope="col">From</th><th scope="col" class="number">Fires</th><th scope="col">By pool</th></tr></thead>
    <tbody>${most.map((bucket) => html`<tr key=${bucket.at}><th scope="row">
      <${Link} to="calendar" terms=${{ ...Object.fromEntries(query.value), at: bucket.at, in: "" }}>${minute(bucket.at)}<//></th>
      <td class="number">${number(bucket.count)}</td><td>
        ${Object.entries(bucket.fires).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name, count]) => `${name} ${number(count)}`).join(" · ")}</td>
        </tr>`)}</tbody></table></div><//>`;
}

// The jobs of a cell. The forecast counts and names none, so the pool's jobs are read, and each different schedule is asked once.

function bySchedule(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    for (const schedule of job.schedules.filter((one) => !("delay" in one))) {
      const text = write(schedule); // what is spread by a hash has its seed in it
      if (!groups.has(text)) groups.set(text, { schedule, jobs: [] });
      groups.get(text).jobs.push(job);
    }
  }
  return [...groups.values()].sort((a, b) => b.jobs.length - a.jobs.length);
}

/** Whether it fires then, as far as its next time tells; undefined where that comes before. */
function toldByNext(group, from, to) {
  const next = Date.parse(group.jobs.find((job) => job.schedules.length === 1 && job.next_at)?.next_at);
  return next >= to ? false : next >= from ? true : undefined;
}

async function firesIn(group, from, to, stop) {
  const before = new Date(from - 1).toISOString();
  const { data } = await ask("POST", "schedules/preview", { body: { schedule: group.schedule, n: 1, from: before }, signal: stop });
  return data.fires.some((fire) => Date.parse(fire.at) < to);
}

/** Under one expression, though each may have times of its own. */
function byExpression(groups) {
  const found = new Map();
  for (const group of groups) found.set(expression(group.schedule), [...(found.get(expression(group.schedule)) ?? []), ...group.jobs]);
  return [...found].map(([text, jobs]) => ({ text, jobs })).sort((a, b) => b.jobs.length - a.jobs.length);
}

async function jobsOf(pool, at, length, stop) {
  const page = await gather("jobs", { pool, state: "enabled", sort: "name" }, LOOKED_AT, stop);
  const groups = bySchedule(page.items);
  const [sure, open] = [groups.filter((group) => toldByNext(group, at, at + length)),
    groups.filter((group) => toldByNext(group, at, at + length) === undefined)];
  for (let n = 0; n < Math.min(open.length, ASKED); n += AT_ONCE) {
    const asked = open.slice(n, n + AT_ONCE);
    const answers = await Promise.all(asked.map((group) => firesIn(group, at, at + length, stop)));
    sure.push(...asked.filter((_, place) => answers[place]));
  }
  return { groups: byExpression(sure), isWhole: !page.next_cursor && open.length <= ASKED };
}

function Picked({ data, at, length, pool }) {
  const found = useData((stop) => jobsOf(pool, at, length, stop), [at, length, pool], { still: true });
  const count = data.buckets.filter((bucket) => Date.parse(bucket.at) >= at
    && Date.parse(bucket.at) < at + length).reduce((sum, bucket) => sum + countOf(bucket, pool), 0);
  const close = html`<button type="button" class="quiet" onClick=${() => narrow({ at: "", in: "" })}>Close</button>`;
  return html`<${Card} title=${`${minute(at)} → ${fires(count)}${pool ? ` in ${pool}` : ""}`} wide=${true} aside=${close}>
    <${Loading} of=${found}>${({ groups, isWhole }) => html`
      ${groups.length === 0 ? html`<p class="mute">
        ${isWhole ? "No schedule of a job fires then: what is counted are timers, jitter or runs after a delay."
        : "None of the jobs that were looked at fires then."}</p>`
        : html`<div class="table" role="group" aria-label="Jobs that fire then, by schedule" tabindex="0"><table>
        <caption class="unseen">Jobs that fire then, by schedule</caption>
        <thead><tr><th scope="col">Schedule</th><th scope="col" class="number">Jobs</th><th scope="col">Which</th></tr></thead>
        <tbody>${groups.map((group) => html`<tr key=${group.text}><th scope="row"><code>${group.text}</code></th><td class="number">
          ${number(group.jobs.length)}</td>
          <td>${group.jobs.slice(0, 8).map((job) => html`<${Link} to=${`jobs/${part(job.job_id)}`} terms=${{ tab: "schedule" }}>
            ${job.name}<//> `)}${group.jobs.length > 8 && html`<span class="mute">and ${number(group.jobs.length - 8)} more</span>`}</td></tr>`)}</tbody>
            </table></div>`}
      <p>${!isWhole && html`<span class="mute">Not all jobs were looked at. </span>`}
        <${Link} to="jobs" terms=${{ pool, state: "enabled" }}>All jobs${pool && ` of ${pool}`}<//></p>`}<//><//>`;
}

// Herds

const quoted = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The suggestion as options of the command. */
function options(proposal) {
  const { schedule, jitter } = proposal.suggestion;
  const seconds = proposal.schedule.seconds ? " --seconds" : "";
  return [schedule?.cron && `--cron ${quoted(schedule.cron)}${seconds}`, jitter && `--jitter ${quoted(jitter)}`].filter(Boolean).join(" ");
}

const suggested = (suggestion) => (suggestion.jitter ? `jitter ${suggestion.jitter}` : suggestion.schedule?.cron ?? write(suggestion));

/** The jobs of a herd: those with just this schedule. */
async function herd(proposal) {
  const page = await gather("jobs", { state: "enabled", sort: "name" }, 2000);
  const wanted = write(proposal.schedule);
  return page.items.filter((job) => job.schedules.length === 1 && write(job.schedules[0]) === wanted && !job.jitter);
}

async function spread(proposal, again) {
  const jobs = await attempt(() => herd(proposal));
  if (!jobs) return;
  if (!jobs.length || jobs.length > SPREAD) {
    return void tell(jobs.length ? `${number(jobs.length)} jobs are too many to change from here: use the command, job by job`
      : "None of these jobs was found among the first 2,000", { tone: "warn" });
  }
  confirm({
    title: `Spread ${number(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}?`,
    verb: `Change ${number(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}`,
    count: jobs.length,
    samples: jobs.map((job) => job.name),
    note: html`Each gets <code>${suggested(proposal.suggestion)}</code>, as a new revision that can be rolled back; one that was changed meanwhile
      is left alone.${jobs.length > 5 && " The first of them:"}`,
    act: async () => {
      let changed = 0;
      for (const job of jobs) {
        const change = ask("PATCH", `jobs/${part(job.job_id)}`, { body: proposal.suggestion, etag: `"${job.revision}"` });
        await change.then(() => (changed += 1), (error) => error.status === 412 || Promise.reject(error));
      }
      again();
      return changed;
    },
    done: (changed) => `${number(changed)} of ${number(jobs.length)} jobs are spread`,
  });
}

function Herds({ data, again }) {
  if (!data.proposals.length) return html`<${Card} title="Herds"><p class="mute">
    <span aria-hidden="true">✓</span> No ${bucketWord(data)} has far more than the others, so nothing has to be spread.</p><//>`;
  return html`<${Card} title="Herds" aside=${html`<span class="mute">how to spread what comes all at once</span>`}><ul class="herds">
    ${data.proposals.map((one) => html`<li key=${`${one.at} ${one.description}`}>
    <p><strong>${minute(one.at)}</strong> ${one.description} <code class="mute">
      ${expression(one.schedule)}</code> <span class="mute">· ${number(one.jobs)} jobs, ${fires(one.fires)}</span></p>
    <dl class="spread"><div><dt>Before</dt><dd><${Level} count=${one.before} most=${one.before} tone="warn" /></dd></div><div><dt>After</dt><dd>
      <${Level} count=${one.after} most=${one.before} tone="good" /></dd></div></dl>
    <p><span aria-hidden="true">→</span> <code>${suggested(one.suggestion)}</code> <span class="mute">the fullest of all would have ${number(one.peak)}</span>
      </p>
    <div class="tools"><${Command} text=${`bellringer jobs update JOB ${options(one)}`} />
      ${may("editor") && html`<button type="button" onClick=${() => spread(one, again)}>Spread them …</button>`}</div></li>`)}</ul><//>`;
}

const Level = ({ count, most, tone }) => html`<span class="size tone-${tone}">
  <span class="fill" style=${{ width: `${Math.min(count / Math.max(most, 1), 1) * 100}%` }}></span></span> ${number(count)}`;
