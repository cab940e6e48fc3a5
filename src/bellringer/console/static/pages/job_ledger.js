// The ledger of a job: one row for every scheduled time, with its run or why it did not run.
import { html } from "../lib/html.js";
import { part } from "../lib/api.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query, setQuery } from "../lib/router.js";
import { CopyAs, Empty, Loading, Time } from "../parts/elements.js";
import { pathOf } from "../parts/job_actions.js";
import { About, ChoiceChips, DurationBar, Moment, countBy, reasonText, runLink, stateChip, useFilteredList } from "../parts/job_lists.js";
import { errorSummary, formatLateness } from "../parts/run_text.js";
import { zoneOf } from "../parts/schedule.js";
import { State, look } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { GapTimes, gapText } from "./job_runs.js";

const OUTCOMES = ["ran", "late", "failed", "missed", "paused", "coalesced", "skipped", "cancelled", "pending", "planned"];

function whenCell(entry, zone) {
  if (entry.kind === "gap") return html`<${GapTimes} gap=${entry} zone=${zone} />`;
  if (!entry.run_id) return html`<${Moment} at=${entry.at} job=${zone} />`;
  return html`${runLink(entry.run_id, html`<${Moment} at=${entry.at} job=${zone} ago=${false} />`)} <span class="mute ago later"><${Time} at=${entry.at} job=${zone} /></span>`;
}

function whyCell(entry, zone) {
  const reason = entry.kind === "gap" ? gapText(entry) : reasonText(entry.reason);
  const text = [entry.error, reason, entry.who && `by ${entry.who}`].filter(Boolean).join(" · ");
  return (text || entry.into) && html`<span title=${text}>${text}${entry.into && html` · coalesced into <${Moment} at=${entry.into} job=${zone} ago=${false} />`}</span>`;
}

function columnsOf(entries, zone) {
  const longest = Math.max(0, ...entries.map((entry) => entry.seconds ?? 0));
  const hasReasons = entries.some((entry) => whyCell(entry, zone));
  return [
    { name: "Outcome", class: "tight", phone: "side", cell: (entry) => html`<${State} of=${entry.outcome} />` },
    { name: "Scheduled", class: "tight", phone: "title", cell: (entry) => whenCell(entry, zone) },
    { name: "Cause", class: "tight", phone: "line", cell: (entry) => entry.cause ?? "" },
    { name: "Late by", class: "number tight", title: "from the scheduled time to the start", phone: "line", short: "· late", cell: (entry) => (entry.lateness_ms === null ? "" : formatLateness(entry)) },
    { name: "Took", class: hasReasons ? "took-cell" : "took-cell wide", title: "the bar compares it with the longest run of the list", phone: "line", short: "· took",
      cell: (entry) => html`<${DurationBar} seconds=${entry.seconds} longest=${longest} tone=${look(entry.outcome)[1]} />` },
    hasReasons && { name: "Why", class: "known", phone: "full", cell: (entry) => whyCell(entry, zone) },
  ].filter(Boolean);
}

/** Reads the ledger, then the errors of its failed runs. If the latter fails, the ledger is shown without them. */
async function readLedger(job, wanted, stop) {
  const page = await fetchPages(`${pathOf(job)}/ledger`, {}, wanted, stop);
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
  const { found, wanted, moreOf } = useFilteredList((count, stop) => readLedger(job, count, stop), [job.job_id]);
  const outcome = query.value.get("outcome") ?? "";
  return html`<${Loading} of=${found} shape="table">${({ items, next_cursor: hasMore }) => {
    const counts = countBy(items, (entry) => entry.outcome);
    const rows = items.filter((entry) => !outcome || entry.outcome === outcome);
    const shown = OUTCOMES.filter((one) => counts.has(one) || one === outcome || one === "failed" || one === "missed");
    return html`<div class="tools"><${ChoiceChips} label="Filter by outcome" all=${items.length} chosen=${outcome} choose=${(one) => setQuery({ outcome: one })}
        of=${shown.map((one) => [one, stateChip(one, !counts.has(one)), counts.get(one) ?? 0])} /></div>
      <${About} aside=${html`<${CopyAs} cli=${`bellringer why '${job.name}'`} path=${`${pathOf(job)}/ledger`} />`}>One row for every scheduled time: its run, or why it
        did not run.${hasMore && ` The numbers count the latest ${items.length}.`}<//>
      ${items.length === 0 ? html`<${Empty} title="No records yet"><p>The first occurrence creates the first record.</p><//>`
        : rows.length === 0 ? html`<${Empty} title="No such outcome"><p>None of the latest ${items.length} scheduled times ended like this.</p><//>`
          : html`<${Table} caption=${`Ledger of ${job.name}`} kind="of-job" columns=${columnsOf(rows.slice(0, wanted), zoneOf(job))} rows=${rows.slice(0, wanted)}
            id=${(entry) => `${entry.kind} ${entry.run_id ?? entry.from ?? entry.at}`}
            open=${(entry) => entry.run_id && navigate(`runs/${part(entry.run_id)}`)} />`}
      ${moreOf(rows)}`;
  }}<//>`;
}
