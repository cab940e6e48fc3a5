// Dead letters: what runs died of, in groups, and how to bring them back or lay them to rest.
import { html, signal, useMemo, useState } from "../lib/html.js";
import { get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { counted, gather } from "../lib/pages.js";
import { go, narrow, query } from "../lib/place.js";
import { CopyAs, Empty, Link, Loading, More, When } from "../parts/basics.js";
import { Selected, many } from "../parts/bulk.js";
import { attempt } from "../parts/dialog.js";
import { Facet } from "../parts/filters.js";
import { Operations } from "../parts/operations.js";
import { RunId, Whose, headline } from "../parts/run_words.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";

const GROUPS = 200;
const PAGE = 50;
const FILTERS = ["fingerprint", "job", "task"];
const REDRIVE = {
  action: "dead_letters.redrive", verb: "Redrive", what: "dead letters", paced: true,
  note: "The same runs are tried again, under the same idempotency keys.",
};
const DISCARD = {
  action: "dead_letters.discard", verb: "Discard", what: "dead letters", weighty: true,
  note: "They are no longer dead letters, and stay dead in the history.",
};

const termsOf = (given) => Object.fromEntries(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
const errorOf = (group) => [group.type, group.message].filter(Boolean).join(": ") || group.reason;

/** All letters, by their groups. */
function useGroups() {
  return useData(async (stop) => {
    const page = await gather("dead-letters", { group_by: "fingerprint" }, GROUPS, stop);
    const items = page.items.toSorted((a, b) => new Date(b.last_died_at) - new Date(a.last_died_at));
    const value = items.reduce((sum, one) => sum + one.count.value, 0);
    const isLeast = page.next_cursor || items.some((one) => one.count.relation === "gte");
    return { items, more: Boolean(page.next_cursor), total: { value, relation: isLeast ? "gte" : "eq" } };
  }, []);
}

export default function DeadLetters() {
  const terms = termsOf(query.value);
  const groups = useGroups();
  const filtered = Object.keys(terms).length > 0;
  return html`<header class="head"><h1>Dead letters</h1><span class="gap"></span><${Copies} terms=${terms} /></header>
    <${Loading} of=${groups}>${(data) => html`<${Verdict} of=${data} />
      ${(data.items.length > 0 || filtered) && html`<${Tools} groups=${data.items} terms=${terms} />`}
      ${filtered ? html`<${Letters} terms=${terms} groups=${data.items} />` : data.items.length > 0 && html`<${Groups} of=${data} />`}
      ${!data.items.length && !filtered && html`<${Nothing} />`}`}<//>
    <section class="below"><${Operations} brief=${true} /></section>`;
}

function Copies({ terms }) {
  const options = Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("");
  const path = Object.keys(terms).length ? `dead-letters?${new URLSearchParams(terms)}` : "dead-letters?group_by=fingerprint";
  return html`<${CopyAs} cli=${Object.keys(terms).length ? `bellringer dead list${options}` : "bellringer dead groups"} path=${path} />`;
}

/** The page's first line. */
function Verdict({ of }) {
  if (!of.items.length) return html`<p class="verdict tone-good" role="status"><span aria-hidden="true">✓</span> Nothing is dead.</p>`;
  const groups = `${of.items.length}${of.more ? " or more" : ""} ${of.items.length === 1 ? "group" : "groups"}`;
  return html`<p class="verdict tone-bad" role="status"><span aria-hidden="true">✕</span> <strong>
    ${counted(of.total)} dead</strong> in ${groups}; newest <${When} at=${of.items[0].last_died_at} /></p>`;
}

function Nothing() {
  return html`<${Empty} title="No dead letters">
    <p>A run that uses up its attempts comes here, and stays until somebody redrives or discards it. How often a task is tried is its own to say:</p>
    <p><code>@app.task(retry=Retry(attempts=5, base="10s"))</code></p><//>`;
}

const seen = (rows, pick) => [...new Set(rows.flatMap(pick))].sort();

function Tools({ groups, terms }) {
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const filtered = Object.keys(terms).length > 0;
  return html`<div class="tools">
    <${Facet} name="job" label="Job" of=${seen(groups, (one) => one.jobs)} /><${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />
    ${filtered && html`<button type="button" class="quiet" onClick=${() => go("dead-letters")}>All groups</button>`}
    <span class="gap"></span>
    ${may("operator") && html`<button type="button" class="main" onClick=${() => many({ ...REDRIVE, about: { filter: terms } })}>
      ${filtered ? "Redrive these …" : "Redrive all …"}</button>
      <button type="button" class="danger" onClick=${() => many({ ...DISCARD, about: { filter: terms } })}>
        ${filtered ? "Discard these …" : "Discard all …"}</button>`}
  </div>`;
}

const about = (group) => ({ about: { filter: { fingerprint: group.fingerprint } } });

const GROUP_COLUMNS = [
  { name: "Died", class: "number", cell: (group) => html`<strong>${counted(group.count)}</strong>` },
  { name: "Of", cell: (group) => html`<${Link} to="dead-letters" terms=${{ fingerprint: group.fingerprint }} class="name">${group.type ?? group.reason}<//>
    ${group.message && html`<div class="message" title=${group.message}>${group.message}</div>`}` },
  { name: "Jobs", cell: (group) => group.jobs.map((job, n) => html`${n ? ", " : ""}<${Link} to="jobs" terms=${{ q: job }}>${job}<//>`) },
  { name: "First", class: "tight", cell: (group) => html`<${When} at=${group.first_died_at} />` },
  { name: "Last", class: "tight", cell: (group) => html`<${When} at=${group.last_died_at} />` },
  { name: "A run", class: "tight", cell: (group) => group.runs.length > 0 && html`<${RunId} id=${group.runs[0]} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (group) => may("operator") && html`<span class="row-actions">
    <button type="button" aria-label=${`Redrive: ${errorOf(group)}`} onClick=${() => many({ ...REDRIVE, ...about(group) })}>Redrive …</button>
    <button type="button" aria-label=${`Discard: ${errorOf(group)}`} onClick=${() => many({ ...DISCARD, ...about(group) })}>Discard …</button></span>` },
];

function Groups({ of }) {
  const keys = may("operator") ? { r: ["redrive the group", (group) => many({ ...REDRIVE, ...about(group) })] } : {};
  return html`<${Table} caption="What runs died of" columns=${GROUP_COLUMNS} rows=${of.items} id=${(group) => group.fingerprint}
    open=${(group) => narrow({ fingerprint: group.fingerprint }, {})} keys=${keys} />
    <p class="mute">Runs that died of the same are one group: the kind of error and its message, without what differs from run to run.${" "}
      ${of.more ? `The first ${GROUPS} groups are shown.` : ""}</p>`;
}

/** One at once: it is small, and what went wrong is said. */
function redrive(letter) {
  return attempt(() => post("dead-letters/redrive", { runs: [letter.run_id] }), ({ count }) => (count ? "it is tried again" : "it was no longer dead"));
}

const COLUMNS = [
  { name: "Job or task", class: "whose", cell: (one) => html`<${Whose} run=${one} />` },
  { name: "Run", class: "tight", cell: (one) => html`<${RunId} id=${one.run_id} />` },
  { name: "Scheduled for", class: "tight", cell: (one) => html`<${When} at=${one.scheduled_for} />` },
  { name: "Died", class: "tight", cell: (one) => html`<${When} at=${one.died_at} />` },
  { name: "Attempts", class: "number", cell: (one) => one.attempt },
  { name: "Of", class: "known", cell: (one) => html`<span title=${headline(one)}>${headline(one)}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (one) => may("operator") && html`<button type="button"
    aria-label=${`Redrive ${one.run_id}`} onClick=${() => redrive(one)}>Redrive</button>` },
];

function Letters({ terms, groups }) {
  const [wanted, want] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  const found = useData((stop) => gather("dead-letters", terms, wanted, stop), [JSON.stringify(terms), wanted]);
  const group = groups.find((one) => one.fingerprint === terms.fingerprint);
  const chosen = { about: { ids: [...selected.value] }, then: () => (selected.value = new Set()) };
  const keys = { e: ["why did it die?", whyRun], ...(may("operator") && { r: ["redrive it", redrive] }) };
  return html`${group && html`<div class="card group"><h2>${errorOf(group)}</h2><p class="mute">${counted(group.count)} died of this, first <${When}
    at=${group.first_died_at} />, last <${When} at=${group.last_died_at} /> · <code>${group.fingerprint}</code></p></div>`}
    <${Loading} of=${found}>${(data) =>
      data.items.length === 0
        ? html`<${Empty} title="None of these is dead"><p>${Object.entries(terms).map(([name, value]) => html`<code>${name}: ${value}</code> `)}</p><p><button
          type="button" onClick=${() => go("dead-letters")}>See all groups</button></p><//>`
        : html`<${Table} caption="Dead letters" columns=${COLUMNS} rows=${data.items} id=${(one) => one.run_id}
          open=${(one) => go(`runs/${part(one.run_id)}`)} selected=${may("operator") ? selected : undefined} keys=${keys} />
          <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />
          <${Selected} selected=${selected}>
            <button type="button" onClick=${() => many({ ...REDRIVE, ...chosen })}>Redrive …</button>
            <button type="button" class="danger" onClick=${() => many({ ...DISCARD, ...chosen })}>Discard …</button><//>`}<//>`;
}
