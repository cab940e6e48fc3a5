// The tabs of a job: runs, ledger, schedule, configuration, metrics, revisions, events.
import { html, useMemo, useState } from "../lib/html.js";
import { request, get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { write } from "../lib/json.js";
import { formatClock, formatDuration, parseDuration, secondsBetween } from "../lib/time.js";
import { Card, CopyAs, Empty, DescriptionList, Json, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { Chart } from "../parts/chart.js";
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
function useList(path, terms = {}) {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => fetchPages(path, terms, wanted, stop), [path, JSON.stringify(terms), wanted]);
  return { found, more: html`<${MoreButton} cursor=${found.data?.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />` };
}

const runLink = (id, text) => html`<${Link} to=${`runs/${part(id)}`}>${text}<//>`;

// Runs

const RUNS = (zone) => [
  { name: "State", class: "tight", cell: (run) => html`<${State} of=${run.state} />` },
  { name: "Scheduled for", class: "tight", cell: (run) => runLink(run.run_id, html`<${Time} at=${run.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Cause", class: "tight", cell: (run) => run.cause },
  { name: "Attempt", class: "number", cell: (run) => run.attempt },
  { name: "Late by", class: "number", cell: formatLateness },
  { name: "Took", class: "number", cell: (run) => html`<${RunDuration} run=${run} />` },
  { name: "Details", cell: (run) => html`<span class="clip long" title=${errorSummary(run)}>${errorSummary(run)}</span>` },
];

export function Runs({ job }) {
  const { found, more } = useList(`${pathOf(job)}/runs`);
  return html`<${Backfills} job=${job} /><${Loading} of=${found}>${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No runs yet"><p>${job.next_at ? html`The next run is <${Time} at=${job.next_at} />.` : "There are no upcoming runs."} To run it now:</p><p>
        <code>bellringer jobs trigger ${job.name} --wait</code></p><//>`
      : html`<${Table} caption=${`Runs of ${job.name}`} columns=${RUNS(zoneOf(job))} rows=${items} id=${(run) => run.run_id}
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
  if (entry.reason) words.push(entry.reason.replaceAll("_", " "));
  if (entry.cause && entry.cause !== "schedule") words.push(entry.cause);
  return html`${words.join(" · ")}${entry.into && html` · coalesced into <${Time} at=${entry.into} job=${zone} short=${false} />`}`;
}

const LEDGER = (zone) => [
  { name: "Outcome", class: "tight", cell: (entry) => html`<${State} of=${entry.outcome} />` },
  { name: "Occurrence", class: "tight", cell: (entry) => occurrenceCell(entry, zone) },
  { name: "Why", cell: (entry) => reasonCell(entry, zone) },
  { name: "Late by", class: "number", cell: formatLateness },
  { name: "Took", class: "number", cell: (entry) => formatDuration(entry.seconds) },
  { name: "By", class: "tight", cell: (entry) => entry.who ?? "" },
];

export function Ledger({ job }) {
  const { found, more } = useList(`${pathOf(job)}/ledger`);
  return html`<p class="mute">Every occurrence has one record: a run, or a range of occurrences without a run, with the reason. <${CopyAs}
    cli=${`bellringer why '${job.name}'`} path=${`${pathOf(job)}/ledger`} /></p>
    <${Loading} of=${found}>${({ items }) =>
      items.length === 0
        ? html`<${Empty} title="No records yet"><p>The first occurrence creates the first record.</p><//>`
        : html`<${Table} caption=${`Ledger of ${job.name}`} columns=${LEDGER(zoneOf(job))} rows=${items}
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
  const aside = html`<span class="tools"><button type="button" class="quiet" aria-label="Previous year" onClick=${() => turn(year - 1)}>‹</button><strong>
    ${year}</strong>
    <button type="button" class="quiet" aria-label="Next year" onClick=${() => turn(year + 1)}>›</button></span>`;
  return html`<${Card} title="Year" wide=${true} aside=${aside}>
    <${Loading} of=${found}>${(data) => html`<${YearChart} of=${data} />
      <p class="mute">Days are in UTC.${data.kept_from ? ` Runs before ${data.kept_from} have been deleted.` : ""}
        ${data.coming_known === false ? " Future runs cannot be predicted." : ""}</p>`}<//><//>`;
}

// Configuration

const moment = (at) => at && html`<${Time} at=${at} short=${false} />`;
const configurationRows = (job) => [
  ["Task", html`<code>${job.task}</code>`], ["Schedule", html`${job.description} ${job.schedules.map((one) => html`<code>${expression(one)}</code> `)}`],
  ["Pool", `${job.pool}${job.routed ? " (automatic, by duration)" : ""}`],
  ["Priority", job.priority], ["Expected duration", job.expected_duration], ["Timeout", job.timeout],
  ["Heartbeat", job.heartbeat], ["Delivery", job.delivery.replaceAll("_", " ")], ["Misfire", job.misfire.replaceAll("_", " ")], ["Overlap", job.overlap],
  ["Retry", Object.entries(job.retry).map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ")],
  job.max_catchup !== null &&
    ["Catch-up", `${job.max_catchup}, none older than ${job.catchup_window}${job.catchup_rate ? `, ${job.catchup_rate} per minute` : ""}`],
  ["Max. concurrent runs", job.max_concurrency], job.concurrency_key && ["Concurrency key", `${job.concurrency_key}, limit ${job.concurrency_limit}`],
  ["Jitter", job.jitter && `${job.jitter}; this job: ${job.jitter_by}`],
  ["Late after", job.late_after], ["Expires in", job.expires_in], ["Pause after failures", job.pause_after_failures],
  job.keep_result && ["Keeps result", "yes"], ["Starts", moment(job.starts_at)], ["Ends", moment(job.ends_at)],
  job.after && ["Starts after", html`<${Link} to=${`jobs/${part(job.after.job)}`}>${job.after.job}<//>, on ${job.after.on}`],
  job.followers.length > 0 && ["Followed by", job.followers.map((name) => html`<${Link} to=${`jobs/${part(name)}`}>${name}<//> `)],
  ["After completion", job.after_completion], ["Done", moment(job.done_at)],
  ["Enabled", job.enabled ? "yes" : "no"], ["Tags", job.tags.join(", ") || null], ["Owner", job.owner], ["App", job.app && `${job.app} ${job.app_version ?? ""}`], ["Region", job.region], ["Revision", job.revision],
  ["Created", moment(job.created_at)], ["Changed", moment(job.updated_at)], ["Id", html`<code>${job.job_id}</code>`],
];

export function Configuration({ job }) {
  const raw = query.value.get("as") === "json";
  return html`<div class="tools"><label><input type="checkbox" checked=${raw} onChange=${() => setQuery({ as: raw ? "" : "json" })} /> As JSON</label></div>
    ${raw ? html`<${Json} value=${job} label="The job as JSON" />` : html`<${DescriptionList} of=${configurationRows(job)} />
      ${job.http ? html`<h2>HTTP request</h2><${Json} value=${job.http} label="HTTP request" />` : html`<h2>Arguments</h2>
        <${Json} value=${job.args.length ? { args: job.args, kwargs: job.kwargs } : job.kwargs} label="Arguments" />`}`}`;
}

// Metrics

const percentiles = (of) => (of ? html`${formatDuration(of.p50)} <span class="mute">p50 ·</span> ${formatDuration(of.p95)} <span class="mute">p95 ·</span> ${formatDuration(of.p99)} <span
  class="mute">p99</span>` : "–");

/** Skips on purpose (overlap, freeze, pause, calendar) are neither expected nor missed. */
function missedText({ missed, expected, rate, more, uncounted }) {
  const text = `${missed.toLocaleString("en")} of ${more ? "at least " : ""}${expected.toLocaleString("en")} expected occurrences`;
  const share = rate === null ? "" : ` (${+(rate * 100).toFixed(4)} %)`;
  const gaps = uncounted ? `, and ${uncounted} gaps that were not counted` : "";
  return html`<span class=${missed ? "tone-bad" : ""}>${text}${share}${gaps}</span>`;
}

export function Metrics({ job }) {
  const found = useData((stop) => get(`${pathOf(job)}/stats`, {}, stop), [job.job_id]);
  const usual = useData((stop) => get(`${pathOf(job)}/baseline`, {}, stop), [job.job_id]).data;
  return html`<${Loading} of=${found}>${(data) =>
    data.attempts === 0 && data.missed.missed === 0
      ? html`<${Empty} title="No attempts yet"><p>Metrics appear after the first run.</p><//>`
      : html`<${DescriptionList} of=${[
          ["Attempts examined", data.attempts.toLocaleString("en")], ["Since", html`<${Time} at=${data.since} />`],
          ["Succeeded", `${data.succeeded.toLocaleString("en")}${data.success_rate === null ? "" : ` (${(data.success_rate * 100).toFixed(1)} %)`}`],
          ["Failed", data.failed.toLocaleString("en")],
          ["Missed in 30 days", missedText(data.missed)],
          ["Wait", percentiles(data.wait)], ["Duration", percentiles(data.run)],
          usual && ["Usual duration", usual.median && `${usual.median}, at most ${usual.longest}`], usual && ["Slow after", usual.slow_after],
          usual && ["Interval", usual.interval && `${usual.interval}${usual.outgrown ? " (runs take longer)" : ""}`],
        ]} /><${RecentRuns} job=${job} usual=${usual} /><${ByDay} days=${data.days} />`}<//>`;
}

const RECENT = 200; // runs in the charts

/** Duration and lateness of the latest runs, next to the usual duration of the job. */
function RecentRuns({ job, usual }) {
  const found = useData((stop) => fetchPages(`${pathOf(job)}/runs`, {}, RECENT, stop), [job.job_id]);
  const runs = (found.data?.items ?? []).filter((run) => run.started_at && run.finished_at).toReversed();
  const key = runs.map((run) => run.run_id).join();
  const [times, durations, lateness] = useMemo(() => {
    const longest = Math.max(...runs.map((run) => secondsBetween(run.started_at, run.finished_at)));
    const isNear = (text) => text && parseDuration(text) < longest * 3; // a far limit would flatten the other lines
    const flat = (name, tone, text) => (text ? [{ name, tone, values: runs.map(() => parseDuration(text)) }] : []);
    return [
      runs.map((run) => new Date(run.started_at) / 1000),
      [{ name: "duration", tone: "busy", values: runs.map((run) => secondsBetween(run.started_at, run.finished_at)) },
        ...flat("usual", "good", usual?.median), ...(isNear(usual?.slow_after) ? flat("slow after", "warn", usual.slow_after) : [])],
      [{ name: "late by", tone: "warn", values: runs.map((run) => (run.lateness_ms ?? 0) / 1000) },
        { name: "attempt", tone: "bad", values: runs.map((run) => (run.attempt > 1 ? run.attempt : null)), dots: true }],
    ];
  }, [key, usual?.median, usual?.slow_after]);
  if (runs.length < 2) return null;
  const many = `the last ${runs.length} runs`;
  return html`<div class="cards">
    <${Card} title="Duration" aside=${html`<span class="mute">${many}</span>`}><${Chart} times=${times} series=${durations} unit=" s" tick=${clock}
      label=${`duration of ${many}, with the usual duration; the tab Runs lists the same runs`} /><//>
    <${Card} title="Lateness and retries" aside=${html`<span class="mute">${many}</span>`}><${Chart} times=${times} series=${lateness} tick=${clock}
      label=${`lateness in seconds and attempts of ${many}; the tab Runs lists the same runs`} /><//></div>`;
}

const clock = (seconds) => formatClock(seconds * 1000).slice(0, 5);

function ByDay({ days }) {
  const [times, counts, slow] = useMemo(
    () => [
      days.map((one) => new Date(one.day) / 1000),
      [{ name: "attempts", tone: "busy", values: days.map((one) => one.attempts) }, { name: "failed", tone: "bad", values: days.map((one) => one.failed) }],
      [{ name: "p95", tone: "busy", values: days.map((one) => one.p95) }],
    ],
    [JSON.stringify(days)],
  );
  return html`<div class="cards">
      ${days.length > 1 && html`<${Card} title="Attempts per day"><${Chart} times=${times} series=${counts}
        label="attempts and failures per day; the table below shows the same data" /><//>
      <${Card} title="Duration (p95)"><${Chart} times=${times} series=${slow} unit=" s"
        label="95th percentile of the duration per day; the table below shows the same data" /><//>`}
    </div>
    <div class="table" role="group" aria-label="Metrics by day" tabindex="0"><table><caption class="unseen">Metrics by day</caption><thead><tr><th scope="col">Day</th><th scope="col" class="number">Attempts</th>
      <th scope="col" class="number">Failed</th><th scope="col" class="number">p95</th></tr></thead>
      <tbody>${days.toReversed().slice(0, 31).map((one) => html`<tr key=${one.day}><td>${one.day}</td><td class="number">
        ${one.attempts.toLocaleString("en")}</td><td class="number ${one.failed ? "tone-bad" : ""}">${one.failed.toLocaleString("en")}</td><td class="number">
        ${formatDuration(one.p95)}</td></tr>`)}</tbody></table></div>`;
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
  const pick = (name, one, chosen) => html`<input type="radio" name=${name}
    aria-label=${`${name === "a" ? "Compare from" : "Compare to"} revision ${one.revision}`} checked=${one.revision === chosen}
    onChange=${() => setQuery({ [name]: String(one.revision) })} />`;
  return html`<${Difference} job=${job} from=${from} to=${to} />
    <div class="table"><table><caption class="unseen">Revisions of ${job.name}</caption>
      <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col" class="number">Revision</th><th scope="col">Action</th>
        <th scope="col">When</th><th scope="col">By</th><th scope="col">Reason</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${items.map((one) => html`<tr key=${one.revision}><td class="tight">${pick("a", one, from)}</td><td class="tight">${pick("b", one, to)}</td>
        <td class="number">${one.revision}</td><td>${one.what}</td>
        <td><${Time} at=${one.at} /></td><td>${one.by}</td><td>${one.why ?? ""}</td>
        <td class="tight">${one.revision === job.revision ? html`<span class="mute">current</span>` : may("editor") && html`<button type="button"
          onClick=${() => back(one)}>Roll back …</button>`}</td></tr>`)}</tbody></table></div>`;
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

const EVENTS = (zone) => [
  { name: "Kind", class: "tight", cell: (event) => html`<${State} of=${event.kind} />` },
  { name: "When", class: "tight", cell: (event) => html`<${Time} at=${event.at} job=${zone} />` },
  { name: "Occurrence", class: "tight", cell: (event) => (event.run_id ? runLink(event.run_id, html`<${Time} at=${event.scheduled_for} job=${zone}
    short=${false} />`) : html`<${Time} at=${event.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Attempt", class: "number", cell: (event) => event.attempt },
  { name: "Details", cell: (event) => html`<code class="clip long" title=${write(event.data)}>
    ${Object.entries(event.data).map(([name, one]) => `${name}: ${typeof one === "object" ? (one?.message ?? "…") : one}`).join(" · ")}</code>` },
];

export function Events({ job }) {
  const { found, more } = useList("events", { job: job.job_id });
  return html`<${Loading} of=${found}>${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No events"><p>Events appear when the job fails, dies, is late, missed, slow or outgrown, and when it has recovered.</p>
          <p>For “late”, set <code>late_after</code>.</p><//>`
      : html`<${Table} caption=${`Events of ${job.name}`} columns=${EVENTS(zoneOf(job))} rows=${items} id=${(event) => String(event.event_id)}
        open=${(event) => event.run_id && navigate(`runs/${part(event.run_id)}`)} />`}<//>${more}`;
}
