// The expected load: fires by time and pool, the busiest intervals, and how to spread peaks.
import { html, useEffect, useMemo } from "../lib/html.js";
import { request, get, may, part } from "../lib/api.js";
import { usePolling } from "../lib/polling.js";
import { pulse, state } from "../lib/live.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { setQuery, query } from "../lib/router.js";
import { formatClock, formatTime } from "../lib/time.js";
import { zone } from "../lib/preferences.js";
import { write } from "../lib/json.js";
import { Card, CopyAs, Empty, Link, Loading } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { perform, confirm, notify } from "../parts/dialog.js";
import { Choice } from "../parts/filters.js";
import { Heatmap } from "../parts/heatmap.js";
import { expression } from "../parts/schedule.js";
import { Segments, segment } from "../parts/segmented_control.js";
import { Verdict } from "../parts/health_summary.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const POLL_SECONDS = 60;
const BUSIEST_ROWS = 10; // rows of the table
const MAX_JOBS = 400; // jobs examined for the list of a bucket
const MAX_PREVIEWS = 48; // distinct schedules previewed for them …
const PREVIEW_CONCURRENCY = 6; // … this many concurrently
const PEAK_FACTOR = 2; // a bucket is a peak of a pool from this multiple of the pool's mean on
const MAX_CHANGED_JOBS = 100; // jobs that the console changes at once; use the command line for more
const SPANS = { hour: "Next hour", day: "Next 24 hours", week: "Next 7 days" };
const SCALES = { log: "Color by number", quantile: "Color by rank" };
const BUCKETS = { "1m": "minute", "10m": "ten minutes" };

// Query and layout per range: `row` and `cell` of the heatmap by time, `lane` of the heatmap by pool.
const LAYOUTS = {
  hour: { to: "1h", bucket: "1m", cell: MINUTE, row: HOUR, lane: MINUTE, every: 10 },
  day: { to: "24h", bucket: "1m", cell: MINUTE, row: HOUR, lane: 10 * MINUTE, every: 10 },
  week: { to: "7d", bucket: "10m", cell: 10 * MINUTE, row: DAY, lane: HOUR, every: 18 },
};

const number = (count) => count.toLocaleString("en");
const runs = (count) => `${number(count)} ${count === 1 ? "run" : "runs"}`;
const bucketWord = (data) => BUCKETS[data.bucket] ?? data.bucket;
const minute = (at) => formatTime(at).slice(0, 16);

/** The tab Load of the calendar. Jobs that run more often than every minute add the same to each cell, so they are left out unless wanted. */
export function LoadForecast() {
  const chosen = segment("span", SPANS, "day");
  const layout = LAYOUTS[chosen];
  const all = query.value.get("frequent") === "true";
  const terms = { to: layout.to, bucket: layout.bucket, sub_minute: all ? undefined : "false" };
  const found = useData((stop) => get("forecast", terms, stop), [chosen, all], { once: true });
  usePolling(found, POLL_SECONDS);
  const jobs = pulse.value.jobs;
  useEffect(() => {
    if (found.at && state.peek() !== "paused") found.reload();
  }, [jobs]);
  const cli = `bellringer forecast --to ${layout.to} --bucket ${layout.bucket}${all ? "" : " --omit-sub-minute"}`;
  return html`<div class="tools"><${Segments} name="span" label="Range" of=${SPANS} usual="day" clear=${["at", "in"]} />
      <${Segments} name="scale" label="Color scale" of=${SCALES} usual="log" />
      <${Choice} name="pool" label="Pool" of=${Object.fromEntries((found.data?.pools ?? []).map((pool) => [pool, pool]))} />
      <label class="inline"><input type="checkbox" checked=${all} onChange=${() => setQuery({ frequent: all ? "" : "true" })} /> Include jobs that run more often than every minute</label>
      <span class="gap"></span><${CopyAs} cli=${cli} path=${`forecast?to=${layout.to}&bucket=${layout.bucket}${all ? "" : "&sub_minute=false"}`} /></div>
    <${Loading} of=${found} shape="page">${(data) => (data.total === 0 && !data.omitted ? html`<${NoFires} chosen=${chosen} />`
      : html`<${Forecast} data=${data} chosen=${chosen} reload=${found.reload} />`)}<//>`;
}

function NoFires({ chosen }) {
  return html`<${Verdict} tone="calm">Nothing is due in the ${SPANS[chosen].toLowerCase()}.<//>
    <${Empty} title="No upcoming runs"><p>Create a job with a schedule to see its runs here:</p>
      <p><${Command} text="bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris" /></p>
      ${may("editor") && html`<p><${Link} to="jobs/new" class="button">Create a job<//></p>`}<//>`;
}

const countOf = (bucket, pool) => (pool ? (bucket.fires[pool] ?? 0) : Object.values(bucket.fires).reduce((sum, count) => sum + count, 0));

/** Fires per interval of `length` milliseconds, and the intervals that contain a peak. */
function firesByInterval(data, pool, length, origin) {
  const start = (at) => origin + Math.floor((Date.parse(at) - origin) / length) * length;
  const sums = new Map();
  for (const bucket of data.buckets) sums.set(start(bucket.at), (sums.get(start(bucket.at)) ?? 0) + countOf(bucket, pool));
  return { sums, hot: new Set(data.proposals.map((one) => start(one.at)).filter((at) => sums.get(at))) };
}

/** Cells from `start` on; cells outside the forecast are null. */
function cellsOf({ sums, hot }, start, length, count, [from, to]) {
  return Array.from({ length: count }, (_, n) => {
    const at = start + n * length;
    if (at + length <= from || at >= to) return null;
    const sum = sums.get(at) ?? 0;
    return { at, count: sum, hot: hot.has(at), title: `${minute(at)}: ${runs(sum)}${hot.has(at) ? ", a peak" : ""}` };
  });
}

/** Start of the first row: a whole hour, or midnight in the chosen time zone. */
function firstRow(from, row) {
  if (row !== DAY) return from - (from % row);
  const day = new Date(from);
  return zone.value === "utc" ? from - (from % DAY) : new Date(day.getFullYear(), day.getMonth(), day.getDate()).getTime();
}

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const dayName = (at) => `${WEEKDAYS[zone.value === "utc" ? new Date(at).getUTCDay() : new Date(at).getDay()]} ${formatTime(at).slice(5, 10)}`;

/** Rows by time: one hour or one day each. */
function rowsByTime(data, layout, pool) {
  const bounds = [Date.parse(data.from), Date.parse(data.to)];
  const origin = firstRow(bounds[0], layout.row);
  const counted = firesByInterval(data, pool, layout.cell, origin);
  const rows = [];
  for (let start = origin; start < bounds[1]; start += layout.row) {
    rows.push({ name: layout.row === DAY ? dayName(start + HOUR) : formatClock(start).slice(0, 5),
      cells: cellsOf(counted, start, layout.cell, layout.row / layout.cell, bounds) });
  }
  return rows;
}

/** Rows by pool, over the whole span. */
function rowsByPool(data, layout, pool) {
  const bounds = [Date.parse(data.from), Date.parse(data.to)];
  const origin = bounds[0] - (bounds[0] % layout.lane);
  const count = Math.ceil((bounds[1] - origin) / layout.lane);
  const rows = data.pools.filter((one) => !pool || one === pool).map((name) => {
    const counted = firesByInterval(data, name, layout.lane, origin);
    const usual = [...counted.sums.values()].reduce((sum, one) => sum + one, 0) / count;
    counted.hot = new Set([...counted.hot].filter((at) => counted.sums.get(at) >= PEAK_FACTOR * usual)); // mark the peak only in the pools that cause it
    return { name, cells: cellsOf(counted, origin, layout.lane, count, bounds) };
  });
  return { rows, origin, count };
}

function ticksOf(cells, every, word) {
  return Array.from({ length: Math.ceil((cells - every / 3) / every) }, (_, n) => ({ at: n * every, text: word(n * every) }));
}

const CLOCK_TICKS = { day: (n) => `:${String(n).padStart(2, "0")}`, week: (n) => `${String(n / 6).padStart(2, "0")}:00` };

function Forecast({ data, chosen, reload }) {
  const layout = LAYOUTS[chosen];
  const pool = query.value.get("pool") ?? "";
  const drawn = useMemo(() => ({ time: rowsByTime(data, layout, pool), pools: rowsByPool(data, layout, pool) }), [data, chosen, pool, zone.value]);
  const at = Date.parse(query.value.get("at") ?? "");
  const lane = query.value.get("in") ?? undefined;
  const pickTime = (cell) => setQuery({ at: new Date(cell.at).toISOString(), in: "" });
  const pickLane = (cell, row) => setQuery({ at: new Date(cell.at).toISOString(), in: row.name });
  const { pools } = drawn;
  const scale = segment("scale", SCALES, "log");
  const top = drawn.time.flatMap((row) => row.cells).reduce((most, cell) => (cell?.count > (most?.count ?? 0) ? cell : most), null);
  return html`<${Summary} data=${data} pool=${pool} />
    ${chosen !== "hour" && html`<${Card} title=${chosen === "day" ? "By hour and minute" : "By day and ten minutes"} wide=${true}
      aside=${html`<span class="mute">${pool || "all pools"}${top && ` · peak ${minute(top.at).slice(5)}: ${runs(top.count)}`}</span>`}>
      <${Heatmap} label=${`runs ${chosen === "day" ? "by hour and minute" : "by day and ten minutes"}; press Enter to list the jobs of a cell`} rows=${drawn.time}
        ticks=${ticksOf(layout.row / layout.cell, layout.every, CLOCK_TICKS[chosen])}
        picked=${Number.isNaN(at) || lane ? null : { at }} pick=${pickTime} scale=${scale} /><//>`}
    <${Card} title=${{ hour: "By minute and pool", day: "By pool, in steps of ten minutes", week: "By pool and hour" }[chosen]} wide=${true}>
      <${Heatmap} label="runs by pool; press Enter to list the jobs of a cell" rows=${pools.rows} scale=${scale} picked=${Number.isNaN(at) || !lane ? null : { at, row: lane }}
        pick=${pickLane}
        ticks=${ticksOf(pools.count, { hour: 10, day: 18, week: 24 }[chosen],
          (n) => (chosen === "week" ? dayName(pools.origin + n * layout.lane) : formatClock(pools.origin + n * layout.lane).slice(0, 5)))} /><//>
    ${!Number.isNaN(at) && html`<${BucketJobs} key=${`${at} ${lane}`} data=${data} at=${at} length=${lane ? layout.lane : layout.cell} pool=${lane ?? pool} />`}
    <div class="cards"><${Busiest} data=${data} pool=${pool} /><${Peaks} data=${data} reload=${reload} /></div>`;
}

function Summary({ data, pool }) {
  const { peak } = data;
  const crowded = data.proposals.length > 0;
  const notes = [data.omitted > 0 && `${number(data.omitted)} ${data.omitted === 1 ? "job runs" : "jobs run"} more often than every minute and ${data.omitted === 1 ? "is" : "are"} not counted`,
    data.left_out > 0 && `${number(data.left_out)} jobs are not counted because there are too many jobs or schedules`, data.timers_until
    && `timers after ${formatTime(data.timers_until)} are not counted`].filter(Boolean);
  if (!peak) return html`<${Verdict} tone="calm">Nothing else is due in this time.<//>${notes.map((text) => html`<p class="mute">${text}.</p>`)}`;
  return html`<${Verdict} tone=${crowded ? "warn" : "good"}>${runs(data.total)} expected${pool && ` in all pools`}. Busiest ${bucketWord(data)}:${" "}
      <${Link} to="calendar" terms=${{ ...Object.fromEntries(query.value), at: peak.at, in: "" }}>${formatClock(peak.at).slice(0, 5)} with ${runs(peak.fires)}<//>
        ${peak.fires > 1 && `, most of them in the pool “${peak.pool}”`}${crowded
        ? `; ${data.proposals.length === 1 ? "1 peak" : `${data.proposals.length} peaks`} could be spread` : ""}.<//>
    ${notes.map((text) => html`<p class="mute">${text}.</p>`)}`;
}

function Busiest({ data, pool }) {
  const most = data.buckets.map((bucket) => ({ ...bucket, count: countOf(bucket, pool) })).filter((bucket) => bucket.count).sort((a, b) => b.count - a.count
    || Date.parse(a.at) - Date.parse(b.at)).slice(0, BUSIEST_ROWS);
  return html`<${Card} title="Busiest" aside=${html`<span class="mute">per ${bucketWord(data)}</span>`}>
    <div class="table" role="group" aria-label="Busiest intervals" tabindex="0"><table><caption class="unseen">Busiest intervals</caption>
    <thead><tr><th scope="col">From</th><th scope="col" class="number">Fires</th><th scope="col">By pool</th></tr></thead>
    <tbody>${most.map((bucket) => html`<tr key=${bucket.at}><th scope="row">
      <${Link} to="calendar" terms=${{ ...Object.fromEntries(query.value), at: bucket.at, in: "" }}>${minute(bucket.at)}<//></th>
      <td class="number">${number(bucket.count)}</td><td>
        ${Object.entries(bucket.fires).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name, count]) => `${name} ${number(count)}`).join(" · ")}</td>
        </tr>`)}</tbody></table></div><//>`;
}

// The jobs of a cell. The forecast contains only counts, so the jobs of the pool are read and each distinct schedule is previewed once.

function bySchedule(jobs) {
  const groups = new Map();
  for (const job of jobs) {
    for (const schedule of job.schedules.filter((one) => !("delay" in one))) {
      const text = write(schedule); // includes the seed of hashed fields
      if (!groups.has(text)) groups.set(text, { schedule, jobs: [] });
      groups.get(text).jobs.push(job);
    }
  }
  return [...groups.values()].sort((a, b) => b.jobs.length - a.jobs.length);
}

/** Whether a schedule fires in the interval, judged by its next fire; undefined if that comes earlier. */
function firesByNextAt(group, from, to) {
  const next = Date.parse(group.jobs.find((job) => job.schedules.length === 1 && job.next_at)?.next_at);
  return next >= to ? false : next >= from ? true : undefined;
}

async function firesIn(group, from, to, stop) {
  const before = new Date(from - 1).toISOString();
  const { data } = await request("POST", "schedules/preview", { body: { schedule: group.schedule, n: 1, from: before }, signal: stop });
  return data.fires.some((fire) => Date.parse(fire.at) < to);
}

/** Merges groups with the same expression; hashed fields may give each job other times. */
function byExpression(groups) {
  const found = new Map();
  for (const group of groups) found.set(expression(group.schedule), [...(found.get(expression(group.schedule)) ?? []), ...group.jobs]);
  return [...found].map(([text, jobs]) => ({ text, jobs })).sort((a, b) => b.jobs.length - a.jobs.length);
}

async function jobsOf(pool, at, length, stop) {
  const page = await fetchPages("jobs", { pool, state: "enabled", sort: "name" }, MAX_JOBS, stop);
  const groups = bySchedule(page.items);
  const [firing, open] = [groups.filter((group) => firesByNextAt(group, at, at + length)),
    groups.filter((group) => firesByNextAt(group, at, at + length) === undefined)];
  for (let n = 0; n < Math.min(open.length, MAX_PREVIEWS); n += PREVIEW_CONCURRENCY) {
    const previewed = open.slice(n, n + PREVIEW_CONCURRENCY);
    const results = await Promise.all(previewed.map((group) => firesIn(group, at, at + length, stop)));
    firing.push(...previewed.filter((_, place) => results[place]));
  }
  return { groups: byExpression(firing), isWhole: !page.next_cursor && open.length <= MAX_PREVIEWS };
}

function BucketJobs({ data, at, length, pool }) {
  const found = useData((stop) => jobsOf(pool, at, length, stop), [at, length, pool], { once: true });
  const count = data.buckets.filter((bucket) => Date.parse(bucket.at) >= at
    && Date.parse(bucket.at) < at + length).reduce((sum, bucket) => sum + countOf(bucket, pool), 0);
  const close = html`<button type="button" class="quiet" onClick=${() => setQuery({ at: "", in: "" })}>Close</button>`;
  return html`<${Card} title=${`${minute(at)}: ${runs(count)}${pool ? ` in ${pool}` : ""}`} wide=${true} aside=${close}>
    <${Loading} of=${found}>${({ groups, isWhole }) => html`
      ${groups.length === 0 ? html`<p class="mute">
        ${isWhole ? "No job's schedule has a time in this interval. The count comes from timers, jitter or fixed delays."
        : "None of the jobs examined runs in this interval."}</p>`
        : html`<div class="table" role="group" aria-label="Jobs that fire in this interval, by schedule" tabindex="0"><table>
        <caption class="unseen">Jobs that fire in this interval, by schedule</caption>
        <thead><tr><th scope="col">Schedule</th><th scope="col" class="number">Jobs</th><th scope="col">Names</th></tr></thead>
        <tbody>${groups.map((group) => html`<tr key=${group.text}><th scope="row"><code>${group.text}</code></th><td class="number">
          ${number(group.jobs.length)}</td>
          <td>${group.jobs.slice(0, 8).map((job) => html`<${Link} to=${`jobs/${part(job.job_id)}`} terms=${{ tab: "schedule" }}>
            ${job.name}<//> `)}${group.jobs.length > 8 && html`<span class="mute">and ${number(group.jobs.length - 8)} more</span>`}</td></tr>`)}</tbody>
            </table></div>`}
      <p>${!isWhole && html`<span class="mute">Not all jobs were examined. </span>`}
        <${Link} to="jobs" terms=${{ pool, state: "enabled" }}>All jobs${pool && ` in ${pool}`}<//></p>`}<//><//>`;
}

// Peaks

const shellQuote = (text) => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The suggestion as command line options. */
function options(proposal) {
  const { schedule, jitter } = proposal.suggestion;
  const seconds = proposal.schedule.seconds ? " --seconds" : "";
  return [schedule?.cron && `--cron ${shellQuote(schedule.cron)}${seconds}`, jitter && `--jitter ${shellQuote(jitter)}`].filter(Boolean).join(" ");
}

const suggestionText = (suggestion) => (suggestion.jitter ? `jitter ${suggestion.jitter}` : suggestion.schedule?.cron ?? write(suggestion));

/** The jobs of a peak: those with exactly this schedule. */
async function peakJobs(proposal) {
  const page = await fetchPages("jobs", { state: "enabled", sort: "name" }, 2000);
  const wanted = write(proposal.schedule);
  return page.items.filter((job) => job.schedules.length === 1 && write(job.schedules[0]) === wanted && !job.jitter);
}

async function spreadPeak(proposal, reload) {
  const jobs = await perform(() => peakJobs(proposal));
  if (!jobs) return;
  if (!jobs.length || jobs.length > MAX_CHANGED_JOBS) {
    return void notify(jobs.length ? `${number(jobs.length)} jobs are too many to change here. Use the command for each job.`
      : "None of these jobs is among the first 2,000", { tone: "warn" });
  }
  confirm({
    title: `Spread ${number(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}?`,
    verb: `Change ${number(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}`,
    count: jobs.length,
    samples: jobs.map((job) => job.name),
    note: html`Each job gets <code>${suggestionText(proposal.suggestion)}</code> as a new revision, which can be rolled back. Jobs that were changed
      meanwhile are skipped.${jobs.length > 5 && " The first jobs:"}`,
    act: async () => {
      let changed = 0;
      for (const job of jobs) {
        const change = request("PATCH", `jobs/${part(job.job_id)}`, { body: proposal.suggestion, etag: `"${job.revision}"` });
        await change.then(() => (changed += 1), (error) => error.status === 412 || Promise.reject(error));
      }
      reload();
      return changed;
    },
    done: (changed) => `Changed ${number(changed)} of ${number(jobs.length)} jobs`,
  });
}

function Peaks({ data, reload }) {
  if (!data.proposals.length) return html`<${Card} title="Peaks"><p class="mute">
    <span aria-hidden="true">✓</span> No peaks: the runs are spread evenly.</p><//>`;
  return html`<${Card} title="Peaks" aside=${html`<span class="mute">how to spread them</span>`}><ul class="herds">
    ${data.proposals.map((one) => html`<li key=${`${one.at} ${one.description}`}>
    <p><strong>${minute(one.at)}</strong> ${one.description} <code class="mute">
      ${expression(one.schedule)}</code> <span class="mute">· ${number(one.jobs)} jobs, ${runs(one.fires)}</span></p>
    <dl class="spread"><div><dt>Before</dt><dd><${Level} count=${one.before} most=${one.before} tone="warn" /></dd></div><div><dt>After</dt><dd>
      <${Level} count=${one.after} most=${one.before} tone="good" /></dd></div></dl>
    <p><span aria-hidden="true">→</span> <code>${suggestionText(one.suggestion)}</code> <span class="mute">the busiest ${bucketWord(data)} would have ${runs(one.peak)}</span>
      </p>
    <div class="tools"><${Command} text=${`bellringer jobs update JOB ${options(one)}`} />
      ${may("editor") && html`<button type="button" onClick=${() => spreadPeak(one, reload)}>Spread…</button>`}</div></li>`)}</ul><//>`;
}

const Level = ({ count, most, tone }) => html`<span class="size tone-${tone}">
  <span class="fill" style=${{ width: `${Math.min(count / Math.max(most, 1), 1) * 100}%` }}></span></span> ${number(count)}`;
