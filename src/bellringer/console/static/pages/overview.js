// Overview: health, items that need attention, and recent and upcoming runs.
import { html, useEffect, useRef } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { usePolling } from "../lib/polling.js";
import { useData } from "../lib/page_data.js";
import { formatCount } from "../lib/pages.js";
import { formatClock, formatTime, formatDuration } from "../lib/time.js";
import { Card, CopyAs, Empty, Lasting, Link, Loading, Time, copy } from "../parts/elements.js";
import { SmallChart, ZoomReset, isEmptyChart, rangeOfZoom, zoomRange, zoomText } from "../parts/chart.js";
import { AVERAGE, COUNT, MILLISECONDS, formatAverage } from "../parts/chart_scales.js";
import { Snippet } from "../parts/copyable_command.js";
import { notify } from "../parts/dialog.js";
import { Menu } from "../parts/menu.js";
import { Gauge } from "../parts/gauge.js";
import { Segments, segment } from "../parts/segmented_control.js";
import { Table } from "../parts/table.js";
import { Timeline } from "../parts/timeline.js";
import { Verdict } from "../parts/health_summary.js";
import { whyJob } from "../parts/why.js";

const RANGES = { "1h": "1 hour", "6h": "6 hours", "24h": "24 hours" };
const RANGE_SECONDS = { "1h": 3_600, "6h": 21_600, "24h": 86_400 };
const POLL_SECONDS = 15; // the page also changes with time
const TASKS = 8; // rows per ranking

export default function Overview() {
  const range = rangeOfZoom(segment("range", RANGES, "1h"), RANGE_SECONDS); // a link to an earlier time may need a longer range
  const found = useData((stop) => get("overview", { range }, stop), [range]);
  usePolling(found, POLL_SECONDS);
  return html`<h1 class="unseen">Overview</h1>
    <${Loading} of=${found} shape="page">${(data) => html`<${OverviewContent} data=${data} range=${range} />`}<//>`;
}

/** Progress of a new user: nothing, a job, a run. */
function stageOf(data) {
  if (data.tasks.items.length > 0 || data.timing.started > 0) return "run";
  return data.jobs.total.value > 0 ? "job" : "nothing";
}

function OverviewContent({ data, range }) {
  const stage = stageOf(data);
  const was = useRef(stage);
  const began = useRef(stage === "nothing"); // a user who has seen the empty page gets notifications about the next steps
  useEffect(() => {
    if (began.current && was.current !== stage) notify(`Your first ${stage} has arrived`);
    was.current = stage;
  }, [stage]);
  if (stage === "nothing") return html`<${Welcome} data=${data} />`;
  const zoom = zoomRange();
  const isPast = zoom && zoom[1] < Date.parse(data.series.points[0]?.at) / 1000;
  return html`${began.current && stage === "job" && html`<${Waiting} lanes=${data.timeline.lanes} />`}
    <${Health} verdict=${data.verdict} items=${data.attention} />
    <${Attention} items=${data.attention} />
    <${KeyFigures} data=${data} />
    <div class="tools"><h2>Activity</h2><${Segments} name="range" label="Range" of=${RANGES} usual="1h" clear=${["zoom"]} /><${ZoomReset} /><span class="gap"></span>
      <${CopyAs} share=${{ terms: () => shareTerms(data, range) }} cli="bellringer objective" path=${`overview?range=${range}`} /></div>
    ${isPast && html`<p class="tone-warn" role="status"><${Icon} name="info" /> The overview keeps 24 hours, and the time of this link is older. <${Link} to="runs"
      terms=${{ from: new Date(zoom[0] * 1000).toISOString(), to: new Date(zoom[1] * 1000).toISOString() }}>Show the runs of that time<//></p>`}
    <${Charts} data=${data} range=${range} />
    <${Card} title="Timeline" wide=${true} aside=${html`<span class="mute">last hour and next hour</span>`}>
      ${data.timeline.lanes.length ? html`<${Timeline} of=${data.timeline} now=${data.now} />`
        : html`<p class="mute">No job ran in the last hour, and none will run in the next.</p>`}<//>
    <div class="cards tops"><${Pools} pools=${data.pools} /><${Failing} tasks=${data.tasks} range=${range} /><${Slowest} tasks=${data.tasks} range=${range} /></div>`;
}

/** Makes the shown time absolute: the charts of the link are zoomed to it. */
function shareTerms({ series }, range) {
  const [from, to] = zoomRange() ?? [Date.parse(series.points[0].at) / 1000, Date.parse(series.points.at(-1).at) / 1000 + series.step];
  return { range, zoom: zoomText(from, to) };
}

/** The health of the installation in one sentence. What needs attention follows below; problems that are not listed there are added here. */
function Health({ verdict, items }) {
  const [worst, ...others] = verdict.problems;
  if (!worst) return html`<${Verdict} tone=${verdict.tone}><${VerdictText} text=${verdict.text} /><//>`;
  const listed = new Set(items.map((item) => item.kind));
  const more = others.filter((problem) => !listed.has(problem.kind));
  return html`<${Verdict} tone=${verdict.tone} more=${more.length > 0 && html`<ul class="problems" aria-label="More problems">${more.map((problem) => html`<li
    key=${problem.kind} class="tone-${problem.tone}"><${Icon} name=${problem.tone === "bad" ? "cross" : "warning"} /> <span><${ProblemText} problem=${problem} /></span></li>`)}</ul>`}>
    <${ProblemText} problem=${worst} /><//>`;
}

function ProblemText({ problem }) {
  if (!problem.link) return problem.text;
  const [path, search] = problem.link.split("?");
  return html`<${Link} to=${path} terms=${Object.fromEntries(new URLSearchParams(search))}>${problem.text}<//>`;
}

// Links for numbers in the sentence of a healthy installation: the first pattern that matches a part of it.
const VERDICT_LINKS = [
  [/(?:more than )?[\d,]+ of them paused/i, "jobs", { state: "paused" }],
  [/(?:more than )?[\d,]+ jobs?/i, "jobs", {}],
];

function VerdictText({ text }) {
  for (const [pattern, to, terms] of VERDICT_LINKS) {
    const match = pattern.exec(text);
    if (match) {
      const [before, after] = [text.slice(0, match.index), text.slice(match.index + match[0].length)];
      return html`<${VerdictText} text=${before} /><${Link} to=${to} terms=${terms}>${match[0]}<//><${VerdictText} text=${after} />`;
    }
  }
  return text;
}

const formatTimes = (factor) => (factor < 10 ? String(+factor.toFixed(1)) : Math.round(factor).toLocaleString("en"));

function KeyFigures({ data }) {
  const { jobs, dead_letters: dead, workers, scheduler, timing } = data;
  const objective = `${timing.late} of ${timing.started} started later than ${timing.within}${timing.missed ? `, ${timing.missed} were missed` : ""}; objective: ${+(timing.target * 100).toFixed(3)}%`;
  const share = timing.compliance === null ? "–" : `${+(timing.compliance * 100).toFixed(2)}%`;
  const one = (to, terms, number, word, tone = "") => html`<li><${Link} to=${to} terms=${terms} class=${tone}><strong>${number}</strong> ${word}<//></li>`;
  return html`<ul class="sums tiles" aria-label="Key figures">
    ${one("jobs", {}, formatCount(jobs.total), jobs.total.value === 1 ? "job" : "jobs")}
    ${one("jobs", { state: "late" }, formatCount(jobs.late), "late", jobs.late.value ? "tone-warn" : "")}
    ${one("jobs", { state: "failing" }, formatCount(jobs.failing), "failing", jobs.failing.value ? "tone-bad" : "")}
    ${one("jobs", { state: "paused" }, formatCount(jobs.paused), "paused")}
    ${one("dead-letters", {}, formatCount(dead), dead.value === 1 ? "dead letter" : "dead letters", dead.value ? "tone-bad" : "")}
    ${one("workers", {}, `${workers.busy}/${workers.slots}`, "slots busy")}
    ${one("workers", {}, workers.live.toLocaleString("en"), workers.live === 1 ? "worker" : "workers", workers.live ? "" : "tone-bad")}
    ${one("cluster", {}, `${scheduler.shards.held}/${scheduler.shards.total}`, "shards held", scheduler.shards.free ? "tone-bad" : "")}
    <li title=${objective}><strong>${share}</strong> on time${timing.burn >= 1
      && html` <span class="tone-warn"><${Icon} name="warning" /> ${formatTimes(timing.burn)} times the allowed share</span>`}</li>
    ${timing.missed_rate !== null && html`<li title=${`${timing.missed} of ${timing.expected} expected occurrences were missed; objective: at most ${+(timing.max_missed_rate * 100).toFixed(4)}%`}>
      <strong>${+(timing.missed_rate * 100).toFixed(4)}%</strong> missed${timing.missed_burn >= 1
      && html` <span class="tone-bad"><${Icon} name="warning" /> ${formatTimes(timing.missed_burn)} times the allowed share</span>`}</li>`}
  </ul>`;
}

const ITEM_NAMES = { pool_waits: "pool behind" };
const ITEM_PAGES = { database_slow: "cluster", loop_stalled: "cluster", no_workers: "workers", tenant_suspended: "tenants", stranded: "runs", workers_silent: "workers", task_paused: "workers",
  no_scheduler: "cluster", shards_free: "cluster", waits_for: "cluster", firing_late: "cluster", dead_letters: "dead-letters" };

function Item({ item }) {
  const where = item.job_id ? [`jobs/${part(item.job_id)}`] : item.run_id ? [`runs/${part(item.run_id)}`] : item.pool ? ["workers", { pool: item.pool }] : item.kind === "orphaned" ? ["jobs", { orphaned: "true" }] : ITEM_PAGES[item.kind] ? [ITEM_PAGES[item.kind]] : null;
  const icon = item.tone === "bad" ? "cross" : "warning";
  const lasting = item.since && item.kind !== "pool_waits"; // its text says for how long
  const text = lasting ? item.text.replace(/\.$/, "") : item.text;
  const explain = item.job_id && (() => whyJob({ job_id: item.job_id, name: item.job }));
  return html`<li><span class="state tone-${item.tone}"><${Icon} name=${icon} /> ${ITEM_NAMES[item.kind] ?? item.kind.replaceAll("_", " ")}</span>
    <span class="what">${where ? html`<${Link} to=${where[0]} terms=${where[1]}>${text}<//>` : text}${lasting
      && html` <span class="mute">· <${Lasting} since=${item.since} /></span>`}${item.error && html`<span class="error" title=${item.error}>${item.error.replace(/^NodesFailed: /, "")}</span>`}</span>
    <span class="do">${explain && html`<button type="button" aria-label=${`Explain: ${item.job}`} onClick=${explain}>Explain</button>`}
      ${item.fix && html`<${Menu} label=${`More: ${item.text}`} items=${[{ text: `Copy ${item.fix}`, icon: "copy", act: () => copy(item.fix).then(() => notify("Copied the command")) }]} />`}</span></li>`;
}

/** Without items, the verdict says that all is well. */
function Attention({ items }) {
  if (!items.length) return null;
  return html`<${Card} title="Needs attention" wide=${true} aside=${items.length > 1 && html`<span class="mute">${items.length} problems, worst first</span>`}>
    <ul class="attention">${items.map((item) => html`<${Item} key=${`${item.kind} ${item.run_id ?? item.job_id ?? item.pool}`} item=${item} />`)}</ul><//>`;
}

const known = (value) => value !== null && value !== undefined;
const ms = (value) => formatDuration(value / 1000);
const count = (value) => Math.round(value).toLocaleString("en");
const total = (points, field) => points.reduce((sum, point) => sum + (point[field] ?? 0), 0);
const highest = (points, field) => Math.max(0, ...points.map((point) => point[field] ?? 0));

const ALMOST_NONE = 0.1; // runs, averaged over a point of the chart

/** The average of the points, and the highest one. */
function summarizeAverages(points, field) {
  const values = points.map((point) => point[field]).filter(known);
  const mean = values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
  const top = Math.max(0, ...values);
  return top < ALMOST_NONE ? "almost none" : `${formatAverage(mean)} on average, at most ${formatAverage(top)}`;
}

// Small charts side by side. draw: [name, tone, value of a point, kind of line]; none: what is said in place of the chart.
const CHARTS = [
  { title: "Throughput", label: "runs started and failed", none: "No run started.", scale: COUNT,
    draw: [["started", "busy", (point) => point.started, "bars"], ["failed", "bad", (point) => point.failed, "bars"]],
    summary: (points) => `${count(total(points, "started"))} started, ${count(total(points, "failed"))} failed` },
  { title: "Late and missed", label: "runs that started late, and missed occurrences", none: "Nothing was late or missed.", scale: COUNT,
    draw: [["late", "warn", (point) => point.late, "bars"], ["missed", "bad", (point) => point.missed, "bars"]],
    summary: (points) => `${count(total(points, "late"))} late, ${count(total(points, "missed"))} missed` },
  { title: "Lateness", label: "median and 99th percentile of the lateness", none: "No lateness was measured.", scale: MILLISECONDS, bands: [[0, 1, "warn"]],
    draw: [["p99", "warn", (point) => point.lateness_p99_ms], ["p50", "busy", (point) => point.lateness_p50_ms]],
    summary: (points) => `p99 up to ${ms(highest(points, "lateness_p99_ms"))}` },
  { title: "Waiting runs", label: "due runs that waited for a slot, on average", none: "No waiting time was measured.", scale: AVERAGE,
    draw: [["waiting", "calm", (point) => point.waiting, "area"]],
    summary: (points) => summarizeAverages(points, "waiting") },
  { title: "Executing runs", label: "runs that executed at the same time, on average", none: "No busy time was measured.", scale: AVERAGE,
    draw: [["executing", "busy", (point) => point.busy, "area"]],
    summary: (points) => summarizeAverages(points, "busy") },
];

/** Charts that have nothing to draw are one line of text. */
function Charts({ data, range }) {
  const { points, step } = data.series;
  const drawn = CHARTS.filter((chart) => !isEmptyChart(chart, points));
  const none = CHARTS.filter((chart) => !drawn.includes(chart));
  if (!drawn.length) return html`<p class="mute">Nothing started in the last ${RANGES[range].replace(/^1 /, "")}.</p>`;
  return html`<div class="small-charts">${drawn.map((chart) => html`<${SmallChart} key=${chart.title} ...${chart} points=${points} summary=${chart.summary(points)}
      label=${`${chart.label}, per ${formatDuration(step)}: ${chart.summary(points)}`} />`)}</div>
    ${none.length > 0 && html`<p class="mute">${none.map((chart) => chart.none).join(" ")}</p>`}
    <details><summary>Charts as a table</summary>
      <div class="table rows points" role="group" aria-label=${`Runs per ${formatDuration(step)}`} tabindex="0"><table>
      <caption class="unseen">Runs per ${formatDuration(step)}</caption>
      <thead><tr><th scope="col">From</th>${["Started", "Succeeded", "Failed", "Late", "Missed", "Lateness p50", "p99", "Waiting",
        "Executing"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${points.toReversed().filter((point) => point.started || point.failed || point.missed || point.waiting
        || point.succeeded).map((point) => html`<tr key=${point.at}><th scope="row" title=${formatTime(point.at)}>${formatClock(point.at).slice(0, 5)}</th>
        ${["started", "succeeded", "failed", "late", "missed"].map((field) => html`<td class="number" data-label=${field[0].toUpperCase() + field.slice(1)}>${point[field] ?? "–"}</td>`)}
        ${["lateness_p50_ms", "lateness_p99_ms"].map((field) => html`<td class="number" data-label=${field === "lateness_p50_ms" ? "Lateness p50" : "Lateness p99"}>${known(point[field]) ? ms(point[field]) : "–"}</td>`)}
        <td class="number" data-label="Waiting">${known(point.waiting) ? formatAverage(point.waiting) : "–"}</td><td class="number" data-label="Executing">${known(point.busy) ? formatAverage(point.busy) : "–"}</td></tr>`)}</tbody></table></div></details>
    ${data.series.looked_at.relation === "gte" && html`<p
      class="mute">Successes, lateness, waiting and executing runs cover only the newest ${data.series.looked_at.value.toLocaleString("en")} runs.</p>`}`;
}

function Pools({ pools }) {
  return html`<${Card} title="Pools" aside=${html`<${Link} to="workers">All workers<//>`}>
    ${pools.length === 0 ? html`<p class="mute">No pool has runs or workers.</p>`
      : html`<div class="table rows" role="group" aria-label="Pools: utilization and backlog" tabindex="0"><table>
      <caption class="unseen">Pools: utilization and backlog</caption>
      <thead><tr><th scope="col">Pool</th><th scope="col">Busy</th><th scope="col" class="number" title="runs that are due and wait for a worker">Waiting</th>
        <th scope="col" class="number" title="of the runs that wait now">Longest wait</th></tr></thead>
      <tbody>${pools.map((pool) => html`<tr key=${pool.pool}><th scope="row" data-phone="title"><${Link} to="workers" terms=${{ pool: pool.pool }}>${pool.pool}<//>
        ${pool.paused && html` <span class="state tone-warn"><${Icon} name="pause" /> paused</span>`}</th>
        <td data-phone="side"><${Gauge} value=${pool.busy} most=${pool.slots} label=${`busy slots of ${pool.pool}`} waits=${pool.ready.value > 0} /></td>
        <td class="number" data-phone="line" data-short="waiting">${pool.ready.value ? html`<${Link} to="runs" terms=${{ pool: pool.pool, state: "queued" }}>${formatCount(pool.ready)}<//>` : "0"}</td>
        <td class="number" data-phone=${pool.oldest === null ? "hide" : "line"} data-short="longest wait">${pool.oldest === null ? "–" : formatDuration(pool.oldest)}</td></tr>`)}</tbody></table></div>`}<//>`;
}

const task = { name: "Task", phone: "title", cell: (row) => html`<${Link} to="runs" terms=${{ task: row.task }}><code class="clip" title=${row.task}>${row.task}</code><//>` };
const number = (name, cell, phone = "line") => ({ name, class: "number", cell, phone, short: name.toLowerCase() });

function Ranking({ title, tasks, range, rows, columns, none }) {
  const aside = html`<span class="mute" title=${`of ${formatCount(tasks.looked_at)} attempts`}>last ${RANGES[range].replace(/^1 /, "")}</span>`;
  return html`<${Card} title=${title} aside=${aside}>
    ${rows.length ? html`<${Table} caption=${title} columns=${[task, ...columns]} rows=${rows.slice(0, TASKS)} id=${(row) => row.task} />`
    : html`<p class="mute">${none}</p>`}<//>`;
}

function Slowest({ tasks, range }) {
  const rows = tasks.items.filter((row) => row.p95 !== null).sort((a, b) => b.p95 - a.p95);
  const columns = [number("p50", (row) => formatDuration(row.p50)), number("p95", (row) => formatDuration(row.p95), "side"),
    number("Attempts", (row) => row.attempts.toLocaleString("en"))];
  return html`<${Ranking} title="Slowest tasks" tasks=${tasks} range=${range} rows=${rows} columns=${columns} none="No attempt ended in this period." />`;
}

function Failing({ tasks, range }) {
  const rows = tasks.items.filter((row) => row.failures > 0).sort((a, b) => b.failures - a.failures);
  const columns = [number("Failed attempts", (row) => row.failures.toLocaleString("en"), "line"),
    number("Rate", (row) => html`<span title=${`${row.failures} of ${row.attempts} attempts`}>${Math.round((row.failures / row.attempts) * 100)}%</span>`, "side")];
  return html`<${Ranking} title="Failing tasks" tasks=${tasks} range=${range} rows=${rows} columns=${columns} none="No failed attempts in this period." />`;
}

function Waiting({ lanes }) {
  const next = lanes.flatMap((lane) => lane.fires.slice(0, 1)).sort()[0];
  return html`<p class="first-run" role="status"><span class="beat"><${Icon} name="circle-dashed" /></span> Waiting for your first run … ${next && html`<span class="mute">due <${Time} at=${next} /></span>`}</p>`;
}

const PYTHON = `cat > hello.py <<'END'
from bellringer import App, every

app = App()

@app.schedule(every("10s"))
@app.task
def hello() -> str:
    return "hello"
END
bellringer worker hello.py`;
const CLI = `bellringer jobs create hello hello.hello --every 10s
bellringer jobs trigger hello --wait`;

/** Needs no worker: servers execute HTTP jobs themselves. */
function curl() {
  const to = new URL("../api/v1/jobs", document.baseURI);
  const body = JSON.stringify({ name: "ping", schedule: { every: "1m" }, http: { url: "https://example.com/", method: "GET" } });
  return `curl -X POST '${to}' \\\n  -H "Authorization: Bearer $BELLRINGER_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}

function Welcome({ data }) {
  const { live } = data.workers;
  return html`<${Verdict} tone=${data.verdict.tone === "bad" ? "bad" : "good"}>${data.verdict.text}<//>
    <${Empty} title="Create your first job">
      <p>A job is a task with a schedule. Run one of these in a terminal; the job appears here as soon as it exists.</p>
      <div class="snippets">
        <${Snippet} title="Python" text=${PYTHON}><p>A task with a schedule, and a worker that runs it.</p><//>
        <${Snippet} title="Command line" text=${CLI}><p>A job for a task that a worker knows, and a manual run.</p><//>
        <${Snippet} title="curl" text=${curl()}><p>Calls a URL every minute. No worker is needed.</p><//>
      </div>
      <p class="first-run" role="status"><span class="beat"><${Icon} name="circle-dashed" /></span> Waiting for your first run … <span class="mute">
        ${live ? `${live} ${live === 1 ? "worker is" : "workers are"} running` : "no worker is running yet"}</span></p>
      <p><${Link} to="jobs/new" class="button">Or create a job here<//></p>
    <//>`;
}
