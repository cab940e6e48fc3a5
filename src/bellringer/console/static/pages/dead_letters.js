// Dead letters, grouped by error; retry or discard them, and undo a discard.
import { html, signal, useMemo, useState } from "../lib/html.js";
import { get, may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { formatCount, fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { copyItems } from "../parts/copy_as.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { SelectionBar, startBulk } from "../parts/bulk.js";
import { perform } from "../parts/dialog.js";
import { Discarded, discardOne } from "../parts/discards.js";
import { Facet } from "../parts/filters.js";
import { Menu } from "../parts/menu.js";
import { Operations } from "../parts/operations.js";
import { Segments, segment } from "../parts/segmented_control.js";
import { RunId, RunSubject, errorSummary } from "../parts/run_text.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";

const GROUPS = 200;
const PAGE = 50;
const FILTERS = ["fingerprint", "job", "task"];
const RETRY = {
  action: "dead_letters.redrive", verb: "Retry", what: "dead letters", paced: true,
  note: "The same runs are retried with the same idempotency keys.",
};
const DISCARD = {
  action: "dead_letters.discard", verb: "Discard", what: "dead letters", weighty: true,
  note: "They are removed from the dead letters. Their history stays, and you can undo this for a day.",
};

const termsOf = (given) => Object.fromEntries(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
const errorOf = (group) => errorSummary({ error: { type: group.type, message: group.message }, reason: group.reason });

/** Type and message of the error of a group. The error of a workflow run is a sentence that names its node. */
const partsOf = (group) => (group.type === "NodesFailed" ? /^(.+? failed): (.+)$/s.exec(errorOf(group))?.slice(1) ?? [errorOf(group)] : [group.type ?? group.reason, group.message]);

/** All dead letters, grouped. */
function useGroups() {
  return useData(async (stop) => {
    const page = await fetchPages("dead-letters", { group_by: "fingerprint" }, GROUPS, stop);
    const items = page.items.toSorted((a, b) => new Date(b.last_died_at) - new Date(a.last_died_at));
    const value = items.reduce((sum, one) => sum + one.count.value, 0);
    const isLeast = page.next_cursor || items.some((one) => one.count.relation === "gte");
    return { items, more: Boolean(page.next_cursor), total: { value, relation: isLeast ? "gte" : "eq" } };
  }, []);
}

const VIEWS = { dead: "Open", discarded: "Discarded" };

export default function DeadLetters() {
  const view = segment("view", VIEWS, "dead");
  const terms = termsOf(query.value);
  const groups = useGroups();
  return html`<header class="head stacked"><h1>Dead letters</h1>${view === "dead" && groups.data && !Object.keys(terms).length && html`<${Sum} of=${groups.data} />`}<span class="gap"></span>
      <${Segments} name="view" label="View" of=${VIEWS} usual="dead" clear=${FILTERS} />
      ${view === "dead" ? html`<${PageMenu} terms=${terms} hasItems=${groups.data?.items.length > 0} />`
        : html`<${CopyAs} cli="bellringer dead discarded" path="dead-letters/discarded" />`}</header>
    ${view === "dead" ? html`<${Dead} terms=${terms} groups=${groups} />` : html`<${Discarded} />`}`;
}

function Dead({ terms, groups }) {
  const filtered = Object.keys(terms).length > 0;
  return html`<${Loading} of=${groups} shape="page">${(data) => html`
      ${(data.items.length > 0 || filtered) && html`<${Tools} groups=${data.items} terms=${terms} />`}
      ${filtered ? html`<${Letters} terms=${terms} groups=${data.items} />` : data.items.length > 0 && html`<${Groups} of=${data} />`}
      ${!data.items.length && !filtered && html`<${NoDeadLetters} />`}`}<//>
    <section class="below"><${Operations} only="dead_letters" /></section>`;
}

/** The menu of the page: actions on all dead letters, and commands for what it shows. */
function PageMenu({ terms, hasItems }) {
  const isFiltered = Object.keys(terms).length > 0;
  const options = Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("");
  const path = isFiltered ? `dead-letters?${new URLSearchParams(terms)}` : "dead-letters?group_by=fingerprint";
  const actions = may("operator") && hasItems && !isFiltered ? [
    { icon: "retry", text: "Retry all…", act: () => startBulk({ ...RETRY, about: { filter: {} } }) },
    { icon: "trash", tone: "bad", text: "Discard all…", act: () => startBulk({ ...DISCARD, about: { filter: {} } }) },
    "-",
  ] : [];
  return html`<${Menu} label="More actions" items=${[...actions, ...copyItems({ cli: isFiltered ? `bellringer dead list${options}` : "bellringer dead groups", path })]} />`;
}

/** The summary line. */
function Sum({ of }) {
  if (!of.items.length) return null;
  const groups = `${of.items.length}${of.more ? "+" : ""} ${of.items.length === 1 ? "group" : "groups"}`;
  return html`<span class="sum"><strong class="tone-bad">${formatCount(of.total)}</strong> ${of.total.value === 1 ? "dead letter" : "dead letters"} in ${groups}, latest <${Time} at=${of.items[0].last_died_at} /></span>`;
}

function NoDeadLetters() {
  return html`<${Empty} title="No dead letters">
    <p>A run that has used all its attempts appears here until someone retries or discards it. The task sets the number of attempts:</p>
    <p><code>@app.task(retry=Retry(attempts=5, base="10s"))</code></p><//>`;
}

const distinctValues = (rows, pick) => [...new Set(rows.flatMap(pick))].sort();

function Tools({ groups, terms }) {
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const filtered = Object.keys(terms).length > 0;
  return html`<div class="tools letter-filters">
    <${Facet} name="job" label="Job" of=${distinctValues(groups, (one) => one.jobs)} /><${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />
    ${filtered && html`<button type="button" class="quiet" onClick=${() => navigate("dead-letters")}>All groups</button>`}
    <span class="gap"></span>
    ${may("operator") && filtered && html`<button type="button" onClick=${() => startBulk({ ...RETRY, about: { filter: terms } })}><${Icon} name="retry" /> Retry these…</button>
      <button type="button" onClick=${() => startBulk({ ...DISCARD, about: { filter: terms } })}><${Icon} name="trash" /> Discard these…</button>`}
  </div>`;
}

const groupFilter = (group) => ({ about: { filter: { fingerprint: group.fingerprint } } });

const GROUP_COLUMNS = [
  { name: "Error", class: "error-cell", phone: "title", cell: (group) => {
    const [type, message] = partsOf(group);
    return html`<div><${Link} to="dead-letters" terms=${{ fingerprint: group.fingerprint }} class="name">${type}<//>
      ${message && html`<div class="message" title=${message}>${message}</div>`}</div>`;
  } },
  { name: "Runs", class: "number", phone: "hide", cell: (group) => html`<strong>${formatCount(group.count)}</strong>` },
  { name: "Jobs", phone: "line", cell: (group) => (group.jobs.length === 0 ? html`<span class="mute">none: sent without a job</span>`
    : html`<span>${group.jobs.map((job, n) => html`${n ? ", " : ""}<${Link} to="jobs" terms=${{ q: job }}>${job}<//>`)}</span>`) },
  { name: "First seen", class: "tight", phone: "hide", cell: (group) => html`<${Time} at=${group.first_died_at} />` },
  { name: "Last seen", class: "tight", phone: "line", short: "·", cell: (group) => html`<${Time} at=${group.last_died_at} /><span class="phone-only"> · ${formatCount(group.count)} ${group.count.value === 1 ? "run" : "runs"}</span>` },
  { name: "Latest run", class: "tight rare", phone: "hide", cell: (group) => group.runs.length > 0 && html`<${RunId} id=${group.runs[0]} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "full", cell: (group) => may("operator") && html`<span class="row-actions">
    <button type="button" class="quiet" aria-label=${`Retry: ${errorOf(group)}`} onClick=${() => startBulk({ ...RETRY, ...groupFilter(group) })}><${Icon} name="retry" /> Retry…</button>
    <button type="button" class="quiet" aria-label=${`Discard: ${errorOf(group)}`} onClick=${() => startBulk({ ...DISCARD, ...groupFilter(group) })}>Discard…</button></span>` },
];

function Groups({ of }) {
  const keys = may("operator") ? { r: ["retry the group", (group) => startBulk({ ...RETRY, ...groupFilter(group) })] } : {};
  return html`<${Table} caption="Dead letters by error" columns=${GROUP_COLUMNS} rows=${of.items} id=${(group) => group.fingerprint}
    open=${(group) => setQuery({ fingerprint: group.fingerprint }, {})} keys=${keys} />
    <p class="mute looked">Runs are grouped by the type and message of their error, ignoring parts that vary from run to run.${" "}
      ${of.more ? `The first ${GROUPS} groups are shown.` : ""}</p>`;
}

/** Retries one dead letter without a confirmation. */
function retry(letter) {
  return perform(() => post("dead-letters/redrive", { runs: [letter.run_id] }), ({ count }) => (count ? "Retrying the run" : "The run was no longer a dead letter"));
}

const COLUMNS = [
  { name: "Job or task", class: "whose", phone: "title", cell: (one) => html`<${RunSubject} run=${one} />` },
  { name: "Run", class: "tight rare", phone: "hide", cell: (one) => html`<${RunId} id=${one.run_id} />` },
  { name: "Scheduled", class: "tight", phone: "hide", cell: (one) => html`<${Time} at=${one.scheduled_for} />` },
  { name: "Died", class: "tight", phone: "side", cell: (one) => html`<${Time} at=${one.died_at} />` },
  { name: "Attempts", class: "number", phone: "hide", cell: (one) => one.attempt },
  { name: "Error", class: "known", phone: "full", cell: (one) => html`<span title=${errorSummary(one)}>${errorSummary(one)}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "full", cell: (one) => may("operator") && html`<span class="row-actions"><button type="button" class="quiet"
    aria-label=${`Retry ${one.run_id}`} onClick=${() => retry(one)}>Retry</button><button type="button" class="quiet"
    aria-label=${`Discard ${one.run_id}`} onClick=${() => discardOne(one)}>Discard</button></span>` },
];

function Letters({ terms, groups }) {
  const [wanted, setWanted] = useState(PAGE);
  const selected = useMemo(() => signal(new Set()), []);
  const found = useData((stop) => fetchPages("dead-letters", terms, wanted, stop), [JSON.stringify(terms), wanted]);
  const group = groups.find((one) => one.fingerprint === terms.fingerprint);
  const chosen = { about: { ids: [...selected.value] }, then: () => (selected.value = new Set()) };
  const keys = { e: ["explain", whyRun], ...(may("operator") && { r: ["retry", retry], d: ["discard", discardOne] }) };
  return html`${group && html`<div class="card group"><h2>${errorOf(group)}</h2><p class="mute">${formatCount(group.count)} runs, first <${Time}
    at=${group.first_died_at} />, last <${Time} at=${group.last_died_at} /> · <code>${group.fingerprint}</code></p></div>`}
    <${Loading} of=${found} shape="table">${(data) =>
      data.items.length === 0
        ? html`<${Empty} title="No matching dead letters"><p>${Object.entries(terms).map(([name, value]) => html`<code>${name}: ${value}</code> `)}</p><p><button
          type="button" onClick=${() => navigate("dead-letters")}>Show all groups</button></p><//>`
        : html`<${Table} caption="Dead letters" columns=${COLUMNS} rows=${data.items} id=${(one) => one.run_id}
          open=${(one) => navigate(`runs/${part(one.run_id)}`)} selected=${may("operator") ? selected : undefined} keys=${keys} />
          <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />
          <${SelectionBar} selected=${selected}>
            <button type="button" onClick=${() => startBulk({ ...RETRY, ...chosen })}>Retry…</button>
            <button type="button" class="danger" onClick=${() => startBulk({ ...DISCARD, ...chosen })}>Discard…</button><//>`}<//>`;
}
