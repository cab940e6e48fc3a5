// Runs: what waits, runs and has ended, by typed words; and what can be done to many of them.
import { html, signal, useMemo, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { state as live } from "../lib/live.js";
import { counted, gather } from "../lib/pages.js";
import { go, narrow, query } from "../lib/place.js";
import { now } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading, More, Tabs, When } from "../parts/basics.js";
import { Selected, many } from "../parts/bulk.js";
import { Command } from "../parts/command.js";
import { Chips, Choice } from "../parts/filters.js";
import { Operations } from "../parts/operations.js";
import { FILTERS, QueryBar, asked, filterOf } from "../parts/run_query.js";
import { CANCELLABLE, RETRIABLE, RunId, STATES, Took, Whose, headline, heldBy, lateBy, progressOf } from "../parts/run_words.js";
import { State, look } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";

const PAGE = 50;
const COUNT_EVERY = 10_000; // milliseconds: counts take nine looks, so they are not read as often as the list
const RANGES = { "15m": "last 15 minutes", "1h": "last hour", "6h": "last 6 hours", "24h": "last day", "7d": "last week" };
const TABS = { runs: "Runs", operations: "Operations" };
const FIRST = "bellringer jobs trigger nightly --wait";

const termsOf = (given) => Object.fromEntries(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
const clear = () => go("runs");

export default function Runs() {
  return query.value.get("tab") === "operations" ? html`<${Operated} />` : html`<${Listed} />`;
}

const Operated = () => html`<header class="head"><h1>Operations</h1></header><${Where} chosen="operations" /><div role="tabpanel" aria-label="Operations">
  <${Operations} /></div>`;
const Where = ({ chosen }) => html`<${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => go("runs", { tab: tab === "runs" ? "" : tab })} />`;

function Listed() {
  const terms = termsOf(query.value);
  const text = JSON.stringify(terms);
  const [wanted, want] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  const found = useData((stop) => gather("runs", asked(terms), wanted, stop), [text, wanted]);
  const counts = useCounts(terms);
  return html`<header class="head"><h1>Runs</h1><${Sum} counts=${counts} terms=${terms} /><span class="gap"></span><${Copies} terms=${terms} /></header>
    <${Where} chosen="runs" />
    <div role="tabpanel" aria-label="Runs">
      <div class="tools"><${QueryBar} terms=${terms} />
        <${Choice} name="from" label="When" of=${{ ...RANGES, ...(terms.from && !RANGES[terms.from] && { [terms.from]: `from ${terms.from}` }) }} />
        ${Object.keys(terms).length > 0 && html`<button type="button" class="quiet" onClick=${clear}>Clear filters</button>`}
        ${may("operator") && html`<${All} terms=${terms} />`}</div>
      <div class="tools"><${States} counts=${counts} /></div>
      <${Loading} of=${found}>${(data) => html`<${Found} data=${data} terms=${terms} busy=${found.busy} selected=${selected}
        more=${() => want(wanted + PAGE)} />`}<//>
    </div>`;
}

/** How many are in which state, for these filters; read anew now and then, unless the page is paused. */
function useCounts(terms) {
  const { state: _state, ...rest } = terms;
  const tick = useMemo(() => ({ last: 0 }), []);
  if (live.value !== "paused") tick.last = Math.floor(now.value / COUNT_EVERY);
  return useData((stop) => get("runs/counts", asked(rest), stop), [JSON.stringify(rest), tick.last], { still: true }).data?.states;
}

const short = (count) => count && `${count.value.toLocaleString("en")}${count.relation === "gte" ? "+" : ""}`;

/** The page's first line: how many fit, and how many of them want to be looked at. Those whose time has not come are a list of their own. */
function Sum({ counts, terms }) {
  if (!counts) return null;
  const states = terms.state ? terms.state.split(",") : STATES.filter((state) => state !== "waiting");
  const known = states.map((state) => counts[state]).filter(Boolean);
  const all = { value: known.reduce((sum, one) => sum + one.value, 0), relation: known.some((one) => one.relation === "gte") ? "gte" : "eq" };
  const told = ["running", "retrying", "dead"].filter((state) => counts[state]?.value && states.includes(state) && states.length > 1);
  return html`<span class="sum"><strong>${counted(all)}</strong> ${Object.keys(terms).length ? "fit" : "in all"}${told.map((state) => {
    const [icon, tone] = look(state);
    return html` · <span class="tone-${tone}"><span aria-hidden="true">${icon}</span> ${counted(counts[state])} ${state}</span>`;
  })}</span>`;
}

function States({ counts = {} }) {
  const draw = (state) => {
    const [icon, tone] = look(state);
    return html`<span class="tone-${tone}"><span aria-hidden="true">${icon}</span> ${state}</span>`;
  };
  return html`<${Chips} name="state" label="states" of=${STATES} counts=${Object.fromEntries(STATES.map((state) => [state, short(counts[state])]))}
    draw=${draw} />`;
}

const cliOf = (terms) => `bellringer runs list${Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("")}`;
const Copies = ({ terms }) => html`<${CopyAs} cli=${cliOf(asked(terms))} path=${`runs?${new URLSearchParams(asked(terms))}`} />`;

const COLUMNS = [
  { name: "State", class: "tight", cell: (run) => html`<${State} of=${run.state} title=${run.cancel_requested ? "it was asked to stop" : undefined} />` },
  { name: "Job or task", class: "whose", cell: (run) => html`<${Whose} run=${run} />` },
  { name: "Run", class: "tight", cell: (run) => html`<${RunId} id=${run.run_id} />` },
  { name: "Cause", class: "tight", cell: (run) => run.cause },
  { name: "Attempt", class: "number", cell: (run) => run.attempt || "–" },
  { name: "Pool", class: "tight", cell: (run) => run.pool },
  { name: "Worker", class: "number", cell: (run) => (run.worker_id === null ? "–" : html`<${Link} to="runs" terms=${{ worker: run.worker_id }}
    title="the runs of this worker">${run.worker_id}<//>`) },
  { name: "Scheduled for", class: "tight", cell: (run) => html`<${When} at=${run.scheduled_for} />` },
  { name: "Late by", class: "number", title: "from the time that it was scheduled for to its start", cell: lateBy },
  { name: "Took", class: "number", cell: (run) => html`<${Took} run=${run} />` },
  { name: "What is known", class: "known", cell: (run) => html`<span title=${known(run)}>${known(run)}</span>` },
];

function known(run) {
  if (run.state === "running") return progressOf(run);
  if (run.state === "blocked" && run.blocked.length) return `held back: ${heldBy(run)}`;
  return run.state === "succeeded" ? "" : headline(run);
}

function Found({ data, terms, busy, selected, more }) {
  if (!data.items.length) return html`<${Nothing} data=${data} terms=${terms} />`;
  const about = { ids: [...selected.value] };
  const then = () => (selected.value = new Set());
  return html`
    <${Table} caption="Runs" columns=${COLUMNS} rows=${data.items} id=${(run) => run.run_id}
      open=${(run) => go(`runs/${part(run.run_id)}`)} selected=${may("operator") ? selected : undefined} keys=${{ e: ["why is it there?", whyRun] }} />
    <p class="mute looked">${data.items.length.toLocaleString("en")} shown; ${data.scanned.toLocaleString("en")} runs were looked at for them.${" "}
      ${data.next_cursor ? "There may be more further back." : "These are all that fit."}</p>
    <${More} cursor=${data.next_cursor} busy=${busy} onMore=${more} />
    <${Selected} selected=${selected}>
      <button type="button" onClick=${() => many({ ...RETRY, about, then })}>Retry …</button>
      <button type="button" class="danger" onClick=${() => many({ ...CANCEL, about, then })}>Cancel …</button>
    <//>`;
}

const CANCEL = {
  action: "runs.cancel", verb: "Cancel", what: "runs",
  note: "What waits ends at once; what runs is asked to stop; what has ended stays as it is.",
};
const RETRY = {
  action: "runs.retry", verb: "Retry", what: "runs", paced: true,
  note: "The dead are tried anew; those that wait for their next attempt wait no longer.",
};

/** Everything that fits the filters. Only the states that it can be done to are asked for, so that the count is of what will change. */
function All({ terms }) {
  const chosen = terms.state?.split(",");
  const within = (states) => (chosen ? states.filter((state) => chosen.includes(state)) : states);
  const one = (plan, states, tone) => {
    const state = within(states);
    const about = { filter: { ...filterOf(terms), state } };
    return html`<button type="button" class=${tone} disabled=${!state.length} title=${`all that fit and are ${states.join(", ")}`}
      onClick=${() => many({ ...plan, about })}>${plan.verb} all …</button>`;
  };
  return html`${one(RETRY, RETRIABLE, "")}${one(CANCEL, CANCELLABLE, "danger")}`;
}

/** Nothing fits: which filter keeps them out? Each is taken away once, and the list asked for one run. */
function Nothing({ data, terms }) {
  const names = Object.keys(terms);
  const without = (name) => Object.fromEntries(Object.entries(terms).filter(([other]) => other !== name));
  const found = useData(
    (stop) => Promise.all(names.map(async (name) => ({ name, some: (await get("runs", { ...asked(without(name)), limit: 1 }, stop)).items.length > 0 }))),
    [JSON.stringify(terms)],
    { still: true },
  );
  if (!names.length) {
    return html`<${Empty} title="No runs yet"><p>A run is one time that a job is due, was triggered, or a task was sent. Run one now:</p>
      <p><${Command} text=${FIRST} /></p><p><${Link} to="jobs">See the jobs<//></p><//>`;
  }
  const looked = `${data.scanned.toLocaleString("en")} runs were looked at.`;
  return html`<${Empty} title=${data.next_cursor ? "None of the runs looked at fits" : "No run fits"}>
    <p>${looked}${data.next_cursor ? " There are more further back: narrow the range of time to reach them." : ""}</p>
    <ul class="menu narrow">${names.map((name) => {
      const some = found.data?.find((one) => one.name === name)?.some;
      return html`<li><button type="button" onClick=${() => narrow({ [name]: "" })}>Without <code>
        ${name === "q" ? terms.q : `${name}:${terms[name]}`}</code> ${some === undefined ? "" : some ? "there are some" : "there are none either"}</button>
        </li>`;
    })}</ul>
    <p><button type="button" class="main" onClick=${clear}>Clear filters</button></p><//>`;
}
