// The runs of a job, with the occurrences between them that did not run, and its open backfills.
import { html, useMemo } from "../lib/html.js";
import { get, may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { state as live } from "../lib/live.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query, setQuery } from "../lib/router.js";
import { now, secondsBetween } from "../lib/time.js";
import { Card, Empty, Link, Loading, Time } from "../parts/elements.js";
import { perform, confirm } from "../parts/dialog.js";
import { pathOf } from "../parts/job_actions.js";
import { About, ChoiceChips, DurationBar, Moment, reasonText, runLink, stateChip, useList } from "../parts/job_lists.js";
import { STATES, errorSummary, formatLateness, progressText } from "../parts/run_text.js";
import { zoneOf } from "../parts/schedule.js";
import { State, look } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";

const COUNT_INTERVAL_MS = 10_000; // milliseconds; counting needs a query per state, so counts are loaded less often than the list
const MAX_GAPS = 50; // ranges without a run that are read with the runs
const BY_HAND = "manual";

const isGap = (row) => row.kind === "gap";
const instantOf = (row) => Date.parse(isGap(row) ? row.to : row.scheduled_for);

/** Seconds that the run took, or takes by now; null if it has not started. */
function secondsOf(run) {
  if (!run.started_at || (!run.finished_at && run.state !== "running")) return null;
  return Math.max(0, run.finished_at ? secondsBetween(run.started_at, run.finished_at) : (now.value - new Date(run.started_at)) / 1000);
}

/** How many scheduled times a gap has, and why they have no run, if its outcome does not say it. */
export function gapText({ count, reason, outcome }) {
  const times = count === null ? "scheduled times without a run, not counted" : `${count.toLocaleString("en")} scheduled time${count === 1 ? "" : "s"} without a run`;
  return [times, reason !== outcome && reasonText(reason)].filter(Boolean).join(" · ");
}

export const GapTimes = ({ gap, zone }) => (gap.from === gap.to ? html`<${Moment} at=${gap.from} job=${zone} />`
  : html`<${Moment} at=${gap.from} job=${zone} ago=${false} /> – <${Moment} at=${gap.to} job=${zone} />`);

function detailsOf(row) {
  if (isGap(row)) return gapText(row);
  if (row.state === "running") return progressText(row);
  if (row.state === "succeeded") return "";
  return row.error ? errorSummary(row) : reasonText(row.reason);
}

/** Columns that no row has a value for are left out. */
function columnsOf(rows, zone) {
  const longest = Math.max(0, ...rows.filter((row) => !isGap(row)).map(secondsOf));
  const hasWorkers = rows.some((row) => row.worker);
  const hasDetails = rows.some(detailsOf);
  return [
    { name: "State", class: "tight", phone: "side", cell: (row) => html`<${State} of=${isGap(row) ? row.outcome : row.state} />` },
    { name: "Scheduled", class: "tight", phone: "title", cell: (row) => (isGap(row) ? html`<${GapTimes} gap=${row} zone=${zone} />`
      : html`${runLink(row.run_id, html`<${Moment} at=${row.scheduled_for} job=${zone} ago=${false} />`)} <span class="mute ago"><${Time} at=${row.scheduled_for} job=${zone} /></span>`) },
    { name: "Cause", class: "tight", phone: "line", cell: (row) => (isGap(row) ? "" : row.cause) },
    { name: "Attempt", class: "number tight", phone: "hide", cell: (row) => (isGap(row) ? "" : row.attempt || "–") },
    hasWorkers && { name: "Worker", class: "tight later", phone: "hide", cell: (row) => row.worker && html`<${Link} to="runs" terms=${{ worker: row.worker_id }}
      class="clip short" title=${`Runs of ${row.worker} (worker ${row.worker_id})`}>${row.worker}<//>` },
    { name: "Late by", class: "number tight", title: "from the scheduled time to the start", phone: "line", short: "· late", cell: (row) => (isGap(row) || row.lateness_ms === null ? "" : formatLateness(row)) },
    { name: "Took", class: hasDetails ? "took-cell" : "took-cell wide", title: "the bar compares it with the longest run of the list", phone: "line", short: "· took",
      cell: (row) => !isGap(row) && html`<${DurationBar} seconds=${secondsOf(row)} longest=${longest} tone=${look(row.state)[1]} />` },
    hasDetails && { name: "Details", class: "known", phone: "full", cell: (row) => detailsOf(row) && html`<span title=${detailsOf(row)}>${detailsOf(row)}</span>` },
  ].filter(Boolean);
}

/** Reads the runs and, unless they are filtered, the gaps between them. If the latter fails, the runs are shown without them. */
async function readRuns(path, terms, wanted, stop) {
  const page = await fetchPages(path, terms, wanted, stop);
  if (terms.state || terms.cause) return page;
  const since = page.next_cursor && page.items.length ? { from: page.items.at(-1).scheduled_for } : {};
  const ledger = await fetchPages(`jobs/${part(terms.job)}/ledger`, since, page.items.length + MAX_GAPS, stop).catch((error) => {
    if (error.name === "AbortError") throw error;
    return { items: [] };
  });
  const items = [...page.items, ...ledger.items.filter(isGap)].sort((one, other) => instantOf(other) - instantOf(one));
  return { ...page, items };
}

export function Runs({ job }) {
  const terms = Object.fromEntries(["state", "cause"].map((name) => [name, query.value.get(name)]).filter(([, value]) => value));
  const { found, more } = useList("runs", { job: job.job_id, ...terms }, readRuns);
  return html`<${Backfills} job=${job} /><${Filters} job=${job} terms=${terms} />
    <${Loading} of=${found} shape="table">${({ items }) =>
      items.length === 0 ? html`<${NoRuns} job=${job} terms=${terms} />`
        : html`<${Table} caption=${`Runs of ${job.name}`} kind="of-job" columns=${columnsOf(items, zoneOf(job))} rows=${items} id=${(row) => row.run_id ?? `gap ${row.from}`}
          open=${(row) => row.run_id && navigate(`runs/${part(row.run_id)}`)} keys=${{ w: ["explain the run", (row) => row.run_id && whyRun(row)] }} />`}<//>${more}`;
}

function NoRuns({ job, terms }) {
  if (Object.keys(terms).length) {
    return html`<${Empty} title="No matching runs"><p><button type="button" onClick=${() => setQuery({ state: "", cause: "" })}>Show all runs</button></p><//>`;
  }
  return html`<${Empty} title="No runs yet"><p>${job.next_at ? html`The next run is <${Time} at=${job.next_at} />.` : "There are no upcoming runs."} To run it now:</p><p>
    <code>bellringer jobs trigger ${job.name} --wait</code></p><//>`;
}

/** Chips of the states that the job has runs of, and of the runs started by hand. */
function Filters({ job, terms }) {
  const tick = useMemo(() => ({ last: 0 }), []);
  if (live.value !== "paused") tick.last = Math.floor(now.value / COUNT_INTERVAL_MS);
  const counts = useData((stop) => get("runs/counts", { job: job.job_id }, stop), [job.job_id, tick.last], { once: true }).data?.states ?? {};
  const text = (count) => count && `${count.value.toLocaleString("en")}${count.relation === "gte" ? "+" : ""}`;
  const states = STATES.filter((state) => counts[state]?.value || state === terms.state || state === "dead");
  const chosen = terms.cause === BY_HAND ? BY_HAND : (terms.state ?? "");
  const choose = (value) => setQuery({ state: value === BY_HAND ? "" : value, cause: value === BY_HAND ? BY_HAND : "" });
  return html`<div class="tools"><${ChoiceChips} label="Filter runs" chosen=${chosen} choose=${choose} of=${[
      ...states.map((state) => [state, stateChip(state, !counts[state]?.value), text(counts[state])]), [BY_HAND, html`<span><${Icon} name="play" /> manual</span>`],
    ]} /></div>
    <${About} aside=${html`<${Link} to="runs" terms=${{ job: job.name, ...terms }}>Search<span class="unseen"> the runs of ${job.name}</span><//>`}>Newest first. For scheduled times without
      a run, see the <${Link} to=${pathOf(job)} terms=${{ tab: "ledger" }}>ledger<//>.<//>`;
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
        <button type="button" class="danger" onClick=${() => stop(one)}>Cancel…</button>`}
    </div>`;
  })}<//>`;
}
