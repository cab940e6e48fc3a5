// Overview: health, items that need attention, and recent and upcoming runs.
import { html, useEffect, useMemo, useRef } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { usePolling } from "../lib/polling.js";
import { useData } from "../lib/page_data.js";
import { formatCount } from "../lib/pages.js";
import { formatClock, formatTime, formatDuration } from "../lib/time.js";
import { Card, CopyAs, Empty, Link, Loading, Time } from "../parts/elements.js";
import { Chart } from "../parts/chart.js";
import { Command, Snippet } from "../parts/copyable_command.js";
import { notify } from "../parts/dialog.js";
import { Gauge } from "../parts/gauge.js";
import { Segments, segment } from "../parts/segmented_control.js";
import { Table } from "../parts/table.js";
import { Timeline } from "../parts/timeline.js";
import { Verdict } from "../parts/health_summary.js";
import { whyJob } from "../parts/why.js";

const RANGES = { "1h": "1 hour", "6h": "6 hours", "24h": "24 hours" };
const POLL_SECONDS = 15; // the page also changes with time
const TASKS = 8; // rows per ranking

export default function Overview() {
  const range = segment("range", RANGES, "1h");
  const found = useData((stop) => get("overview", { range }, stop), [range]);
  usePolling(found, POLL_SECONDS);
  return html`<h1 class="unseen">Overview</h1>
    <${Loading} of=${found}>${(data) => html`<${OverviewContent} data=${data} range=${range} />`}<//>`;
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
  return html`${began.current && stage === "job" && html`<${Waiting} lanes=${data.timeline.lanes} />`}<${Verdict} tone=${data.verdict.tone}>
    <${VerdictText} text=${data.verdict.text} pool=${data.attention.find((item) => item.text === data.verdict.text)?.pool} /><//>
    <${KeyFigures} data=${data} />
    <${Attention} items=${data.attention} />
    <${Card} title="Timeline" wide=${true} aside=${html`<span class="mute">last hour and next hour</span>`}>
      ${data.timeline.lanes.length ? html`<${Timeline} of=${data.timeline} now=${data.now} />`
        : html`<p class="mute">No job ran or will run in this time.</p>`}<//>
    <div class="tools"><${Segments} name="range" label="Range" of=${RANGES} usual="1h" /><span class="gap"></span>
      <${CopyAs} cli="bellringer objective" path=${`overview?range=${range}`} /></div>
    <${Charts} data=${data} />
    <div class="cards"><${Pools} pools=${data.pools} /><${Slowest} tasks=${data.tasks} /><${Failing} tasks=${data.tasks} /></div>`;
}

// Links for numbers in the verdict: the first pattern that matches a part of the sentence.
const VERDICT_LINKS = [
  [/(?:more than )?[\d,]+ jobs? (?:is|are) failing/i, "jobs", { state: "failing" }],
  [/(?:more than )?[\d,]+ jobs? (?:is|are) late/i, "jobs", { state: "late" }],
  [/(?:more than )?[\d,]+ of them paused/i, "jobs", { state: "paused" }],
  [/(?:more than )?[\d,]+ dead letters?/i, "dead-letters", {}],
  [/(?:more than )?[\d,]+ runs? waits?/i, "runs", { state: "queued" }],
  [/[\d,]+ shards?(?: of [\d,]+)?/i, "cluster", {}],
  [/(?:more than )?[\d,]+ jobs?/i, "jobs", {}],
];

function VerdictText({ text, pool }) {
  for (const [pattern, to, terms] of VERDICT_LINKS) {
    const match = pattern.exec(text);
    if (match) {
      const [before, after] = [text.slice(0, match.index), text.slice(match.index + match[0].length)];
      return html`<${VerdictText} text=${before} /><${Link} to=${to} terms=${to === "runs" ? { ...terms, pool } : terms}>${match[0]}<//><${VerdictText} text=${after} />`;
    }
  }
  return text;
}

function KeyFigures({ data }) {
  const { jobs, dead_letters: dead, workers, scheduler, timing } = data;
  const objective = `${timing.late} of ${timing.started} started later than ${timing.within}${timing.missed ? `, ${timing.missed} were missed` : ""}; objective: ${+(timing.target * 100).toFixed(3)} %`;
  const share = timing.compliance === null ? "–" : `${+(timing.compliance * 100).toFixed(2)} %`;
  const one = (to, terms, number, word, tone = "") => html`<li><${Link} to=${to} terms=${terms} class=${tone}><strong>${number}</strong> ${word}<//></li>`;
  return html`<ul class="sums" aria-label="Key figures">
    ${one("jobs", {}, formatCount(jobs.total), jobs.total.value === 1 ? "job" : "jobs")}
    ${one("jobs", { state: "late" }, formatCount(jobs.late), "late", jobs.late.value ? "tone-warn" : "")}
    ${one("jobs", { state: "failing" }, formatCount(jobs.failing), "failing", jobs.failing.value ? "tone-bad" : "")}
    ${one("jobs", { state: "paused" }, formatCount(jobs.paused), "paused")}
    ${one("dead-letters", {}, formatCount(dead), dead.value === 1 ? "dead letter" : "dead letters", dead.value ? "tone-bad" : "")}
    ${one("workers", {}, `${workers.busy}/${workers.slots}`, `slots busy, ${workers.live} ${workers.live === 1 ? "worker" : "workers"}`,
      workers.live ? "" : "tone-bad")}
    ${one("cluster", {}, `${scheduler.shards.held}/${scheduler.shards.total}`, "shards held", scheduler.shards.free ? "tone-bad" : "")}
    <li title=${objective}><strong>${share}</strong> on time${timing.burn >= 1
      && html` <span class="tone-warn"><span aria-hidden="true">⚠</span> burn rate ${+timing.burn.toFixed(1)}</span>`}</li>
    ${timing.missed_rate !== null && html`<li title=${`${timing.missed} of ${timing.expected} expected occurrences were missed; objective: at most ${+(timing.max_missed_rate * 100).toFixed(4)} %`}>
      <strong>${+(timing.missed_rate * 100).toFixed(4)} %</strong> missed${timing.missed_burn >= 1
      && html` <span class="tone-bad"><span aria-hidden="true">⚠</span> burn rate ${+timing.missed_burn.toFixed(1)}</span>`}</li>`}
  </ul>`;
}

const ITEM_PAGES = { no_scheduler: "cluster", shards_free: "cluster", waits_for: "cluster", firing_late: "cluster", dead_letters: "dead-letters" };

function Item({ item }) {
  const where = item.job_id ? [`jobs/${part(item.job_id)}`] : item.run_id ? [`runs/${part(item.run_id)}`] : item.pool ? ["workers", { pool: item.pool }] : item.kind === "orphaned" ? ["jobs", { orphaned: "true" }] : ITEM_PAGES[item.kind] ? [ITEM_PAGES[item.kind]] : null;
  const icon = item.tone === "bad" ? "✕" : "⚠";
  return html`<li><span class="state tone-${item.tone}"><span aria-hidden="true">${icon}</span> ${item.kind.replaceAll("_", " ")}</span>
    <span class="what">${where ? html`<${Link} to=${where[0]} terms=${where[1]}>${item.text}<//>` : item.text}${item.since
      && html` <span class="mute">since <${Time} at=${item.since} /></span>`}</span>
    <span class="do">${item.job_id && html`<button type="button" aria-label=${`Explain: ${item.job}`}
      onClick=${() => whyJob({ job_id: item.job_id, name: item.job })}>Explain</button>`}
      ${item.fix && html`<${Command} text=${item.fix} />`}</span></li>`;
}

function Attention({ items }) {
  return html`<${Card} title="Needs attention" wide=${true} aside=${items.length > 0 && html`<span class="mute">${items.length}, worst first</span>`}>
    ${items.length ? html`<ul class="attention">${items.map((item) => html`<${Item} key=${`${item.kind} ${item.run_id ?? item.job_id ?? item.pool}`} item=${item} />`)}</ul>`
      : html`<p class="mute"><span aria-hidden="true">✓</span> Nothing needs attention.</p>`}<//>`;
}

const CHARTS = [
  { title: "Throughput", label: "runs started and succeeded", none: "No run started in this time.",
    series: [["started", "busy", "started"], ["succeeded", "good", "succeeded"]] },
  { title: "Failures", label: "dead runs", none: "No run died in this time.", series: [["dead", "bad", "failed"]] },
  { title: "Lateness", label: "lateness of starts, 99th percentile", isTime: true, none: "No data for this time.",
    series: [["p99", "warn", "lateness_p99_ms"]] },
];

/** The chart as text. */
function summary(points, { series, isTime }) {
  return series.map(([name, , field]) => {
    const values = points.map((point) => point[field]).filter((value) => value !== null);
    if (!values.length) return `${name}: unknown`;
    return isTime ? `${name}: at most ${formatDuration(Math.max(...values) / 1000)}` : `${values.reduce((sum, value) => sum + value, 0).toLocaleString("en")} ${name}`;
  }).join(" · ");
}

const tick = (seconds) => formatClock(seconds * 1000).slice(0, 5);

/** Durations are shown in milliseconds below a second, otherwise in seconds. */
function draw(points, { series, isTime }) {
  const long = isTime && series.some(([, , field]) => points.some((point) => point[field] >= 1000));
  const value = (point, field) => (long && point[field] !== null ? point[field] / 1000 : point[field]);
  const unit = isTime ? (long ? " s" : " ms") : "";
  const isEmpty = !series.some(([, , field]) => points.some((point) => point[field]));
  return { unit, isEmpty, series: series.map(([name, tone, field]) => ({ name, tone, values: points.map((point) => value(point, field)) })) };
}

function Charts({ data }) {
  const { points, step } = data.series;
  const key = JSON.stringify(points);
  const times = useMemo(() => points.map((point) => Date.parse(point.at) / 1000), [key]);
  const drawn = useMemo(() => CHARTS.map((chart) => draw(points, chart)), [key]);
  return html`<div class="cards trends">${CHARTS.map((chart,
    n) => html`<${Card} key=${chart.title} title=${chart.title} aside=${html`<span class="mute">${summary(points, chart)}</span>`}>
      ${drawn[n].isEmpty ? html`<p class="mute">${chart.none}</p>`
        : html`<${Chart} times=${times} series=${drawn[n].series} unit=${drawn[n].unit} tick=${tick}
          label=${`${chart.label} per ${formatDuration(step)}: ${summary(points, chart)}`} />`}<//>`)}</div>
    <details><summary>Charts as a table</summary>
      <div class="table points" role="group" aria-label=${`Runs per ${formatDuration(step)}`} tabindex="0"><table>
      <caption class="unseen">Runs per ${formatDuration(step)}</caption>
      <thead><tr><th scope="col">From</th>${["Started", "Late", "Succeeded", "Dead",
        "Lateness p99"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${points.toReversed().filter((point) => point.started || point.failed
        || point.succeeded).map((point) => html`<tr key=${point.at}><th scope="row" title=${formatTime(point.at)}>${formatClock(point.at).slice(0, 5)}</th>
        <td class="number">${point.started}</td><td class="number">${point.late}</td><td class="number">${point.succeeded ?? "–"}</td><td class="number">
          ${point.failed}</td>
        <td class="number">${point.lateness_p99_ms === null ? "–" : formatDuration(point.lateness_p99_ms / 1000)}</td></tr>`)}</tbody></table></div></details>
    ${data.series.looked_at.relation === "gte" && html`<p
      class="mute">Successes and lateness cover only the newest ${data.series.looked_at.value.toLocaleString("en")} runs.</p>`}`;
}

function Pools({ pools }) {
  return html`<${Card} title="Pools" aside=${html`<${Link} to="workers">All workers<//>`}>
    ${pools.length === 0 ? html`<p class="mute">No pool has runs or workers.</p>`
      : html`<div class="table" role="group" aria-label="Pools: utilization and backlog" tabindex="0"><table>
      <caption class="unseen">Pools: utilization and backlog</caption>
      <thead><tr><th scope="col">Pool</th><th scope="col">Busy</th><th scope="col" class="number">Ready</th>
        <th scope="col" class="number" title="Wait of the oldest ready run">Oldest</th></tr></thead>
      <tbody>${pools.map((pool) => html`<tr key=${pool.pool}><th scope="row"><${Link} to="workers" terms=${{ pool: pool.pool }}>${pool.pool}<//>
        ${pool.paused && html` <span class="state tone-warn"><span aria-hidden="true">❚❚</span> paused</span>`}</th>
        <td><${Gauge} value=${pool.busy} most=${pool.slots} label=${`busy slots of ${pool.pool}`} waits=${pool.ready.value > 0} /></td>
        <td class="number">${pool.ready.value ? html`<${Link} to="runs" terms=${{ pool: pool.pool, state: "queued" }}>${formatCount(pool.ready)}<//>` : "0"}</td>
        <td class="number">${pool.oldest === null ? "–" : formatDuration(pool.oldest)}</td></tr>`)}</tbody></table></div>`}<//>`;
}

const task = { name: "Task", cell: (row) => html`<${Link} to="runs" terms=${{ task: row.task }}><code class="clip" title=${row.task}>${row.task}</code><//>` };
const number = (name, cell) => ({ name, class: "number", cell });

function Ranking({ title, tasks, rows, columns, none }) {
  const aside = html`<span class="mute">of ${formatCount(tasks.looked_at)} attempts</span>`;
  return html`<${Card} title=${title} aside=${aside}>
    ${rows.length ? html`<${Table} caption=${title} columns=${[task, ...columns]} rows=${rows.slice(0, TASKS)} id=${(row) => row.task} />`
    : html`<p class="mute">${none}</p>`}<//>`;
}

function Slowest({ tasks }) {
  const rows = tasks.items.filter((row) => row.p95 !== null).sort((a, b) => b.p95 - a.p95);
  const columns = [number("p50", (row) => formatDuration(row.p50)), number("p95", (row) => formatDuration(row.p95)),
    number("Attempts", (row) => row.attempts.toLocaleString("en"))];
  return html`<${Ranking} title="Slowest tasks" tasks=${tasks} rows=${rows} columns=${columns} none="No attempt ended in this time." />`;
}

function Failing({ tasks }) {
  const rows = tasks.items.filter((row) => row.failures > 0).sort((a, b) => b.failures - a.failures);
  const columns = [number("Failures", (row) => row.failures.toLocaleString("en")),
    number("Share", (row) => `${Math.round((row.failures / row.attempts) * 100)} %`)];
  return html`<${Ranking} title="Most failing tasks" tasks=${tasks} rows=${rows} columns=${columns} none="No attempt failed in this time." />`;
}

function Waiting({ lanes }) {
  const next = lanes.flatMap((lane) => lane.fires.slice(0, 1)).sort()[0];
  return html`<p class="first-run" role="status"><span class="beat"
    aria-hidden="true">◌</span> Waiting for your first run … ${next && html`<span class="mute">due <${Time} at=${next} /></span>`}</p>`;
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
      <p class="first-run" role="status"><span class="beat" aria-hidden="true">◌</span> Waiting for your first run … <span class="mute">
        ${live ? `${live} ${live === 1 ? "worker is" : "workers are"} running` : "no worker is running yet"}</span></p>
      <p><${Link} to="jobs/new" class="button">Or create a job here<//></p>
    <//>`;
}
