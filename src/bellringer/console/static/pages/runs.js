// The list of runs with search, and bulk actions.
import { html, signal, useMemo, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { state as live } from "../lib/live.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { formatTime, now } from "../lib/time.js";
import { Empty, Link, Loading, MoreButton, Tabs, Time } from "../parts/elements.js";
import { SelectionBar, startBulk } from "../parts/bulk.js";
import { Command } from "../parts/copyable_command.js";
import { Menu } from "../parts/menu.js";
import { CopyAs, copyItems } from "../parts/copy_as.js";
import { Chips, Choice } from "../parts/filters.js";
import { Operations } from "../parts/operations.js";
import { FILTERS, QueryBar, apiTerms, filterOf } from "../parts/run_search.js";
import { CANCELLABLE, RETRIABLE, RunId, STATES, RunDuration, RunSubject, errorSummary, blockReasons, formatLateness, progressText, workerName } from "../parts/run_text.js";
import { State, look } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";

const PAGE = 50;
const COUNT_INTERVAL_MS = 10_000; // milliseconds; counting needs nine queries, so counts are loaded less often than the list
const DEAD_GROUPS = 200; // groups of dead letters that are counted
const UNFOLDED_BY = ["task", "worker", "cause", "q", "job", "pool"]; // filters that select single nodes of workflow runs
const RANGES = { "15m": "last 15 minutes", "1h": "last hour", "6h": "last 6 hours", "24h": "last day", "7d": "last week" };
const USUAL_STATES = ["running", "succeeded", "dead"];
const TABS = { runs: "Runs", operations: "Operations" };
const FIRST = "bellringer jobs trigger nightly --wait";

const termsOf = (given) => Object.fromEntries(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
const clear = () => navigate("runs");

export default function Runs() {
  return query.value.get("tab") === "operations" ? html`<${OperationsPage} />` : html`<${RunsPage} />`;
}

const OperationsPage = () => html`<header class="head stacked"><h1>Operations</h1><span class="sum">Actions on many jobs, runs or dead letters at once</span><span class="gap"></span>
    <${CopyAs} cli="bellringer ops list" path="operations" /></header>
  <${PageTabs} chosen="operations" /><div role="tabpanel" aria-label="Operations"><${Operations} /></div>`;
const PageTabs = ({ chosen }) => html`<${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => navigate("runs", { tab: tab === "runs" ? "" : tab })} />`;

function RunsPage() {
  const terms = termsOf(query.value);
  const text = JSON.stringify(terms);
  const [wanted, setWanted] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  const found = useData((stop) => fetchPages("runs", apiTerms(terms), wanted, stop), [text, wanted]);
  const counts = useCounts(terms);
  return html`<header class="head stacked"><h1>Runs</h1><${Sum} counts=${counts} terms=${terms} /><span class="gap"></span>
      <${Choice} name="from" label="Period" of=${{ ...RANGES, ...(terms.from && !RANGES[terms.from] && { [terms.from]: `from ${terms.from}` }) }} />
      <${Menu} label="More actions" items=${[...bulkItems(terms), ...copyItems({ share: {}, cli: cliOf(apiTerms(terms)), path: `runs?${new URLSearchParams(apiTerms(terms))}` })]} /></header>
    <${PageTabs} chosen="runs" />
    <div role="tabpanel" aria-label="Runs">
      <div class="tools run-search"><${QueryBar} terms=${terms} /></div>
      <div class="tools"><${States} counts=${counts} />
        ${Object.keys(terms).length > 0 && html`<button type="button" class="quiet" onClick=${clear}>Clear filters</button>`}</div>
      <${Loading} of=${found} shape="table">${(data) => html`<${RunTable} data=${data} terms=${terms} busy=${found.busy} selected=${selected}
        more=${() => setWanted(wanted + PAGE)} />`}<//>
    </div>`;
}

/** Number of runs per state for these filters, reloaded at intervals unless live updates are paused. */
function useCounts(terms) {
  const { state: _state, ...rest } = terms;
  const tick = useMemo(() => ({ last: 0 }), []);
  if (live.value !== "paused") tick.last = Math.floor(now.value / COUNT_INTERVAL_MS);
  return useData((stop) => get("runs/counts", apiTerms(rest), stop), [JSON.stringify(rest), tick.last], { once: true }).data?.states;
}

const short = (count) => count && `${count.value.toLocaleString("en")}${count.relation === "gte" ? "+" : ""}`;

/** Number of dead letters: the dead runs that nobody has retried or discarded. */
function useDeadLetters(isOn) {
  const groups = useData((stop) => (isOn ? get("dead-letters", { group_by: "fingerprint", limit: DEAD_GROUPS }, stop) : null), [isOn], { once: true }).data;
  if (!groups) return null;
  const relation = groups.next_cursor || groups.items.some((one) => one.count.relation === "gte") ? "gte" : "eq";
  return { value: groups.items.reduce((sum, one) => sum + one.count.value, 0), relation };
}

/** The summary line: number of matches, and of running, retrying and dead runs. Runs that are not due yet are not included. */
function Sum({ counts, terms }) {
  const letters = useDeadLetters(!Object.keys(terms).length && counts?.dead?.value > 0);
  if (!counts) return null;
  const states = terms.state ? terms.state.split(",") : STATES.filter((state) => state !== "waiting");
  const known = states.map((state) => counts[state]).filter(Boolean);
  const all = { value: known.reduce((sum, one) => sum + one.value, 0), relation: known.some((one) => one.relation === "gte") ? "gte" : "eq" };
  const highlighted = ["running", "retrying", "dead"].filter((state) => counts[state]?.value && states.includes(state) && states.length > 1);
  return html`<span class="sum"><strong>${short(all)}</strong> ${Object.keys(terms).length ? "matching runs" : "runs"}${highlighted.map((state) => {
    const [icon, tone] = look(state);
    return html` · <span class="tone-${tone}"><${Icon} name=${icon} /> ${short(counts[state])} ${state}</span>`;
  })}${letters && html`, <span title="Dead runs of jobs stay dead letters until someone retries or discards them. Nodes of workflow runs have none.">${letters.value === 0
    ? "none of them a dead letter" : html`<${Link} to="dead-letters">${short(letters)} of them ${letters.value === 1 && letters.relation === "eq" ? "an open dead letter" : "open dead letters"}<//>`}</span>`}</span>`;
}

/** Chips for the states that have runs, and for those that are chosen. */
function States({ counts = {} }) {
  const chosen = (query.value.get("state") ?? "").split(",");
  const shown = STATES.filter((state) => counts[state]?.value || USUAL_STATES.includes(state) || chosen.includes(state));
  const draw = (state) => {
    const [icon, tone] = look(state);
    return html`<span class="tone-${tone}"><${Icon} name=${icon} /> ${state}</span>`;
  };
  return html`<${Chips} name="state" label="States" of=${shown} counts=${Object.fromEntries(STATES.map((state) => [state, short(counts[state])]))}
    draw=${draw} />`;
}

const cliOf = (terms) => `bellringer runs list${Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("")}`;

/** The time of day, with the date if it was another day. */
function shortTime(at) {
  const [text, today] = [formatTime(at), formatTime(new Date(now.value))];
  return text.slice(0, 10) === today.slice(0, 10) ? text.slice(11, 19) : text.slice(5, 16);
}

/** fold: {rows, nodes, opened, toggle} of `useFolded`. */
const COLUMNS = (fold) => [
  { name: "State", class: "tight", phone: "side", cell: (run) => html`<${State} of=${run.state} title=${run.cancel_requested ? "cancel requested" : undefined} />` },
  { name: "Job or task", class: "whose", phone: "title", cell: (run) => html`<span class="subject ${fold.isInside(run) ? "inside" : ""}"><${RunSubject} run=${run} /><${NodesButton} run=${run} fold=${fold} /></span>` },
  { name: "Run", class: "tight rare", phone: "hide", cell: (run) => html`<${RunId} id=${run.run_id} />` },
  { name: "Scheduled", class: "tight", phone: "line", cell: (run) => html`<span class="clock mute">${shortTime(run.scheduled_for)}</span> <${Time} at=${run.scheduled_for} />` },
  { name: "Late by", class: "number rare", phone: "hide", title: "from the scheduled time to the start", cell: formatLateness },
  { name: "Took", class: "number", phone: "line", short: "·", cell: (run) => html`<${RunDuration} run=${run} />` },
  { name: "Cause", class: "tight", phone: "line", short: "·", cell: (run) => run.cause },
  { name: "Attempt", class: "number spare", phone: "hide", cell: (run) => run.attempt || "–" },
  { name: "Pool", class: "tight spare", phone: "hide", cell: (run) => run.pool },
  { name: "Worker", class: "tight", phone: "hide", cell: (run) => (run.worker_id === null ? html`<span class="mute">–</span>` : html`<${Link} to="runs" terms=${{ worker: run.worker_id }}
    class="clip short" title=${`Runs of ${run.worker ?? workerName(run.worker_id)} (worker ${run.worker_id})`}>${run.worker ?? workerName(run.worker_id)}<//>`) },
  { name: "Details", class: "known", phone: "full", cell: (run) => known(run) && html`<span title=${known(run)}>${run.attempt > 1 && html`<span class="mute">attempt ${run.attempt}: </span>`}${known(run)}</span>` },
];

/** Shows or hides the nodes of a workflow run. */
function NodesButton({ run, fold }) {
  const nodes = fold.nodes.get(run.run_id);
  if (!nodes) return null;
  const isOpen = fold.opened.has(run.run_id);
  const text = `${run.workflow ? "more " : ""}node ${nodes.length === 1 ? "run" : "runs"}`;
  return html`<button type="button" class="quiet nodes" aria-expanded=${isOpen} aria-label=${`${isOpen ? "Hide" : "Show"} ${nodes.length} ${text} of ${run.workflow?.job ?? run.job}`}
    onClick=${() => fold.toggle(run.run_id)}><${Icon} name=${isOpen ? "chevron-down" : "chevron-right"} /> ${nodes.length} ${text}</button>`;
}

/** Puts the nodes of each workflow run below its row (below the first node if that row is not loaded), where they can be shown and hidden. */
function useFolded(items, isOn) {
  const [opened, setOpened] = useState(() => new Set());
  const known = new Set(items.map((run) => run.run_id));
  const heads = new Map(); // id of the workflow run → id of the row that its nodes are below
  const nodes = new Map();
  for (const run of isOn ? items : []) {
    const id = run.workflow?.run_id;
    if (!id) continue;
    if (!heads.has(id)) heads.set(id, known.has(id) ? id : run.run_id);
    const head = heads.get(id);
    if (head !== run.run_id) nodes.set(head, [...(nodes.get(head) ?? []), run]);
  }
  const inside = new Set([...nodes.values()].flat().map((run) => run.run_id));
  const below = (run) => [run, ...(opened.has(run.run_id) ? (nodes.get(run.run_id) ?? []).flatMap(below) : [])];
  return {
    rows: items.filter((run) => !inside.has(run.run_id)).flatMap(below), nodes, opened, isInside: (run) => inside.has(run.run_id),
    toggle: (id) => setOpened((old) => (old.has(id) ? new Set([...old].filter((one) => one !== id)) : new Set([...old, id]))),
  };
}

function known(run) {
  if (run.state === "running") return progressText(run);
  if (run.state === "blocked" && run.blocked.length) return `blocked: ${blockReasons(run)}`;
  return run.state === "succeeded" ? "" : errorSummary(run);
}

function RunTable({ data, terms, busy, selected, more }) {
  const fold = useFolded(data.items, !UNFOLDED_BY.some((name) => terms[name]));
  if (!data.items.length) return html`<${NoRuns} data=${data} terms=${terms} />`;
  const about = { ids: [...selected.value] };
  const then = () => (selected.value = new Set());
  return html`
    <${Table} caption="Runs" kind="runs" columns=${COLUMNS(fold)} rows=${fold.rows} asked=${fold.opened} id=${(run) => run.run_id}
      open=${(run) => navigate(`runs/${part(run.run_id)}`)} selected=${may("operator") ? selected : undefined} keys=${{ e: ["explain", whyRun] }} />
    <p class="mute looked">${data.next_cursor ? `The newest ${data.items.length.toLocaleString("en")} runs.` : `All ${data.items.length.toLocaleString("en")} ${data.items.length === 1 ? "run is" : "runs are"} shown.`}${fold.nodes.size > 0
      && ` ${[...fold.nodes.values()].flat().length} of them are nodes of workflow runs.`}</p>
    <${MoreButton} cursor=${data.next_cursor} busy=${busy} onMore=${more} />
    <${SelectionBar} selected=${selected}>
      <button type="button" onClick=${() => startBulk({ ...RETRY, about, then })}>Retry…</button>
      <button type="button" class="danger" onClick=${() => startBulk({ ...CANCEL, about, then })}>Cancel…</button>
    <//>`;
}

const CANCEL = {
  action: "runs.cancel", verb: "Cancel", what: "runs",
  note: "Waiting runs are cancelled at once; executing runs are asked to stop; ended runs are not affected.",
};
const RETRY = {
  action: "runs.retry", verb: "Retry", what: "runs", paced: true,
  note: "Dead runs are retried; runs that wait for their next attempt start now.",
};

/** Bulk actions on all matching runs. The filter contains only states that the action applies to, so that the count is right. */
function bulkItems(terms) {
  if (!may("operator")) return [];
  const chosen = terms.state?.split(",");
  const item = (plan, applies, more) => {
    const state = chosen ? applies.filter((one) => chosen.includes(one)) : applies;
    return state.length > 0 && { ...more, text: `${plan.verb} all ${state === CANCELLABLE ? "unfinished" : state.join(" or ")} runs…`, act: () => startBulk({ ...plan, about: { filter: { ...filterOf(terms), state } } }) };
  };
  const items = [
    item(RETRY, RETRIABLE, { icon: "retry" }),
    item(CANCEL, CANCELLABLE, { icon: "ban", tone: "bad" }),
  ].filter(Boolean);
  return items.length ? [...items, "-"] : [];
}

/** No match: shows for each filter whether runs would match without it. */
function NoRuns({ data, terms }) {
  const names = Object.keys(terms);
  const without = (name) => Object.fromEntries(Object.entries(terms).filter(([other]) => other !== name));
  const found = useData(
    (stop) => Promise.all(names.map(async (name) => ({ name, some: (await get("runs", { ...apiTerms(without(name)), limit: 1 }, stop)).items.length > 0 }))),
    [JSON.stringify(terms)],
    { once: true },
  );
  if (!names.length) {
    return html`<${Empty} title="No runs yet"><p>A run is created when a job is due or triggered, or when a task is sent. Run one now:</p>
      <p><${Command} text=${FIRST} /></p><p><${Link} to="jobs">Show jobs<//></p><//>`;
  }
  const looked = `${data.scanned.toLocaleString("en")} runs examined.`;
  return html`<${Empty} title=${data.next_cursor ? "No match among the runs examined" : "No matching runs"}>
    <p>${looked}${data.next_cursor ? " There are older runs: choose a time range to reach them." : ""}</p>
    <ul class="menu narrow">${names.map((name) => {
      const some = found.data?.find((one) => one.name === name)?.some;
      return html`<li><button type="button" onClick=${() => setQuery({ [name]: "" })}>Without <code>
        ${name === "q" ? terms.q : `${name}:${terms[name]}`}</code> ${some === undefined ? "" : some ? "there are matches" : "there are no matches either"}</button>
        </li>`;
    })}</ul>
    <p><button type="button" class="main" onClick=${clear}>Clear filters</button></p><//>`;
}
