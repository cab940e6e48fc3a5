// The tabs of a job: runs, ledger, schedule, revisions, events. Configuration and metrics have files of their own.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { request, get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { write } from "../lib/json.js";
import { formatDuration } from "../lib/time.js";
import { Card, CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { perform, confirm } from "../parts/dialog.js";
import { Changes } from "../parts/diff.js";
import { pathOf, skipAt, unskip } from "../parts/job_actions.js";
import { RunDuration, errorSummary, formatLateness } from "../parts/run_text.js";
import { Fires, Meaning, expression, usePreview, zoneOf } from "../parts/schedule.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";
import { YearChart } from "../parts/year.js";

const PAGE = 50;
const TIMES = 10;

/** A paginated list of a job, reloaded on changes. */
function useList(path, terms = {}, read = fetchPages) {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(path, terms, wanted, stop), [path, JSON.stringify(terms), wanted]);
  return { found, more: html`<${MoreButton} cursor=${found.data?.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />` };
}

/**
 * The columns whose values differ between the rows, and a line with the values of the others. Only columns with `value(row)` can be left out.
 */
function varying(columns, rows) {
  const isConstant = (column) => column.value && rows.length > 1 && rows.every((row) => column.value(row) === column.value(rows[0]));
  const constant = columns.filter(isConstant).filter((column) => ![undefined, null, ""].includes(column.value(rows[0])));
  const same = constant.map((column) => `${column.name.toLowerCase()} ${String(column.value(rows[0])).replaceAll("_", " ")}`).join(", ");
  return { columns: columns.filter((column) => !isConstant(column)), same: same && html`<p class="mute same">The same in all rows: ${same}.</p>` };
}

/** A table without the columns that are the same in all rows. */
function VaryingTable({ columns: all, rows, ...more }) {
  const { columns, same } = varying(all, rows);
  return html`${same}<${Table} columns=${columns} rows=${rows} ...${more} />`;
}

const runLink = (id, text) => html`<${Link} to=${`runs/${part(id)}`}>${text}<//>`;

// Runs

const RUNS = (zone) => [
  { name: "State", class: "tight", value: (run) => run.state, cell: (run) => html`<${State} of=${run.state} />` },
  { name: "Scheduled for", class: "tight", cell: (run) => runLink(run.run_id, html`<${Time} at=${run.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Cause", class: "tight", value: (run) => run.cause, cell: (run) => run.cause },
  { name: "Attempt", class: "number", value: (run) => run.attempt, cell: (run) => run.attempt },
  { name: "Late by", class: "number", cell: formatLateness },
  { name: "Took", class: "number", cell: (run) => html`<${RunDuration} run=${run} />` },
  { name: "Details", value: (run) => errorSummary(run), cell: (run) => html`<span class="clip long" title=${errorSummary(run)}>${errorSummary(run)}</span>` },
];

export function Runs({ job }) {
  const { found, more } = useList(`${pathOf(job)}/runs`);
  return html`<${Backfills} job=${job} /><${Loading} of=${found} shape="table">${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No runs yet"><p>${job.next_at ? html`The next run is <${Time} at=${job.next_at} />.` : "There are no upcoming runs."} To run it now:</p><p>
        <code>bellringer jobs trigger ${job.name} --wait</code></p><//>`
      : html`<${VaryingTable} caption=${`Runs of ${job.name}`} columns=${RUNS(zoneOf(job))} rows=${items} id=${(run) => run.run_id}
        open=${(run) => navigate(`runs/${part(run.run_id)}`)} keys=${{ w: ["explain the run", whyRun] }} />`}<//>${more}
    <p><${Link} to="runs" terms=${{ job: job.name }}>All runs, with filters<//></p>`;
}

/** Open backfills and catch-ups. */
function Backfills({ job }) {
  const found = useData((stop) => get("backfills", { job: job.job_id, limit: 10 }, stop), [job.job_id]);
  const open = (found.data?.items ?? []).filter((one) => !one.ended_at);
  const ask = (one, what) => perform(() => post(`backfills/${part(one.backfill_id)}/${what}`, {}).then(found.reload));
  const stop = (one) =>
    confirm({
      title: `Cancel ${one.backfill_id}?`,
      verb: "Cancel the backfill",
      note: "Its waiting runs are cancelled; executing runs finish.",
      act: () => post(`backfills/${part(one.backfill_id)}/cancel`, {}).then(found.reload),
    });
  if (!open.length) return null;
  return html`<${Card} title="Open backfills" wide=${true}>${open.map((one) => {
    const done = one.made + one.passed;
    return html`<div class="tools" key=${one.backfill_id}><code>${one.backfill_id}</code> <span>${one.cause}, ${one.state}</span>
      ${one.total !== null && html`<progress max=${one.total} value=${done} aria-label=${`${done} of ${one.total}`}></progress>`}
      <span class="mute">${done.toLocaleString("en")}${one.total === null ? "" : ` of ${one.total.toLocaleString("en")}`} · by ${one.who}</span>
        <span class="gap"></span>
      ${may("operator") && html`<button type="button" onClick=${() => ask(one, one.state === "paused" ? "resume" : "pause")}>
        ${one.state === "paused" ? "Resume" : "Pause"}</button>
        <button type="button" class="danger" onClick=${() => stop(one)}>Cancel …</button>`}
    </div>`;
  })}<//>`;
}

// Ledger

function occurrenceCell(entry, zone) {
  if (entry.kind !== "gap") return entry.run_id ? runLink(entry.run_id, html`<${Time} at=${entry.at} job=${zone} short=${false} />`) : html`<${Time}
    at=${entry.at} job=${zone} short=${false} />`;
  return html`<${Time} at=${entry.from} job=${zone} short=${false} /> – <${Time} at=${entry.to} job=${zone} short=${false} />`;
}

function occurrences(count) {
  return count === null ? "occurrences, not counted" : `${count.toLocaleString("en")} occurrence${count === 1 ? "" : "s"}`;
}

function reasonCell(entry, zone) {
  const words = [];
  if (entry.kind === "gap") words.push(occurrences(entry.count));
  if (entry.error) words.push(entry.error);
  if (entry.reason) words.push(entry.reason.replaceAll("_", " "));
  if (entry.cause && entry.cause !== "schedule") words.push(entry.cause);
  return html`<span class="clip long" title=${words.join(" · ")}>${words.join(" · ")}</span>${entry.into && html` · coalesced into <${Time} at=${entry.into} job=${zone} short=${false} />`}`;
}

const hasReason = (entry) => entry.kind === "gap" || entry.reason || entry.error || entry.into || (entry.cause && entry.cause !== "schedule");

const LEDGER = (zone) => [
  { name: "Outcome", class: "tight", value: (entry) => entry.outcome, cell: (entry) => html`<${State} of=${entry.outcome} />` },
  { name: "Occurrence", class: "tight", cell: (entry) => occurrenceCell(entry, zone) },
  { name: "Why", value: (entry) => (hasReason(entry) ? entry : ""), cell: (entry) => reasonCell(entry, zone) },
  { name: "Late by", class: "number", cell: formatLateness },
  { name: "Took", class: "number", cell: (entry) => formatDuration(entry.seconds) },
  { name: "By", class: "tight", value: (entry) => entry.who ?? "", cell: (entry) => entry.who ?? "" },
];

/** Reads the ledger, then the errors of its failed runs. If the latter fails, the ledger is shown without them. */
async function readLedger(job, path, terms, wanted, stop) {
  const page = await fetchPages(path, terms, wanted, stop);
  const failed = page.items.filter((entry) => entry.outcome === "failed");
  if (!failed.length) return page;
  const dead = await fetchPages("runs", { job: job.job_id, state: "dead", from: failed.at(-1).at }, failed.length, stop).catch((error) => {
    if (error.name === "AbortError") throw error;
    return { items: [] };
  });
  const errors = new Map(dead.items.map((run) => [run.run_id, errorSummary(run)]));
  return { ...page, items: page.items.map((entry) => ({ ...entry, error: errors.get(entry.run_id) })) };
}

export function Ledger({ job }) {
  const { found, more } = useList(`${pathOf(job)}/ledger`, {}, (...all) => readLedger(job, ...all));
  return html`<p class="mute">Every occurrence has one record: a run, or a range of occurrences without a run, with the reason. <${CopyAs}
    cli=${`bellringer why '${job.name}'`} path=${`${pathOf(job)}/ledger`} /></p>
    <${Loading} of=${found} shape="table">${({ items }) =>
      items.length === 0
        ? html`<${Empty} title="No records yet"><p>The first occurrence creates the first record.</p><//>`
        : html`<${VaryingTable} caption=${`Ledger of ${job.name}`} columns=${LEDGER(zoneOf(job))} rows=${items}
          id=${(entry) => `${entry.kind} ${entry.run_id ?? entry.from ?? entry.at}`}
          open=${(entry) => entry.run_id && navigate(`runs/${part(entry.run_id)}`)} />`}<//>${more}`;
}

// Schedule

export function Times({ job }) {
  const skips = useData((stop) => get(`${pathOf(job)}/skip`, { limit: 100 }, stop), [job.job_id]);
  const skipped = new Map((skips.data?.items ?? []).map((one) => [new Date(one.at).getTime(), one]));
  if (!job.schedules.length) return html`<${Empty} title="No schedule"><p>The job runs only when it is triggered.</p><p>
    <code>bellringer jobs trigger ${job.name}</code></p><//>`;
  return html`${(!job.enabled || job.paused) && html`<p
    class="tone-warn">The job is ${job.paused ? "paused" : "disabled"}. These are the times at which it would fire.</p>`}
    ${job.schedules.map((one) => html`<${NextTimes} key=${expression(one)} job=${job} schedule=${one} skipped=${skipped} reload=${skips.reload} />`)}
    <${Days} job=${job} />`;
}

function NextTimes({ job, schedule, skipped, reload }) {
  const from = job.starts_at && new Date(job.starts_at) > Date.now() ? new Date(new Date(job.starts_at) - 1).toISOString() : undefined;
  const { response, error, busy } = usePreview(schedule, { job: job.name, n: TIMES, from, mark: job.next_at });
  const fires = (response?.fires ?? []).filter((fire) => !job.ends_at || new Date(fire.at) <= new Date(job.ends_at));
  function act(fire) {
    const skip = skipped.get(new Date(fire.at).getTime());
    const [text, does] = skip ? ["Undo skip", () => unskip(job, fire.at)] : ["Skip", () => skipAt(job, fire.at)];
    return html`${skip && html`<${State} of="skipped" title=${[skip.by, skip.reason].filter(Boolean).join(": ")} /> `}
      ${may("operator") && html`<button type="button" class="quiet" onClick=${() => perform(async () => { await does(); reload(); })}>${text}</button>`}`;
  }
  return html`<${Card} title=${html`<code>${expression(schedule)}</code>`} wide=${true}>
    <${Loading} of=${{ data: response ?? undefined, error, busy, reload: undefined }}>${(data) => html`<${Meaning} of=${data} />
      <${Fires} fires=${fires} zone=${schedule.tz} act=${act} />`}<//>
    ${(job.jitter || job.ends_at || from) && html`<p class="mute">
      ${[job.jitter && `runs start ${job.jitter_by} after these times (jitter)`, from && "the schedule has not started", job.ends_at && "the schedule has an end"]
        .filter(Boolean).join(" · ")}</p>`}<//>`;
}

function Days({ job }) {
  const thisYear = new Date().getUTCFullYear();
  const year = Number(query.value.get("year")) || thisYear;
  const found = useData((stop) => get(`${pathOf(job)}/days`, { year }, stop), [job.job_id, year]);
  const turn = (to) => setQuery({ year: to === thisYear ? "" : String(to) });
  const aside = html`<span class="tools"><button type="button" class="quiet" aria-label="Previous year" onClick=${() => turn(year - 1)}><${Icon} name="chevron-left" /></button><strong>
    ${year}</strong>
    <button type="button" class="quiet" aria-label="Next year" onClick=${() => turn(year + 1)}><${Icon} name="chevron-right" /></button></span>`;
  return html`<${Card} title="Year" wide=${true} aside=${aside}>
    <${Loading} of=${found}>${(data) => html`<${YearChart} of=${data} />
      <p class="mute">Days are in UTC.${data.kept_from ? ` Runs before ${data.kept_from} have been deleted.` : ""}
        ${data.coming_known === false ? " Future runs cannot be predicted." : ""}</p>`}<//><//>`;
}

// Revisions

export function Revisions({ job, etag, reload }) {
  const { found, more } = useList(`${pathOf(job)}/revisions`);
  return html`<${Loading} of=${found}>${({ items }) => html`<${Compare} job=${job} items=${items} etag=${etag}
    reload=${() => { reload(); found.reload(); }} />`}<//>${more}`;
}

function Compare({ job, items, etag, reload }) {
  const to = Number(query.value.get("b")) || job.revision;
  const from = Number(query.value.get("a")) || to - 1;
  function back(one) {
    confirm({
      title: `Roll back ${job.name} to revision ${one.revision}?`,
      verb: `Roll back to ${one.revision}`,
      note: `The old definition becomes a new revision, ${job.revision + 1}. A pause is not affected.`,
      act: () => request("POST", `${pathOf(job)}/rollback`, { body: { revision: one.revision }, etag }).then(reload),
      done: `Rolled ${job.name} back to revision ${one.revision}`,
    });
  }
  const pick = (name, one, chosen) => html`<label class="pick"><input type="radio" name=${name}
    aria-label=${`${name === "a" ? "Compare from" : "Compare to"} revision ${one.revision}`} checked=${one.revision === chosen}
    onChange=${() => setQuery({ [name]: String(one.revision) })} /></label>`;
  const { columns, same } = varying([
    { name: "From", class: "tight", cell: (one) => pick("a", one, from) }, { name: "To", class: "tight", cell: (one) => pick("b", one, to) },
    { name: "Revision", class: "number", cell: (one) => one.revision },
    { name: "Action", value: (one) => one.what, cell: (one) => one.what.replaceAll("_", " ") }, { name: "When", cell: (one) => html`<${Time} at=${one.at} />` },
    { name: "By", value: (one) => one.by, cell: (one) => one.by }, { name: "Reason", value: (one) => one.why ?? "", cell: (one) => one.why ?? "" },
    { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (one) => (one.revision === job.revision ? html`<span class="mute">current</span>`
      : may("editor") && html`<button type="button" onClick=${() => back(one)}>Roll back …</button>`) },
  ], items);
  return html`<${Difference} job=${job} from=${from} to=${to} />${same}
    <div class="table rows"><table><caption class="unseen">Revisions of ${job.name}</caption>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.class}>${column.name}</th>`)}</tr></thead>
      <tbody>${items.map((one) => html`<tr key=${one.revision}>${columns.map((column) => html`<td class=${column.class}
        data-label=${typeof column.name === "string" ? column.name : undefined}>${column.cell(one)}</td>`)}</tr>`)}</tbody></table></div>`;
}

function Difference({ job, from, to }) {
  const against = from >= 1 && from !== to ? from : undefined;
  const found = useData((stop) => get(`${pathOf(job)}/revisions/${to}`, { against }, stop), [job.job_id, against, to], { once: true });
  return html`<${Card} title=${against ? `From revision ${against} to ${to}` : `Revision ${to}`} wide=${true} aside=${html`<${CopyAs}
    cli=${`bellringer jobs revisions '${job.name}' --show ${to}`}
    path=${`${pathOf(job)}/revisions/${to}${against ? `?against=${against}` : ""}`} />`}>
    <${Loading} of=${found}>${(data) => (data.against === null ? html`<p
      class="mute">This is the first revision.</p>` : html`<${Changes} of=${data.changes} />`)}<//><//>`;
}

// Events

const FIELDS_OF_DIFFERENCES = ["fields"]; // shown as a difference, not as text

/** What an event says beside its kind; the fields that a declaration changed as a difference. */
function EventDetails({ event }) {
  const fields = Array.isArray(event.data.fields) ? event.data.fields : [];
  const rest = Object.entries(event.data).filter(([name, value]) => value !== null && !(fields.length && FIELDS_OF_DIFFERENCES.includes(name)));
  const text = rest.map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "object" ? (value?.message ?? write(value)) : value}`).join(" · ");
  return html`<span class="clip long" title=${text}>${text}</span>${fields.length > 0 && html`<details><summary>${fields.length}
    ${" "}${fields.length === 1 ? "field" : "fields"} overridden</summary><${Changes} of=${fields} caption="Overridden fields" /></details>`}`;
}

const EVENTS = (zone) => [
  { name: "Kind", class: "tight", value: (event) => event.kind, cell: (event) => html`<${State} of=${event.kind} />` },
  { name: "When", class: "tight", cell: (event) => html`<${Time} at=${event.at} job=${zone} />` },
  { name: "Occurrence", class: "tight", value: (event) => event.scheduled_for ?? "", cell: (event) => (event.run_id ? runLink(event.run_id, html`<${Time}
    at=${event.scheduled_for} job=${zone} short=${false} />`) : html`<${Time} at=${event.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Attempt", class: "number", value: (event) => event.attempt ?? "", cell: (event) => event.attempt ?? "–" },
  { name: "Details", cell: (event) => html`<${EventDetails} event=${event} />` },
];

export function Events({ job }) {
  const { found, more } = useList("events", { job: job.job_id });
  return html`<${Loading} of=${found} shape="table">${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No events"><p>Events appear when the job fails, dies, is late, missed, slow or outgrown, and when it has recovered.</p>
          <p>For “late”, set <code>late_after</code>.</p><//>`
      : html`<${VaryingTable} caption=${`Events of ${job.name}`} columns=${EVENTS(zoneOf(job))} rows=${items} id=${(event) => String(event.event_id)}
        open=${(event) => event.run_id && navigate(`runs/${part(event.run_id)}`)} />`}<//>${more}`;
}
