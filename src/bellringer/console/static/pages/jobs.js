// The list of jobs, with actions on one or many.
import { html, signal, useEffect, useMemo, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { address, navigate, setQuery, query } from "../lib/router.js";
import { zone } from "../lib/preferences.js";
import { LOCAL, formatDuration } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time, copy } from "../parts/elements.js";
import { startBulk } from "../parts/bulk.js";
import { notify } from "../parts/dialog.js";
import { Choice, Facet, FoldedFilters, Search } from "../parts/filters.js";
import { askBackfill, askPause, askResume, askRun, pause, remove, resume, runNow, skipAt, stateOf, stateTitle } from "../parts/job_actions.js";
import { Menu } from "../parts/menu.js";
import { SavedFilters } from "../parts/saved_filters.js";
import { expression, zoneOf } from "../parts/schedule.js";
import { State, Strip, look } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { whyJob } from "../parts/why.js";

const PAGE = 50;
const STRIPS = 100; // jobs per request
const STRIP_LENGTH = 20; // runs per job
const STATES = ["failing", "late", "paused", "enabled", "disabled", "done"];
const PROBLEM_STATES = ["failing", "late"];
const COUNTED_STATES = ["failing", "late", "paused"];
const PINNED = 10; // jobs per problem that are listed first
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
    const { items } = await get("jobs/strips", { ids: jobs.slice(at, at + STRIPS).map((job) => job.job_id).join(","), limit: STRIP_LENGTH }, stop);
    for (const one of items) found[one.job_id] = one.runs;
  }
  return found;
}

/** Reads the jobs and the number of jobs with problems, then the latest runs. If the latter fails, the list is shown without them. */
async function readJobs(terms, sort, wanted, stop) {
  const ofState = (state) => get("jobs", { ...terms, state, count: "bounded", limit: PINNED }, stop);
  const [page, ...counted] = await Promise.all([fetchPages("jobs", { ...terms, sort, count: "bounded" }, wanted, stop), ...COUNTED_STATES.map(ofState)]);
  const items = terms.state ? page.items : problemsFirst(page.items, counted);
  const runs = await strips(items, stop).catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  return { ...page, items, runs, counts: Object.fromEntries(COUNTED_STATES.map((state, n) => [state, counted[n].count])) };
}

/** The jobs with problems, then the others in their order. */
function problemsFirst(items, counted) {
  const problems = PROBLEM_STATES.flatMap((state, n) => counted[n].items.map((job) => ({ ...job, problem: state })));
  const first = new Set(problems.map((job) => job.job_id));
  return [...problems, ...items.filter((job) => !first.has(job.job_id))];
}

export default function Jobs() {
  const terms = filterOf(query.value);
  const sort = query.value.get("sort") ?? "name";
  const [wanted, setWanted] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  useEffect(() => void (selected.value = new Set()), [JSON.stringify(terms)]); // the selection never contains rows that are not listed
  const found = useData((stop) => readJobs(terms, sort, wanted, stop), [JSON.stringify(terms), sort, wanted]);
  return html`<header class="head"><h1>Jobs</h1>
      <span class="sum">${found.data && html`<strong>${formatCount(found.data.count)}</strong> ${Object.keys(terms).length ? "match" : "total"}`}</span>
      <span class="gap"></span>
      <${CopyAs} share=${{}} cli=${cliOf(terms)} path=${`jobs?${new URLSearchParams({ ...terms, sort })}`} />
      ${may("editor") && html`<${Link} to="jobs/new" class="button main">Create a job<//>`}</header>
    <${SavedFilters} page="jobs" terms=${terms} />
    <${Filters} data=${found.data} terms=${terms} sort=${sort} />
    <${Loading} of=${found} shape="table" rows=${12}>${(data) => html`
      ${selected.value.size > 0 && html`<${Bulk} data=${data} terms=${terms} selected=${selected} />`}
      ${data.items.length === 0 && !data.next_cursor ? html`<${Nothing} filtered=${Object.keys(terms).length > 0} />` : html`<${List} data=${data}
        selected=${selected} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

const distinctValues = (rows, pick) => [...new Set(rows.flatMap(pick))].sort();

const cliOf = (terms) => `bellringer jobs list${terms.tag ? ` --tag '${terms.tag}'` : ""}${terms.orphaned === "true" ? " --orphaned" : ""}`;

function Filters({ data, terms, sort }) {
  const rows = data?.items ?? [];
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  return html`<div class="tools">
    <${Search} label="Search by name" placeholder="Search by name" />
    <${StateChips} chosen=${terms.state} counts=${data?.counts ?? {}} />
    <${FoldedFilters} active=${Object.keys(terms).filter((name) => name !== "q" && name !== "state").length}>
      <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
      <${Facet} name="tag" label="Tag" of=${distinctValues(rows, (job) => job.tags)} />
      <${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />
      <${Facet} name="owner" label="Owner" of=${distinctValues(rows, (job) => job.owner)} />
      <${Facet} name="app" label="App" of=${distinctValues(rows, (job) => job.app ?? [])} />
      <${Choice} name="orphaned" label="Code" of=${ORPHANED} />
      <label class="choice"><span>Sort</span><select value=${sort}
        onChange=${(event) => setQuery({ sort: event.target.value === "name" ? "" : event.target.value })}>
        ${Object.entries(SORTS).map(([value, word]) => html`<option value=${value} selected=${value === sort}>${word}</option>`)}</select></label><//>
    ${Object.keys(terms).length > 0 && html`<button type="button" class="quiet"
      onClick=${() => navigate("jobs", { sort: query.peek().get("sort") })}>Clear filters</button>`}
  </div>`;
}

/** One state at a time; those that need attention show how many jobs they have. */
function StateChips({ chosen, counts }) {
  return html`<div class="chips scrolling" role="group" aria-label="State">${STATES.map((state) => {
    const [icon, tone] = look(state === "enabled" ? "active" : state);
    const isProblem = counts[state]?.value > 0 && PROBLEM_STATES.includes(state);
    return html`<button key=${state} type="button" class="chip" aria-pressed=${state === chosen} onClick=${() => setQuery({ state: state === chosen ? "" : state })}>
      <span class=${isProblem ? `tone-${tone}` : ""}><${Icon} name=${icon} /> ${state === "enabled" ? "active" : state}</span>${counts[state]
        && html` <span class="count">${formatCount(counts[state])}</span>`}</button>`;
  })}</div>`;
}

/** The newest run that is due: runs may exist shortly before their time. */
const lastOf = (runs = []) => runs.find((run) => new Date(run.scheduled_for) <= Date.now());

function LastRun({ runs, job }) {
  const run = lastOf(runs);
  if (!run) return html`<span class="mute none">–</span>`;
  return html`<${Link} to=${`runs/${part(run.run_id)}`}><${Time} at=${run.scheduled_for} job=${zoneOf(job)} /><//>${run.seconds !== null
    && html` <span class="mute took">${formatDuration(run.seconds)}</span>`}`;
}

/** The schedule; its zone is left out if it is the zone of the displayed times. */
const scheduleText = (job) => (zone.value === "local" ? job.description.replace(` (${LOCAL})`, "") : job.description);

const COLUMNS = (runs, asked, owners) => [
  { name: "State", class: "state-cell", phone: "side", cell: (job) => html`<${State} of=${job.problem ?? (PROBLEM_STATES.includes(asked) ? asked : stateOf(job, runs[job.job_id]))}
    title=${stateTitle(job)} />${job.orphaned_at && html` <span class="tone-warn" title=${`orphaned: the code of the app ${job.app} no longer declares this job`}><${Icon}
    name="warning" /><span class="unseen">orphaned</span></span>`}` },
  { name: "Name", class: "name-cell", phone: "title", cell: (job) => html`<span class="named"><${Link} to=${`jobs/${part(job.job_id)}`} class="name" title=${job.name}>${job.name}<//>
    <${Tags} of=${job.tags} name=${job.name} /></span>` },
  { name: "Task", class: "task-cell later", phone: "hide", cell: (job) => html`<code class="clip" title=${job.task}>${job.task}</code>` },
  { name: "Schedule", class: "schedule-cell", phone: "line", cell: (job) => html`<span class="clip" title=${scheduleTitle(job)}>${scheduleText(job)}</span>` },
  { name: "History", class: "strip-cell", phone: "hide", title: `the last ${STRIP_LENGTH} runs, the newest on the right`, cell: (job) => html`<${Strip} runs=${runs[job.job_id]} job=${zoneOf(job)} />` },
  { name: "Last run", class: "last-cell latest", phone: "line", short: "· ran", cell: (job) => html`<${LastRun} runs=${runs[job.job_id]} job=${job} />` },
  { name: "Next", class: "time-cell", phone: "line", short: "·", cell: (job) => (job.paused || !job.enabled ? html`<span class="mute none">–</span>` : html`<${Time} at=${job.next_at}
    job=${zoneOf(job)} />`) },
  owners > 1 && { name: "Owner", class: "owner-cell", phone: "hide", cell: (job) => html`<span class="clip" title=${job.owner}>${job.owner || html`<span class="mute">–</span>`}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "acts", phone: "acts", cell: (job) => html`<${Actions} job=${job} />` },
].filter(Boolean);

const scheduleTitle = (job) => [job.description, ...job.schedules.filter((one) => one.cron || one.rrule).map(expression)].join("\n");

const NAME_ROOM = 34; // characters that fit beside each other in the column of names: the name and its first tags
const TAG_PADDING = 4; // characters that the ends of a tag take

/** The first tags, and how many more there are: they never take a second line. */
function Tags({ of, name }) {
  const used = of.map((_, n) => of.slice(0, n + 1).reduce((sum, tag) => sum + tag.length + TAG_PADDING, name.length));
  const [shown, rest] = [of.filter((_, n) => used[n] <= NAME_ROOM), of.filter((_, n) => used[n] > NAME_ROOM)];
  return of.length > 0 && html`<span class="tags">${shown.map((tag) => html`<a key=${tag} class="tag" href=${address("jobs", { tag })}
    title=${`Jobs with the tag ${tag}`}>${tag}</a>`)}${rest.length > 0 && html`<span class="tag more" title=${`Tags: ${of.join(", ")}`}>+${rest.length}<span class="unseen"> more tags: ${rest.join(", ")}</span></span>`}</span>`;
}

const togglePause = (job) => (job.paused ? resume(job) : pause(job));

function List({ data, selected }) {
  const keys = {
    e: ["explain", whyJob],
    ...(may("operator") && { r: ["run now", runNow], p: ["pause or resume", togglePause] }),
  };
  return html`<${Table} caption="Jobs" kind="jobs" columns=${COLUMNS(data.runs, query.value.get("state"), distinctValues(data.items, (job) => job.owner ?? "").length)} rows=${data.items} id=${(job) => job.job_id}
    open=${(job) => navigate(`jobs/${part(job.job_id)}`)}
    selected=${may("operator") ? selected : undefined} keys=${keys} />`;
}

function Actions({ job }) {
  const one = (icon, text, act) => html`<button type="button" class="quiet icon" aria-label=${`${text}: ${job.name}`} title=${text} onClick=${() => act(job)}>
    <${Icon} name=${icon} /></button>`;
  return html`<span class="row-actions">
    ${may("operator") && html`${one("play", "Run now", runNow)}${job.paused ? one("resume", "Resume", resume) : one("pause", "Pause", pause)}`}
    <${Menu} label=${`More: ${job.name}`} items=${actionsOf(job)} /></span>`;
}

/** The items of a job's menu. */
function actionsOf(job) {
  const path = `jobs/${part(job.job_id)}`;
  const [operates, edits] = [may("operator"), may("editor")];
  return [
    { text: job.paused ? "Why is it not running?" : "Explain", icon: "help", hint: "e", act: () => whyJob(job) },
    operates && { text: "Run now", icon: "play", hint: "r", act: () => runNow(job) },
    operates && { text: "Run with other arguments…", icon: "play", act: () => askRun(job) },
    operates && { text: job.paused ? "Resume" : "Pause", icon: job.paused ? "resume" : "pause", hint: "p", act: () => togglePause(job) },
    operates && (job.paused ? { text: "Resume, with missed occurrences…", icon: "resume", act: () => askResume(job) }
      : { text: "Pause, with a reason or an end…", icon: "pause", act: () => askPause(job) }),
    operates && job.next_at && !job.paused && { text: "Skip the next occurrence", icon: "skip", act: () => skipAt(job, job.next_at) },
    operates && { text: "Backfill…", icon: "history", act: () => askBackfill(job) },
    "-",
    edits && { text: "Edit", icon: "edit", to: `${path}/edit` },
    edits && { text: "Duplicate", icon: "copy", to: "jobs/new", terms: { from: job.job_id } },
    { text: "Runs", icon: "runs", to: path, terms: { tab: "runs" } },
    { text: "Revisions", icon: "audit", to: path, terms: { tab: "revisions" } },
    { text: "Copy the id", icon: "copy", act: () => copy(job.job_id).then(() => notify(`Copied the id of ${job.name}`)) },
    edits && "-",
    edits && { text: "Delete…", icon: "trash", tone: "bad", act: () => remove(job) },
  ];
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
    ${data.next_cursor && !whole && !PROBLEM_STATES.includes(terms.state) && selected.value.size >= data.items.length && html`<button type="button" class="quiet"
      onClick=${() => setAll(true)}>Select all ${formatCount(data.count)} matches</button>`}
    ${BULK.filter(([, , role]) => may(role)).map(([action, verb]) => html`<button type="button" class=${action === "jobs.delete" ? "danger" : ""}
      onClick=${() => start(action, verb)}>${verb}…</button>`)}
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
