// The list of workflows with their latest and next runs.
import { html, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { zone } from "../lib/preferences.js";
import { navigate, query } from "../lib/router.js";
import { LOCAL, formatDuration } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { Snippet } from "../parts/copyable_command.js";
import { Chips, Search } from "../parts/filters.js";
import { askRun, pause, resume, runNow, stateOf, stateTitle } from "../parts/job_actions.js";
import { Menu } from "../parts/menu.js";
import { END_STATES, shellQuote } from "../parts/node_text.js";
import { RunDuration, errorSummary } from "../parts/run_text.js";
import { State, Strip, look } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";

const PAGE = 50;
const MAX_JOBS = 500; // jobs that are read while a filter by state is set
const MAX_PROGRESS = 10; // unfinished runs whose progress is read
const MAX_ERRORS = 20; // failed runs whose error is read
const MAX_KNOWN = 200; // errors that are kept
const WORKFLOW_TASK = "workflow";
const STATES = ["running", "retrying", "queued", "waiting", "blocked", "dead", "cancelled", "skipped", "succeeded", "none"];
const WORDS = { none: "no runs yet" };
const EXAMPLE = `from bellringer import App, Workflow, every
app = App()

@app.task
def extract() -> list[str]: return ["a.csv", "b.csv"]
@app.task
def transform(path: str) -> int: return len(path)

@app.schedule(every("1h"))
@app.workflow
def etl(wf: Workflow):
    return wf.map(transform, wf.add(extract))`;

const COMMANDS = "bellringer dev etl.py\nbellringer jobs trigger etl.etl\nbellringer workflows list";

/** The jobs of the workflows by id, for their schedules and actions. */
async function readJobs(q, wanted, stop) {
  const { items } = await fetchPages("jobs", { q, task: WORKFLOW_TASK, sort: "name" }, wanted, stop);
  return Object.fromEntries(items.map((job) => [job.job_id, job]));
}

/** Reads the progress of the unfinished last runs and the errors of the failed ones, by run id. A run that cannot be read is left out. */
async function readDetails(items, unlessAborted, stop) {
  const runs = items.map((one) => one.last).filter((last) => last?.started_at);
  const read = (of, content) => of.map(async (run) => [run.run_id, await content(run, stop).catch(unlessAborted)]);
  return Object.fromEntries(await Promise.all([
    ...read(runs.filter((run) => !END_STATES.includes(run.state)).slice(0, MAX_PROGRESS), readProgress),
    ...read(runs.filter((run) => run.state === "dead").slice(0, MAX_ERRORS), readError),
  ]));
}

async function readProgress({ run_id: id }, stop) {
  const { nodes } = await get(`runs/${part(id)}/graph`, {}, stop);
  return { ended: nodes.filter((node) => END_STATES.includes(node.state)).length, nodes: nodes.length };
}

const errors = new Map(); // of runs that have failed: the list is read again with every live update

async function readError({ run_id: id, finished_at: at }, stop) {
  const key = `${id} ${at}`; // a run that is retried may fail with another error
  if (!errors.has(key)) {
    const run = await get(`runs/${part(id)}`, {}, stop);
    if (errors.size >= MAX_KNOWN) errors.clear();
    errors.set(key, { error: errorSummary(run), node: failedNode(run) });
  }
  return errors.get(key);
}

/** The failed node that the error of a workflow run names: an element of a map, or a node. */
const failedNode = ({ error }) => /^node (\S+\[\d+\]) failed: /.exec(error?.message ?? "")?.[1] ?? error?.nodes?.[0] ?? "";

/** Reads the workflows and their jobs, then their latest runs. If one of the latter fails, the list is shown without them. */
async function read(q, state, wanted, stop) {
  const unlessAborted = (error) => {
    if (error.name === "AbortError") throw error;
    return {};
  };
  const [page, jobs] = await Promise.all([
    fetchPages("workflows", { q, state, count: "bounded" }, wanted, stop), readJobs(q, state ? MAX_JOBS : wanted, stop).catch(unlessAborted)]);
  const strips = {};
  try {
    for (let at = 0; at < page.items.length; at += 100) {
      const ids = page.items.slice(at, at + 100).map((one) => one.job_id).join(",");
      for (const one of (await get("jobs/strips", { ids, limit: 30 }, stop)).items) strips[one.job_id] = one.runs;
    }
  } catch (error) {
    unlessAborted(error);
  }
  return { ...page, items: failedFirst(page.items), strips, jobs, details: await readDetails(page.items, unlessAborted, stop) };
}

/** Workflows whose last run failed, then the others in their order. */
const failedFirst = (items) => items.toSorted((a, b) => (b.last?.state === "dead") - (a.last?.state === "dead"));

const COLUMNS = ({ strips, jobs, details }) => [
  { name: "State", class: "tight", phone: "side", cell: (one) => html`<${JobState} one=${one} job=${jobs[one.job_id]} runs=${strips[one.job_id]} />` },
  { name: "Name", class: "tight", phone: "title", cell: (one) => html`<${Link} to=${`jobs/${part(one.job_id)}`} class="name">${one.name}<//>` },
  { name: "Schedule", class: "schedule", phone: "line", cell: (one) => html`<span class="clip" title=${jobs[one.job_id]?.description}>${jobs[one.job_id] ? scheduleText(jobs[one.job_id]) : ""}</span>` },
  { name: "Nodes", class: "tight", phone: "hide", cell: (one) => html`<${Link} to=${`jobs/${part(one.job_id)}`} terms=${{ tab: "graph" }}
    title=${`Graph of version ${one.version}`}>${one.nodes.toLocaleString("en")} ${one.nodes === 1 ? "node" : "nodes"}<//>` },
  { name: "History", class: "tight", phone: "hide", title: "the last 30 runs, the newest on the right", cell: (one) => html`<${Strip} runs=${strips[one.job_id]} />` },
  { name: "Last run", class: "tight", phone: "full", cell: (one) => html`<${LastRun} run=${one.last} details=${details[one.last?.run_id]} />` },
  { name: "Took", class: "number tight", phone: "hide", cell: (one) => (one.last?.started_at ? html`<${RunDuration} run=${one.last} />` : "–") },
  { name: "Usually", class: "number tight rare", phone: "hide", title: "median duration of the last 30 runs", cell: (one) => formatDuration(median((strips[one.job_id] ?? []).map((run) => run.seconds).filter((seconds) => seconds !== null))) },
  { name: "Next", class: "tight", phone: "line", cell: (one) => !one.paused && one.next_at && html`<span><span class="phone-only">· next </span><${Time} at=${one.next_at} /></span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "acts tight", phone: "acts", cell: (one) => jobs[one.job_id] && html`<${Actions} job=${jobs[one.job_id]} last=${one.last} />` },
];

/** The state of the job. Without its job, which is read separately, only a pause is known. */
const JobState = ({ one, job, runs }) => (job ? html`<${State} of=${stateOf(job, runs)} title=${stateTitle(job)} />` : one.paused && html`<${State} of="paused" />`);

/** The state of the last run and when it ended, or how many of its nodes have. */
function LastRun({ run, details }) {
  if (!run) return html`<span class="mute">no runs yet</span>`;
  const since = run.finished_at ? html`<${Time} at=${run.finished_at} />` : details?.nodes && html`<span>${details.ended} of ${details.nodes} nodes</span>`;
  return html`<${Link} to=${`runs/${part(run.run_id)}`} class="plain" aria-label=${`Last run: ${run.state}`}><${State} of=${run.state} /><//> <span class="mute">${since}${run.finished_at && html`<span class="phone-only"> · took <${RunDuration} run=${run} /></span>`}</span>`;
}

/** Below a workflow whose last run failed: the failed node and its error. */
function Failure({ run, details }) {
  if (run?.state !== "dead" || !details?.error) return null;
  return html`<p class="failure"><span class="tone-bad">${details.error}</span> <${Link} to=${`runs/${part(run.run_id)}`} terms=${{ node: details.node }}>
    Show ${details.node || "the run"}<//></p>`;
}

/** The schedule; its zone is left out if it is the zone of the displayed times. */
const scheduleText = (job) => (zone.value === "local" ? job.description.replace(` (${LOCAL})`, "") : job.description);

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

const togglePause = (job) => (job.paused ? resume(job) : pause(job));
const KEYS = (jobs) => (may("operator") ? { r: ["run now", ({ job_id: id }) => jobs[id] && runNow(jobs[id])], p: ["pause or resume", ({ job_id: id }) => jobs[id] && togglePause(jobs[id])] } : {});

function Actions({ job, last }) {
  const path = `jobs/${part(job.job_id)}`;
  const one = (icon, text, act) => html`<button type="button" class="quiet icon roomy-only" aria-label=${`${text}: ${job.name}`} title=${text} onClick=${() => act(job)}>
    <${Icon} name=${icon} /></button>`;
  return html`<span class="row-actions">
    ${may("operator") && html`${one("play", "Run now", runNow)}${job.paused ? one("resume", "Resume", resume) : one("pause", "Pause", pause)}`}
    <${Menu} label=${`More: ${job.name}`} items=${[
      may("operator") && { text: "Run now", icon: "play", hint: "r", act: () => runNow(job) },
      may("operator") && { text: "Run with other arguments…", icon: "play", act: () => askRun(job) },
      may("operator") && { text: job.paused ? "Resume" : "Pause", icon: job.paused ? "resume" : "pause", hint: "p", act: () => togglePause(job) },
      last && { text: "Last run", icon: "runs", to: `runs/${part(last.run_id)}` },
      { text: "Runs", icon: "history", to: path, terms: { tab: "runs" } },
      { text: "Graph", icon: "branch", to: path, terms: { tab: "graph" } },
      may("editor") && { text: "Edit", icon: "edit", to: `${path}/edit` },
    ]} /></span>`;
}

export default function Workflows() {
  const q = query.value.get("q") ?? "";
  const state = query.value.get("state") ?? "";
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(q, state, wanted, stop), [q, state, wanted]);
  const flags = [q && `--q ${shellQuote(q)}`, state && `--state ${shellQuote(state)}`].filter(Boolean).map((flag) => ` ${flag}`).join("");
  const search = new URLSearchParams(Object.entries({ q, state }).filter(([, value]) => value)).toString();
  return html`<header class="head stacked"><h1>Workflows</h1><span class="sum">${found.data && html`<strong>${found.data.items.length}${found.data.next_cursor ? "+" : ""}</strong> ${q || state ? "matching" : "total"}`}</span><span class="gap"></span>
      <${CopyAs} cli=${`bellringer workflows list${flags}`} path=${`workflows${search && `?${search}`}`} /></header>
    <${Loading} of=${found} shape="table">${(data) => html`
      <div class="tools"><${Search} label="Search by name" placeholder="Search by name" /><${States} sums=${data.states ?? {}} chosen=${state} /></div>
      ${data.items.length === 0
        ? html`<${Nothing} filtered=${Boolean(q || state)} more=${data.next_cursor} />`
        : html`<${Table} caption="Workflows" kind="workflows" columns=${COLUMNS(data)} rows=${data.items} id=${(one) => one.job_id}
          open=${(one) => navigate(`jobs/${part(one.job_id)}`)} keys=${KEYS(data.jobs)}
          detail=${(one) => Failure({ run: one.last, details: data.details[one.last?.run_id] })} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

/** Chips for the states of the last runs. A state without workflows is shown only while it is chosen. */
function States({ sums, chosen }) {
  const asked = chosen.split(",");
  const shown = STATES.filter((one) => sums[one] || asked.includes(one));
  const counts = Object.fromEntries(shown.map((one) => [one, sums[one] ? `${sums[one].value.toLocaleString("en")}${sums[one].relation === "gte" ? "+" : ""}` : "0"]));
  const draw = (one) => {
    const [icon, tone] = look(one);
    return html`<span class="tone-${tone}"><${Icon} name=${icon} /> ${WORDS[one] ?? one}</span>`;
  };
  return html`<${Chips} name="state" label="State of the last run" of=${shown} counts=${counts} draw=${draw} />`;
}

function Nothing({ filtered, more }) {
  if (filtered) {
    return html`<${Empty} title=${more ? "No match among the workflows examined" : "No matching workflows"}><p>Change the filters, or${" "}
      <${Link} to="workflows">show all workflows<//>.</p><//>`;
  }
  return html`<${Empty} title="No workflows yet"><p>A workflow is a job with several nodes: the result of one node is the argument of the next. Write one in Python:</p>
    <div class="snippets"><${Snippet} title="etl.py" text=${EXAMPLE} /><${Snippet} title="Run it" text=${COMMANDS} /></div><//>`;
}
