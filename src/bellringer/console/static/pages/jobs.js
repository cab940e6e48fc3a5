// Jobs: which there are, how they do, and what can be done to one or to many of them.
import { html, signal, useEffect, useMemo, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { counted, gather } from "../lib/pages.js";
import { address, go, narrow, query } from "../lib/place.js";
import { CopyAs, Empty, Link, Loading, More, When, copy } from "../parts/basics.js";
import { many } from "../parts/bulk.js";
import { show } from "../parts/dialog.js";
import { Choice, Facet, Search } from "../parts/filters.js";
import { askBackfill, askPause, askResume, askRun, pause, remove, resume, runNow, skipAt, stateOf, stateTitle } from "../parts/job_actions.js";
import { Schedule, zoneOf } from "../parts/schedule.js";
import { State, Strip } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { whyJob } from "../parts/why.js";

const PAGE = 50;
const STRIPS = 100; // jobs of one request
const STATES = { enabled: "active", paused: "paused", disabled: "disabled", late: "late", failing: "failing" };
const IN_TROUBLE = { late: ["⏰", "warn"], failing: ["✕", "bad"] };
const FILTERS = ["q", "state", "pool", "tag", "task", "owner"];
const SORTS = { name: "by name", id: "by age" };
const FIRST = "bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris";
const SDK = `from bellringer import App, cron

app = App()

@app.schedule(cron("30 2 * * *", tz="Europe/Paris"))
@app.task
def nightly() -> None: ...`;

function filterOf(terms) {
  return Object.fromEntries(FILTERS.filter((name) => terms.get(name)).map((name) => [name, terms.get(name)]));
}

async function strips(jobs, stop) {
  const found = {};
  for (let at = 0; at < jobs.length; at += STRIPS) {
    const { items } = await get("jobs/strips", { ids: jobs.slice(at, at + STRIPS).map((job) => job.job_id).join(","), limit: 30 }, stop);
    for (const one of items) found[one.job_id] = one.runs;
  }
  return found;
}

/** The jobs, then their last runs: a list without strips is better than none. */
async function readJobs(terms, wanted, stop) {
  const page = await gather("jobs", { ...terms, count: "bounded" }, wanted, stop);
  const runs = await strips(page.items, stop).catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  return { ...page, runs };
}

export default function Jobs() {
  const terms = filterOf(query.value);
  const sort = query.value.get("sort") ?? "name";
  const [wanted, want] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  useEffect(() => void (selected.value = new Set()), [JSON.stringify(terms)]); // what is selected is always among what is listed
  const found = useData((stop) => readJobs({ ...terms, sort }, wanted, stop), [JSON.stringify(terms), sort, wanted]);
  return html`<header class="head"><h1>Jobs</h1>
      <span class="sum">${found.data && html`<strong>${counted(found.data.count)}</strong> ${Object.keys(terms).length ? "fit" : "in all"}`}
      <${Troubled} /></span>
      <span class="gap"></span>
      ${may("editor") && html`<${Link} to="jobs/new" class="button main">Create a job<//>`}</header>
    <${Filters} rows=${found.data?.items ?? []} terms=${terms} sort=${sort} />
    <${Loading} of=${found}>${(data) => html`
      ${selected.value.size > 0 && html`<${Bulk} data=${data} terms=${terms} selected=${selected} />`}
      ${data.items.length === 0 && !data.next_cursor ? html`<${Nothing} filtered=${Object.keys(terms).length > 0} />` : html`<${List} data=${data}
        selected=${selected} />`}
      <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//>`;
}

/** How many are late or fail; pressing a number shows them. */
function Troubled() {
  const count = async (state, stop) => [state, (await get("jobs", { state, count: "bounded", limit: 1 }, stop)).count];
  const found = useData((stop) => Promise.all(Object.keys(IN_TROUBLE).map((state) => count(state, stop))), []);
  return (found.data ?? []).filter(([, many]) => many.value > 0).map(([state, many]) => {
    const [icon, tone] = IN_TROUBLE[state];
    return html` · <a class="tone-${tone}" href=${address("jobs", { state })}><span aria-hidden="true">${icon}</span> ${counted(many)} ${state}</a>`;
  });
}

const seen = (rows, pick) => [...new Set(rows.flatMap(pick))].sort();

function Filters({ rows, terms, sort }) {
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const cli = `bellringer jobs list${terms.tag ? ` --tag '${terms.tag}'` : ""}`;
  return html`<div class="tools">
    <${Search} label="search by name" placeholder="Search by name" />
    <${Choice} name="state" label="State" of=${STATES} />
    <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
    <${Facet} name="tag" label="Tag" of=${seen(rows, (job) => job.tags)} />
    <${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />
    <${Facet} name="owner" label="Owner" of=${seen(rows, (job) => job.owner)} />
    <label class="choice"><span>Sort</span><select value=${sort}
      onChange=${(event) => narrow({ sort: event.target.value === "name" ? "" : event.target.value })}>
      ${Object.entries(SORTS).map(([value, word]) => html`<option value=${value} selected=${value === sort}>${word}</option>`)}</select></label>
    ${Object.keys(terms).length > 0 && html`<button type="button" class="quiet"
      onClick=${() => go("jobs", { sort: query.peek().get("sort") })}>Clear filters</button>`}
    <span class="gap"></span><${CopyAs} cli=${cli} path=${`jobs?${new URLSearchParams({ ...terms, sort })}`} />
  </div>`;
}

/** When it was due last: runs are born a moment ahead of their time. */
const lastOf = (runs = []) => runs.find((run) => new Date(run.scheduled_for) <= Date.now())?.scheduled_for;

const COLUMNS = (runs, asked) => [
  { name: "State", class: "tight", cell: (job) => html`<${State} of=${asked in IN_TROUBLE ? asked : stateOf(job, runs[job.job_id])}
    title=${stateTitle(job)} />` },
  { name: "Name", cell: (job) => html`<${Link} to=${`jobs/${part(job.job_id)}`} class="name">${job.name}<//> <${Tags} of=${job.tags} />` },
  { name: "Task", cell: (job) => html`<code class="clip task" title=${job.task}>${job.task}</code>` },
  { name: "Schedule", class: "when", cell: (job) => html`<${Schedule} job=${job} />` },
  { name: "Last 30 runs", class: "tight", cell: (job) => html`<${Strip} runs=${runs[job.job_id]} job=${zoneOf(job)} />` },
  { name: "Last", class: "tight", cell: (job) => html`<${When} at=${lastOf(runs[job.job_id])} job=${zoneOf(job)} />` },
  { name: "Next", class: "tight", cell: (job) => (job.paused || !job.enabled ? html`<span class="mute">–</span>` : html`<${When} at=${job.next_at}
    job=${zoneOf(job)} />`) },
  { name: "Owner", class: "tight", cell: (job) => html`<span class="clip short" title=${job.owner}>${job.owner}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (job) => html`<${Actions} job=${job} />` },
];

function Tags({ of }) {
  return of.map((tag) => html`<a class="tag" href=${address("jobs", { tag })} title=${`jobs with the tag ${tag}`}>${tag}</a> `);
}

const swap = (job) => (job.paused ? resume(job) : pause(job));

function List({ data, selected }) {
  const keys = {
    e: ["why does it not run?", whyJob],
    ...(may("operator") && { r: ["run it now", runNow], p: ["pause or resume it", swap] }),
  };
  return html`<${Table} caption="Jobs" columns=${COLUMNS(data.runs, query.value.get("state"))} rows=${data.items} id=${(job) => job.job_id}
    open=${(job) => go(`jobs/${part(job.job_id)}`)}
    selected=${may("operator") ? selected : undefined} keys=${keys} />`;
}

function Actions({ job }) {
  const one = (icon, text, act) => html`<button type="button" class="quiet icon" aria-label=${`${text}: ${job.name}`} title=${text} onClick=${() => act(job)}>
    <span aria-hidden="true">${icon}</span></button>`;
  return html`<span class="row-actions">
    ${may("operator") && html`${one("▶", "Run now", runNow)}${job.paused ? one("❚▶", "Resume", resume) : one("❚❚", "Pause", pause)}`}
    ${may("editor") && html`<${Link} to=${`jobs/${part(job.job_id)}/edit`} class="button quiet icon" aria-label=${`Edit: ${job.name}`} title="Edit">
      <span aria-hidden="true">✎</span><//>`}
    ${one("?", "Why does it not run?", whyJob)}${one("⋯", "More", more)}
  </span>`;
}

function more(job) {
  show(job.name, function Menu({ close }) {
    const act = (text, does, role) => may(role) && html`<li><button type="button" onClick=${() => { close(); does(job); }}>${text}</button></li>`;
    const link = (text, to, terms) => html`<li><${Link} class="button" to=${to} terms=${terms} onClick=${close}>${text}<//></li>`;
    const path = `jobs/${part(job.job_id)}`;
    return html`<ul class="menu">
      ${act("Run with other arguments …", askRun, "operator")}
      ${job.paused
        ? act("Resume, and choose what becomes of the missed …", askResume, "operator")
        : act("Pause with a reason, or until …", askPause, "operator")}
      ${job.next_at && !job.paused && act("Skip the next occurrence", () => skipAt(job, job.next_at), "operator")}
      ${act("Backfill …", askBackfill, "operator")}
      ${may("editor") && link("Duplicate", "jobs/new", { from: job.job_id })}
      ${link("Its runs", path, { tab: "runs" })}${link("Its revisions", path, { tab: "revisions" })}
      ${act("Copy its id", () => copy(job.job_id), "viewer")}
      ${act("Delete …", remove, "editor")}
    </ul><div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`;
  });
}

const BULK = [
  ["jobs.run", "Run now", "operator"],
  ["jobs.pause", "Pause", "operator"],
  ["jobs.resume", "Resume", "operator"],
  ["jobs.delete", "Delete", "editor"],
];

/** Many at once: what is selected, or all that fit. The server counts first, and refuses where the count has changed. */
function Bulk({ data, terms, selected }) {
  const [all, every] = useState(false);
  const whole = all && selected.value.size >= data.items.length;
  const names = new Map(data.items.map((job) => [job.job_id, job.name]));
  const about = whole ? { filter: terms } : { ids: [...selected.value] };
  const start = (action, verb) =>
    many({ action, verb, what: "jobs", about, named: (id) => names.get(id) ?? html`<code>
      ${id}</code>`, weighty: action === "jobs.delete", then: () => (selected.value = new Set()) });
  return html`<div class="bulk" role="region" aria-label="many at once">
    <strong>${whole ? `All ${counted(data.count)} that fit` : `${selected.value.size} selected`}</strong>
    ${data.next_cursor && !whole && !(terms.state in IN_TROUBLE) && selected.value.size >= data.items.length && html`<button type="button" class="quiet"
      onClick=${() => every(true)}>Select all ${counted(data.count)} that fit</button>`}
    ${BULK.filter(([, , role]) => may(role)).map(([action, verb]) => html`<button type="button" class=${action === "jobs.delete" ? "danger" : ""}
      onClick=${() => start(action, verb)}>${verb} …</button>`)}
    <button type="button" class="quiet" onClick=${() => { every(false); selected.value = new Set(); }}>Clear</button>
  </div>`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} title="No job fits"><p>Take a filter away, or <${Link} to="jobs">see all jobs<//>.</p><//>`;
  return html`<${Empty} title="No jobs yet"><p>A job is a task and when it is to run. Create one here, by the command line, or in Python:</p>
    ${may("editor") && html`<p><${Link} to="jobs/new" class="button main">Create a job<//></p>`}
    <p><button type="button" class="quiet" title="copy" onClick=${() => copy(FIRST)}><code>${FIRST}</code></button></p>
    <pre class="json" tabindex="0" aria-label="a job in Python">${SDK}</pre>
    <p><button type="button" onClick=${() => copy(SDK)}>Copy the Python</button></p><//>`;
}
