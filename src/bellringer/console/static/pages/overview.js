// The overview: does it go well, what should somebody look at, and what happens about now.
import { html, useEffect, useMemo, useRef } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { useBeat } from "../lib/beat.js";
import { useData } from "../lib/load.js";
import { counted } from "../lib/pages.js";
import { clock, full, span } from "../lib/time.js";
import { Card, CopyAs, Empty, Link, Loading, When } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { Command, Snippet } from "../parts/command.js";
import { tell } from "../parts/dialog.js";
import { Gauge } from "../parts/gauge.js";
import { Segments, segment } from "../parts/segments.js";
import { Table } from "../parts/table.js";
import { Timeline } from "../parts/timeline.js";
import { Verdict } from "../parts/verdict.js";
import { whyJob } from "../parts/why.js";

const RANGES = { "1h": "1 hour", "6h": "6 hours", "24h": "24 hours" };
const BEAT = 15; // seconds: time goes on, though nothing happens
const TASKS = 8; // shown of each ranking

export default function Overview() {
  const range = segment("range", RANGES, "1h");
  const found = useData((stop) => get("overview", { range }, stop), [range]);
  useBeat(found, BEAT);
  return html`<h1 class="unseen">Overview</h1>
    <${Loading} of=${found}>${(data) => html`<${Shown} data=${data} range=${range} />`}<//>`;
}

/** How far somebody has come who has just begun: nothing, a job, a run. */
function stageOf(data) {
  if (data.tasks.items.length > 0 || data.timing.started > 0) return "run";
  return data.jobs.total.value > 0 ? "job" : "nothing";
}

function Shown({ data, range }) {
  const stage = stageOf(data);
  const was = useRef(stage);
  const began = useRef(stage === "nothing"); // who has seen this page empty is told how it goes on
  useEffect(() => {
    if (began.current && was.current !== stage) tell(`Your first ${stage} is here`);
    was.current = stage;
  }, [stage]);
  if (stage === "nothing") return html`<${Welcome} data=${data} />`;
  return html`${began.current && stage === "job" && html`<${Waiting} lanes=${data.timeline.lanes} />`}<${Verdict} tone=${data.verdict.tone}>
    <${Linked} text=${data.verdict.text} pool=${data.attention.find((item) => item.text === data.verdict.text)?.pool} /><//>
    <${Sums} data=${data} />
    <${Attention} items=${data.attention} />
    <${Card} title="About now" wide=${true} aside=${html`<span class="mute">an hour behind, an hour ahead</span>`}>
      ${data.timeline.lanes.length ? html`<${Timeline} of=${data.timeline} now=${data.now} />`
        : html`<p class="mute">No job has run or will run in this time.</p>`}<//>
    <div class="tools"><${Segments} name="range" label="how far to look back" of=${RANGES} usual="1h" /><span class="gap"></span>
      <${CopyAs} cli="bellringer objective" path=${`overview?range=${range}`} /></div>
    <${Charts} data=${data} />
    <div class="cards"><${Pools} pools=${data.pools} /><${Slowest} tasks=${data.tasks} /><${Failing} tasks=${data.tasks} /></div>`;
}

// Which list is behind a number of the verdict: the first that fits a part of the sentence.
const BEHIND = [
  [/(?:more than )?[\d,]+ jobs? (?:is|are) failing/i, "jobs", { state: "failing" }],
  [/(?:more than )?[\d,]+ jobs? (?:is|are) late/i, "jobs", { state: "late" }],
  [/(?:more than )?[\d,]+ of them paused/i, "jobs", { state: "paused" }],
  [/(?:more than )?[\d,]+ dead letters?/i, "dead-letters", {}],
  [/(?:more than )?[\d,]+ runs? waits?/i, "runs", { state: "queued" }],
  [/[\d,]+ shards?(?: of [\d,]+)?/i, "cluster", {}],
  [/(?:more than )?[\d,]+ jobs?/i, "jobs", {}],
];

function Linked({ text, pool }) {
  for (const [pattern, to, terms] of BEHIND) {
    const fits = pattern.exec(text);
    if (fits) {
      const [before, after] = [text.slice(0, fits.index), text.slice(fits.index + fits[0].length)];
      return html`<${Linked} text=${before} /><${Link} to=${to} terms=${to === "runs" ? { ...terms, pool } : terms}>${fits[0]}<//><${Linked} text=${after} />`;
    }
  }
  return text;
}

function Sums({ data }) {
  const { jobs, dead_letters: dead, workers, scheduler, timing } = data;
  const objective = `${timing.late} of ${timing.started} started later than ${timing.within}; the objective is ${+(timing.target * 100).toFixed(3)} %`;
  const share = timing.compliance === null ? "–" : `${+(timing.compliance * 100).toFixed(2)} %`;
  const one = (to, terms, number, word, tone = "") => html`<li><${Link} to=${to} terms=${terms} class=${tone}><strong>${number}</strong> ${word}<//></li>`;
  return html`<ul class="sums" aria-label="numbers">
    ${one("jobs", {}, counted(jobs.total), jobs.total.value === 1 ? "job" : "jobs")}
    ${one("jobs", { state: "late" }, counted(jobs.late), "late", jobs.late.value ? "tone-warn" : "")}
    ${one("jobs", { state: "failing" }, counted(jobs.failing), "failing", jobs.failing.value ? "tone-bad" : "")}
    ${one("jobs", { state: "paused" }, counted(jobs.paused), "paused")}
    ${one("dead-letters", {}, counted(dead), dead.value === 1 ? "dead letter" : "dead letters", dead.value ? "tone-bad" : "")}
    ${one("workers", {}, `${workers.busy}/${workers.slots}`, `slots busy, ${workers.live} ${workers.live === 1 ? "worker" : "workers"}`,
      workers.live ? "" : "tone-bad")}
    ${one("cluster", {}, `${scheduler.shards.held}/${scheduler.shards.total}`, "shards held", scheduler.shards.free ? "tone-bad" : "")}
    <li title=${objective}><strong>${share}</strong> in time${timing.burn >= 1
      && html` <span class="tone-warn"><span aria-hidden="true">⚠</span> budget burns ${+timing.burn.toFixed(1)}×</span>`}</li>
  </ul>`;
}

const WHERE = { no_scheduler: "cluster", shards_free: "cluster", waits_for: "cluster", firing_late: "cluster", dead_letters: "dead-letters" };

function Item({ item }) {
  const where = item.job_id ? [`jobs/${part(item.job_id)}`] : item.pool ? ["workers", { pool: item.pool }] : WHERE[item.kind] ? [WHERE[item.kind]] : null;
  const icon = item.tone === "bad" ? "✕" : "⚠";
  return html`<li><span class="state tone-${item.tone}"><span aria-hidden="true">${icon}</span> ${item.kind.replaceAll("_", " ")}</span>
    <span class="what">${where ? html`<${Link} to=${where[0]} terms=${where[1]}>${item.text}<//>` : item.text}${item.since
      && html` <span class="mute">since <${When} at=${item.since} /></span>`}</span>
    <span class="do">${item.job_id && html`<button type="button" aria-label=${`Why: ${item.job}`}
      onClick=${() => whyJob({ job_id: item.job_id, name: item.job })}>Why?</button>`}
      ${item.fix && html`<${Command} text=${item.fix} />`}</span></li>`;
}

function Attention({ items }) {
  return html`<${Card} title="Needs attention" wide=${true} aside=${items.length > 0 && html`<span class="mute">${items.length}, the worst first</span>`}>
    ${items.length ? html`<ul class="attention">${items.map((item) => html`<${Item} key=${`${item.kind} ${item.job_id ?? item.pool}`} item=${item} />`)}</ul>`
      : html`<p class="mute"><span aria-hidden="true">✓</span> Nothing needs you just now.</p>`}<//>`;
}

const CHARTS = [
  { title: "Throughput", label: "runs started and succeeded", none: "Nothing has started in this time.",
    series: [["started", "busy", "started"], ["succeeded", "good", "succeeded"]] },
  { title: "Failures", label: "runs that gave up", none: "No run has given up in this time.", series: [["gave up", "bad", "failed"]] },
  { title: "Lateness", label: "lateness of starts, the slowest of a hundred", isTime: true, none: "No start is known in this time.",
    series: [["p99", "warn", "lateness_p99_ms"]] },
];

/** In words: what the chart adds up to, so that nobody needs to see it. */
function summary(points, { series, isTime }) {
  return series.map(([name, , field]) => {
    const values = points.map((point) => point[field]).filter((value) => value !== null);
    if (!values.length) return `${name}: not known`;
    return isTime ? `${name}: at most ${span(Math.max(...values) / 1000)}` : `${values.reduce((sum, value) => sum + value, 0).toLocaleString("en")} ${name}`;
  }).join(" · ");
}

const tick = (seconds) => clock(seconds * 1000).slice(0, 5);

/** Times as milliseconds while they are short, else as seconds. */
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
          label=${`${chart.label}, each ${span(step)}: ${summary(points, chart)}`} />`}<//>`)}</div>
    <details><summary>The charts as a table</summary>
      <div class="table points" role="group" aria-label=${`what was due or ended, each ${span(step)}`} tabindex="0"><table>
      <caption class="unseen">what was due or ended, each ${span(step)}</caption>
      <thead><tr><th scope="col">From</th>${["Started", "Late", "Succeeded", "Gave up",
        "Lateness p99"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${points.toReversed().filter((point) => point.started || point.failed
        || point.succeeded).map((point) => html`<tr key=${point.at}><th scope="row" title=${full(point.at)}>${clock(point.at).slice(0, 5)}</th>
        <td class="number">${point.started}</td><td class="number">${point.late}</td><td class="number">${point.succeeded ?? "–"}</td><td class="number">
          ${point.failed}</td>
        <td class="number">${point.lateness_p99_ms === null ? "–" : span(point.lateness_p99_ms / 1000)}</td></tr>`)}</tbody></table></div></details>
    ${data.series.looked_at.relation === "gte" && html`<p
      class="mute">Successes and lateness are of the newest ${data.series.looked_at.value.toLocaleString("en")} runs; further back they are not known.</p>`}`;
}

function Pools({ pools }) {
  return html`<${Card} title="Pools" aside=${html`<${Link} to="workers">all workers<//>`}>
    ${pools.length === 0 ? html`<p class="mute">No pool has work, and no worker serves one.</p>`
      : html`<div class="table" role="group" aria-label="Pools: how busy they are, and what waits" tabindex="0"><table>
      <caption class="unseen">Pools: how busy they are, and what waits</caption>
      <thead><tr><th scope="col">Pool</th><th scope="col">Busy</th><th scope="col" class="number">Ready</th>
        <th scope="col" class="number" title="for how long the first has waited">Oldest</th></tr></thead>
      <tbody>${pools.map((pool) => html`<tr key=${pool.pool}><th scope="row"><${Link} to="workers" terms=${{ pool: pool.pool }}>${pool.pool}<//>
        ${pool.paused && html` <span class="state tone-warn"><span aria-hidden="true">❚❚</span> paused</span>`}</th>
        <td><${Gauge} value=${pool.busy} most=${pool.slots} label=${`busy slots of ${pool.pool}`} waits=${pool.ready.value > 0} /></td>
        <td class="number">${pool.ready.value ? html`<${Link} to="runs" terms=${{ pool: pool.pool, state: "queued" }}>${counted(pool.ready)}<//>` : "0"}</td>
        <td class="number">${pool.oldest === null ? "–" : span(pool.oldest)}</td></tr>`)}</tbody></table></div>`}<//>`;
}

const task = { name: "Task", cell: (row) => html`<${Link} to="runs" terms=${{ task: row.task }}><code class="clip" title=${row.task}>${row.task}</code><//>` };
const number = (name, cell) => ({ name, class: "number", cell });

function Ranking({ title, tasks, rows, columns, none }) {
  const aside = html`<span class="mute">of ${counted(tasks.looked_at)} attempts</span>`;
  return html`<${Card} title=${title} aside=${aside}>
    ${rows.length ? html`<${Table} caption=${title} columns=${[task, ...columns]} rows=${rows.slice(0, TASKS)} id=${(row) => row.task} />`
    : html`<p class="mute">${none}</p>`}<//>`;
}

function Slowest({ tasks }) {
  const rows = tasks.items.filter((row) => row.p95 !== null).sort((a, b) => b.p95 - a.p95);
  const columns = [number("p50", (row) => span(row.p50)), number("p95", (row) => span(row.p95)),
    number("Attempts", (row) => row.attempts.toLocaleString("en"))];
  return html`<${Ranking} title="Slowest tasks" tasks=${tasks} rows=${rows} columns=${columns} none="No attempt has ended in this time." />`;
}

function Failing({ tasks }) {
  const rows = tasks.items.filter((row) => row.failures > 0).sort((a, b) => b.failures - a.failures);
  const columns = [number("Failures", (row) => row.failures.toLocaleString("en")),
    number("Share", (row) => `${Math.round((row.failures / row.attempts) * 100)} %`)];
  return html`<${Ranking} title="Most failing tasks" tasks=${tasks} rows=${rows} columns=${columns} none="No attempt has failed in this time." />`;
}

function Waiting({ lanes }) {
  const next = lanes.flatMap((lane) => lane.fires.slice(0, 1)).sort()[0];
  return html`<p class="first-run" role="status"><span class="beat"
    aria-hidden="true">◌</span> waiting for your first run … ${next && html`<span class="mute">due <${When} at=${next} /></span>`}</p>`;
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

/** No worker needed: servers call URLs by themselves. */
function curl() {
  const to = new URL("../api/v1/jobs", document.baseURI);
  const body = JSON.stringify({ name: "ping", schedule: { every: "1m" }, http: { url: "https://example.com/", method: "GET" } });
  return `curl -X POST '${to}' \\\n  -H "Authorization: Bearer $BELLRINGER_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${body}'`;
}

function Welcome({ data }) {
  const { live } = data.workers;
  return html`<${Verdict} tone=${data.verdict.tone === "bad" ? "bad" : "good"}>${data.verdict.text}<//>
    <${Empty} title="Ring your first bell">
      <p>A job is a task and when it is to run. Take one of these to a terminal; this page shows it as soon as it is there.</p>
      <div class="snippets">
        <${Snippet} title="Python" text=${PYTHON}><p>A task with its schedule, and a worker that runs it.</p><//>
        <${Snippet} title="Command line" text=${CLI}><p>A job for a task that a worker knows, and a run of it at once.</p><//>
        <${Snippet} title="curl" text=${curl()}><p>A URL that is called every minute: no worker is needed.</p><//>
      </div>
      <p class="first-run" role="status"><span class="beat" aria-hidden="true">◌</span> waiting for your first run … <span class="mute">
        ${live ? `${live} ${live === 1 ? "worker is" : "workers are"} there` : "no worker is there yet"}</span></p>
      <p><${Link} to="jobs/new" class="button">Or create a job here<//></p>
    <//>`;
}
