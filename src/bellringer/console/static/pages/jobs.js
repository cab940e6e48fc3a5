// The list of jobs, with actions on one or many.
import { html, signal, useEffect, useMemo, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { address, navigate, setQuery, query } from "../lib/router.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time, copy } from "../parts/elements.js";
import { startBulk } from "../parts/bulk.js";
import { openDialog } from "../parts/dialog.js";
import { Choice, Facet, Search } from "../parts/filters.js";
import { askBackfill, askPause, askResume, askRun, pause, remove, resume, runNow, skipAt, stateOf, stateTitle } from "../parts/job_actions.js";
import { Schedule, zoneOf } from "../parts/schedule.js";
import { State, Strip } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { whyJob } from "../parts/why.js";

const PAGE = 50;
const STRIPS = 100; // jobs per request
const STATES = { enabled: "active", paused: "paused", disabled: "disabled", done: "done", late: "late", failing: "failing" };
const PROBLEM_STATES = { late: ["⏰", "warn"], failing: ["✕", "bad"] };
const ORPHANED = { true: "orphaned", false: "declared or by hand" };
const FILTERS = ["q", "state", "pool", "tag", "task", "owner", "app", "orphaned"];
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

/** Reads the jobs, then their latest runs. If the latter fails, the list is shown without them. */
async function readJobs(terms, wanted, stop) {
  const page = await fetchPages("jobs", { ...terms, count: "bounded" }, wanted, stop);
  const runs = await strips(page.items, stop).catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  return { ...page, runs };
}

export default function Jobs() {
  const terms = filterOf(query.value);
  const sort = query.value.get("sort") ?? "name";
  const [wanted, setWanted] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  useEffect(() => void (selected.value = new Set()), [JSON.stringify(terms)]); // the selection never contains rows that are not listed
  const found = useData((stop) => readJobs({ ...terms, sort }, wanted, stop), [JSON.stringify(terms), sort, wanted]);
  return html`<header class="head"><h1>Jobs</h1>
      <span class="sum">${found.data && html`<strong>${formatCount(found.data.count)}</strong> ${Object.keys(terms).length ? "match" : "total"}`}
      <${ProblemCounts} /></span>
      <span class="gap"></span>
      ${may("editor") && html`<${Link} to="jobs/new" class="button main">Create a job<//>`}</header>
    <${Filters} rows=${found.data?.items ?? []} terms=${terms} sort=${sort} />
    <${Loading} of=${found}>${(data) => html`
      ${selected.value.size > 0 && html`<${Bulk} data=${data} terms=${terms} selected=${selected} />`}
      ${data.items.length === 0 && !data.next_cursor ? html`<${Nothing} filtered=${Object.keys(terms).length > 0} />` : html`<${List} data=${data}
        selected=${selected} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

/** Number of late and failing jobs, each with a link. */
function ProblemCounts() {
  const count = async (state, stop) => [state, (await get("jobs", { state, count: "bounded", limit: 1 }, stop)).count];
  const found = useData((stop) => Promise.all(Object.keys(PROBLEM_STATES).map((state) => count(state, stop))), []);
  return (found.data ?? []).filter(([, many]) => many.value > 0).map(([state, many]) => {
    const [icon, tone] = PROBLEM_STATES[state];
    return html` · <a class="tone-${tone}" href=${address("jobs", { state })}><span aria-hidden="true">${icon}</span> ${formatCount(many)} ${state}</a>`;
  });
}

const distinctValues = (rows, pick) => [...new Set(rows.flatMap(pick))].sort();

function Filters({ rows, terms, sort }) {
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const cli = `bellringer jobs list${terms.tag ? ` --tag '${terms.tag}'` : ""}${terms.orphaned === "true" ? " --orphaned" : ""}`;
  return html`<div class="tools">
    <${Search} label="Search by name" placeholder="Search by name" />
    <${Choice} name="state" label="State" of=${STATES} />
    <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
    <${Facet} name="tag" label="Tag" of=${distinctValues(rows, (job) => job.tags)} />
    <${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />
    <${Facet} name="owner" label="Owner" of=${distinctValues(rows, (job) => job.owner)} />
    <${Facet} name="app" label="App" of=${distinctValues(rows, (job) => job.app ?? [])} />
    <${Choice} name="orphaned" label="Code" of=${ORPHANED} />
    <label class="choice"><span>Sort</span><select value=${sort}
      onChange=${(event) => setQuery({ sort: event.target.value === "name" ? "" : event.target.value })}>
      ${Object.entries(SORTS).map(([value, word]) => html`<option value=${value} selected=${value === sort}>${word}</option>`)}</select></label>
    ${Object.keys(terms).length > 0 && html`<button type="button" class="quiet"
      onClick=${() => navigate("jobs", { sort: query.peek().get("sort") })}>Clear filters</button>`}
    <span class="gap"></span><${CopyAs} cli=${cli} path=${`jobs?${new URLSearchParams({ ...terms, sort })}`} />
  </div>`;
}

/** The last due time. Runs may exist shortly before their time. */
const lastOf = (runs = []) => runs.find((run) => new Date(run.scheduled_for) <= Date.now())?.scheduled_for;

const COLUMNS = (runs, asked) => [
  { name: "State", class: "tight", cell: (job) => html`<${State} of=${asked in PROBLEM_STATES ? asked : stateOf(job, runs[job.job_id])}
    title=${stateTitle(job)} />${job.orphaned_at && html` <${State} of="orphaned" title=${`the code of the app ${job.app} no longer declares this job`} />`}` },
  { name: "Name", cell: (job) => html`<span class="named"><${Link} to=${`jobs/${part(job.job_id)}`} class="name" title=${job.name}>${job.name}<//>
    <span class="tags"><${Tags} of=${job.tags} /></span></span>` },
  { name: "Task", cell: (job) => html`<code class="clip task" title=${job.task}>${job.task}</code>` },
  { name: "Schedule", class: "when", cell: (job) => html`<${Schedule} job=${job} />` },
  { name: "Last 30 runs", class: "tight", cell: (job) => html`<${Strip} runs=${runs[job.job_id]} job=${zoneOf(job)} />` },
  { name: "Last", class: "tight", cell: (job) => html`<${Time} at=${lastOf(runs[job.job_id])} job=${zoneOf(job)} />` },
  { name: "Next", class: "tight", cell: (job) => (job.paused || !job.enabled ? html`<span class="mute">–</span>` : html`<${Time} at=${job.next_at}
    job=${zoneOf(job)} />`) },
  { name: "Owner", class: "tight", cell: (job) => html`<span class="clip short" title=${job.owner}>${job.owner}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (job) => html`<${Actions} job=${job} />` },
];

function Tags({ of }) {
  return of.map((tag) => html`<a class="tag" href=${address("jobs", { tag })} title=${`Jobs with the tag ${tag}`}>${tag}</a> `);
}

const togglePause = (job) => (job.paused ? resume(job) : pause(job));

function List({ data, selected }) {
  const keys = {
    e: ["explain", whyJob],
    ...(may("operator") && { r: ["run now", runNow], p: ["pause or resume", togglePause] }),
  };
  return html`<${Table} caption="Jobs" columns=${COLUMNS(data.runs, query.value.get("state"))} rows=${data.items} id=${(job) => job.job_id}
    open=${(job) => navigate(`jobs/${part(job.job_id)}`)}
    selected=${may("operator") ? selected : undefined} keys=${keys} />`;
}

function Actions({ job }) {
  const one = (icon, text, act) => html`<button type="button" class="quiet icon" aria-label=${`${text}: ${job.name}`} title=${text} onClick=${() => act(job)}>
    <span aria-hidden="true">${icon}</span></button>`;
  return html`<span class="row-actions">
    ${may("operator") && html`${one("▶", "Run now", runNow)}${job.paused ? one("❚▶", "Resume", resume) : one("❚❚", "Pause", pause)}`}
    ${may("editor") && html`<${Link} to=${`jobs/${part(job.job_id)}/edit`} class="button quiet icon" aria-label=${`Edit: ${job.name}`} title="Edit">
      <span aria-hidden="true">✎</span><//>`}
    ${one("?", "Explain", whyJob)}${one("⋯", "More", more)}
  </span>`;
}

function more(job) {
  openDialog(job.name, function Menu({ close }) {
    const act = (text, does, role) => may(role) && html`<li><button type="button" onClick=${() => { close(); does(job); }}>${text}</button></li>`;
    const link = (text, to, terms) => html`<li><${Link} class="button" to=${to} terms=${terms} onClick=${close}>${text}<//></li>`;
    const path = `jobs/${part(job.job_id)}`;
    return html`<ul class="menu">
      ${act("Run with other arguments …", askRun, "operator")}
      ${job.paused
        ? act("Resume, with missed occurrences …", askResume, "operator")
        : act("Pause, with reason or end …", askPause, "operator")}
      ${job.next_at && !job.paused && act("Skip the next occurrence", () => skipAt(job, job.next_at), "operator")}
      ${act("Backfill …", askBackfill, "operator")}
      ${may("editor") && link("Duplicate", "jobs/new", { from: job.job_id })}
      ${link("Runs", path, { tab: "runs" })}${link("Revisions", path, { tab: "revisions" })}
      ${act("Copy id", () => copy(job.job_id), "viewer")}
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

/** Bulk actions on the selected jobs, or on all that match. The server counts first and rejects the action if the count has changed. */
function Bulk({ data, terms, selected }) {
  const [all, setAll] = useState(false);
  const whole = all && selected.value.size >= data.items.length;
  const names = new Map(data.items.map((job) => [job.job_id, job.name]));
  const about = whole ? { filter: terms } : { ids: [...selected.value] };
  const start = (action, verb) =>
    startBulk({ action, verb, what: "jobs", about, named: (id) => names.get(id) ?? html`<code>
      ${id}</code>`, weighty: action === "jobs.delete", then: () => (selected.value = new Set()) });
  return html`<div class="bulk" role="region" aria-label="Bulk actions">
    <strong>${whole ? `All ${formatCount(data.count)} matches` : `${selected.value.size} selected`}</strong>
    ${data.next_cursor && !whole && !(terms.state in PROBLEM_STATES) && selected.value.size >= data.items.length && html`<button type="button" class="quiet"
      onClick=${() => setAll(true)}>Select all ${formatCount(data.count)} matches</button>`}
    ${BULK.filter(([, , role]) => may(role)).map(([action, verb]) => html`<button type="button" class=${action === "jobs.delete" ? "danger" : ""}
      onClick=${() => start(action, verb)}>${verb} …</button>`)}
    <button type="button" class="quiet" onClick=${() => { setAll(false); selected.value = new Set(); }}>Clear</button>
  </div>`;
}

function Nothing({ filtered }) {
  if (filtered) return html`<${Empty} title="No matching jobs"><p>Remove a filter, or <${Link} to="jobs">show all jobs<//>.</p><//>`;
  return html`<${Empty} title="No jobs yet"><p>A job is a task with a schedule. Create one here, on the command line, or in Python:</p>
    ${may("editor") && html`<p><${Link} to="jobs/new" class="button main">Create a job<//></p>`}
    <p><button type="button" class="quiet" title="Copy" onClick=${() => copy(FIRST)}><code>${FIRST}</code></button></p>
    <pre class="json" tabindex="0" aria-label="A job in Python">${SDK}</pre>
    <p><button type="button" onClick=${() => copy(SDK)}>Copy the code</button></p><//>`;
}
