// The tabs of a job: its runs, its ledger, its times, its definition and that one's history, its figures, and its events.
import { html, useMemo, useState } from "../lib/html.js";
import { ask, get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { go, narrow, query } from "../lib/place.js";
import { write } from "../lib/json.js";
import { span } from "../lib/time.js";
import { Card, CopyAs, Empty, Facts, Json, Link, Loading, More, When } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";
import { attempt, confirm } from "../parts/dialog.js";
import { Changes } from "../parts/diff.js";
import { pathOf, skipAt, unskip } from "../parts/job_actions.js";
import { Took, headline, lateBy } from "../parts/run_words.js";
import { Fires, Meaning, expression, usePreview, zoneOf } from "../parts/schedule.js";
import { State } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { whyRun } from "../parts/why.js";
import { Year } from "../parts/year.js";

const PAGE = 50;
const TIMES = 10;

/** A list below a job that grows: `path` is read again whenever something has happened. */
function useList(path, terms = {}) {
  const [wanted, want] = useState(PAGE);
  const found = useData((stop) => gather(path, terms, wanted, stop), [path, JSON.stringify(terms), wanted]);
  return { found, more: html`<${More} cursor=${found.data?.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />` };
}

const runLink = (id, text) => html`<${Link} to=${`runs/${part(id)}`}>${text}<//>`;

// Runs

const RUNS = (zone) => [
  { name: "State", class: "tight", cell: (run) => html`<${State} of=${run.state} />` },
  { name: "Scheduled for", class: "tight", cell: (run) => runLink(run.run_id, html`<${When} at=${run.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Cause", class: "tight", cell: (run) => run.cause },
  { name: "Attempt", class: "number", cell: (run) => run.attempt },
  { name: "Late by", class: "number", cell: lateBy },
  { name: "Took", class: "number", cell: (run) => html`<${Took} run=${run} />` },
  { name: "What is known", cell: (run) => html`<span class="clip long" title=${headline(run)}>${headline(run)}</span>` },
];

export function Runs({ job }) {
  const { found, more } = useList(`${pathOf(job)}/runs`);
  return html`<${Backfills} job=${job} /><${Loading} of=${found}>${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No runs yet"><p>${job.next_at ? html`The next is <${When} at=${job.next_at} />.` : "Nothing is to come."} Or run it now:</p><p>
        <code>bellringer jobs trigger ${job.name} --wait</code></p><//>`
      : html`<${Table} caption=${`Runs of ${job.name}`} columns=${RUNS(zoneOf(job))} rows=${items} id=${(run) => run.run_id}
        open=${(run) => go(`runs/${part(run.run_id)}`)} keys=${{ w: ["why is this run where it is?", whyRun] }} />`}<//>${more}
    <p><${Link} to="runs" terms=${{ job: job.name }}>All its runs, with filters<//></p>`;
}

/** Backfills and catch-ups that are not over. */
function Backfills({ job }) {
  const found = useData((stop) => get("backfills", { job: job.job_id, limit: 10 }, stop), [job.job_id]);
  const open = (found.data?.items ?? []).filter((one) => !one.ended_at);
  const ask = (one, what) => attempt(() => post(`backfills/${part(one.backfill_id)}/${what}`, {}).then(found.again));
  const stop = (one) =>
    confirm({
      title: `Cancel ${one.backfill_id}?`,
      verb: "Cancel the backfill",
      note: "What waits of it ends; what runs finishes.",
      act: () => post(`backfills/${part(one.backfill_id)}/cancel`, {}).then(found.again),
    });
  if (!open.length) return null;
  return html`<${Card} title="Backfills under way" wide=${true}>${open.map((one) => {
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

function happened(entry, zone) {
  if (entry.kind !== "gap") return entry.run_id ? runLink(entry.run_id, html`<${When} at=${entry.at} job=${zone} short=${false} />`) : html`<${When}
    at=${entry.at} job=${zone} short=${false} />`;
  return html`<${When} at=${entry.from} job=${zone} short=${false} /> – <${When} at=${entry.to} job=${zone} short=${false} />`;
}

function occurrences(count) {
  return count === null ? "occurrences, not counted" : `${count.toLocaleString("en")} occurrence${count === 1 ? "" : "s"}`;
}

function because(entry, zone) {
  const words = [];
  if (entry.kind === "gap") words.push(occurrences(entry.count));
  if (entry.reason) words.push(entry.reason.replaceAll("_", " "));
  if (entry.cause && entry.cause !== "schedule") words.push(entry.cause);
  return html`${words.join(" · ")}${entry.into && html` · went into <${When} at=${entry.into} job=${zone} short=${false} />`}`;
}

const LEDGER = (zone) => [
  { name: "Outcome", class: "tight", cell: (entry) => html`<${State} of=${entry.outcome} />` },
  { name: "Occurrence", class: "tight", cell: (entry) => happened(entry, zone) },
  { name: "Why", cell: (entry) => because(entry, zone) },
  { name: "Late by", class: "number", cell: lateBy },
  { name: "Took", class: "number", cell: (entry) => span(entry.seconds) },
  { name: "By", class: "tight", cell: (entry) => entry.who ?? "" },
];

export function Ledger({ job }) {
  const { found, more } = useList(`${pathOf(job)}/ledger`);
  return html`<p class="mute">Every occurrence has one record: a run, or a range of them that got none, with the reason. <${CopyAs}
    cli=${`bellringer why '${job.name}'`} path=${`${pathOf(job)}/ledger`} /></p>
    <${Loading} of=${found}>${({ items }) =>
      items.length === 0
        ? html`<${Empty} title="Nothing is recorded yet"><p>Its first occurrence writes the first line.</p><//>`
        : html`<${Table} caption=${`Ledger of ${job.name}`} columns=${LEDGER(zoneOf(job))} rows=${items}
          id=${(entry) => `${entry.kind} ${entry.run_id ?? entry.from ?? entry.at}`}
          open=${(entry) => entry.run_id && go(`runs/${part(entry.run_id)}`)} />`}<//>${more}`;
}

// Schedule

export function Times({ job }) {
  const skips = useData((stop) => get(`${pathOf(job)}/skip`, { limit: 100 }, stop), [job.job_id]);
  const skipped = new Map((skips.data?.items ?? []).map((one) => [new Date(one.at).getTime(), one]));
  if (!job.schedules.length) return html`<${Empty} title="Only by hand"><p>It has no schedule: it runs when somebody runs it.</p><p>
    <code>bellringer jobs trigger ${job.name}</code></p><//>`;
  return html`${(!job.enabled || job.paused) && html`<p
    class="tone-warn">It is ${job.paused ? "paused" : "disabled"}: these are the times at which it would fire.</p>`}
    ${job.schedules.map((one) => html`<${NextTimes} key=${expression(one)} job=${job} schedule=${one} skipped=${skipped} again=${skips.again} />`)}
    <${Days} job=${job} />`;
}

function NextTimes({ job, schedule, skipped, again }) {
  const from = job.starts_at && new Date(job.starts_at) > Date.now() ? new Date(new Date(job.starts_at) - 1).toISOString() : undefined;
  const { answer, error, busy } = usePreview(schedule, { job: job.name, n: TIMES, from, mark: job.next_at });
  const fires = (answer?.fires ?? []).filter((fire) => !job.ends_at || new Date(fire.at) <= new Date(job.ends_at));
  function act(fire) {
    const skip = skipped.get(new Date(fire.at).getTime());
    const [text, does] = skip ? ["Run it after all", () => unskip(job, fire.at)] : ["Skip", () => skipAt(job, fire.at)];
    return html`${skip && html`<${State} of="skipped" title=${[skip.by, skip.reason].filter(Boolean).join(": ")} /> `}
      ${may("operator") && html`<button type="button" class="quiet" onClick=${() => attempt(async () => { await does(); again(); })}>${text}</button>`}`;
  }
  return html`<${Card} title=${html`<code>${expression(schedule)}</code>`} wide=${true}>
    <${Loading} of=${{ data: answer ?? undefined, error, busy, again: undefined }}>${(data) => html`<${Meaning} of=${data} />
      <${Fires} fires=${fires} zone=${schedule.tz} act=${act} />`}<//>
    ${(job.jitter || job.ends_at || from) && html`<p class="mute">
      ${[job.jitter && `its runs start ${job.jitter_by} after these times (jitter)`, from && "it starts later than now", job.ends_at && "it ends"]
        .filter(Boolean).join(" · ")}</p>`}<//>`;
}

function Days({ job }) {
  const thisYear = new Date().getUTCFullYear();
  const year = Number(query.value.get("year")) || thisYear;
  const found = useData((stop) => get(`${pathOf(job)}/days`, { year }, stop), [job.job_id, year]);
  const turn = (to) => narrow({ year: to === thisYear ? "" : String(to) });
  const aside = html`<span class="tools"><button type="button" class="quiet" aria-label="the year before" onClick=${() => turn(year - 1)}>‹</button><strong>
    ${year}</strong>
    <button type="button" class="quiet" aria-label="the year after" onClick=${() => turn(year + 1)}>›</button></span>`;
  return html`<${Card} title="The year, day by day" wide=${true} aside=${aside}>
    <${Loading} of=${found}>${(data) => html`<${Year} of=${data} />
      <p class="mute">Days are those of UTC.${data.kept_from ? ` Runs are kept from ${data.kept_from} on.` : ""}
        ${data.coming_known === false ? " What is to come cannot be told ahead." : ""}</p>`}<//><//>`;
}

// Configuration

const moment = (at) => at && html`<${When} at=${at} short=${false} />`;
const named = (job) => [
  ["Task", html`<code>${job.task}</code>`], ["Schedule", html`${job.description} ${job.schedules.map((one) => html`<code>${expression(one)}</code> `)}`],
  ["Pool", `${job.pool}${job.routed ? " (by how long it takes)" : ""}`],
  ["Priority", job.priority], ["Expected to take", job.expected_duration], ["Timeout", job.timeout],
  ["Heartbeat", job.heartbeat], ["Delivery", job.delivery.replaceAll("_", " ")], ["Misfire", job.misfire.replaceAll("_", " ")], ["Overlap", job.overlap],
  ["Retry", Object.entries(job.retry).map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ")],
  job.max_catchup !== null &&
    ["Catch-up", `${job.max_catchup}, none older than ${job.catchup_window}${job.catchup_rate ? `, ${job.catchup_rate} a minute` : ""}`],
  ["At once", job.max_concurrency], job.concurrency_key && ["Shared limit", `${job.concurrency_limit} of ${job.concurrency_key}`],
  ["Jitter", job.jitter && `${job.jitter}, its own is ${job.jitter_by}`],
  ["Late after", job.late_after], ["Starts", moment(job.starts_at)], ["Ends", moment(job.ends_at)],
  ["Enabled", job.enabled ? "yes" : "no"], ["Tags", job.tags.join(", ") || null], ["Owner", job.owner], ["Region", job.region], ["Revision", job.revision],
  ["Created", moment(job.created_at)], ["Changed", moment(job.updated_at)], ["Id", html`<code>${job.job_id}</code>`],
];

export function Configuration({ job }) {
  const raw = query.value.get("as") === "json";
  return html`<div class="tools"><label><input type="checkbox" checked=${raw} onChange=${() => narrow({ as: raw ? "" : "json" })} /> as JSON</label></div>
    ${raw ? html`<${Json} value=${job} label="the job as JSON" />` : html`<${Facts} of=${named(job)} />
      ${job.http ? html`<h2>Calls</h2><${Json} value=${job.http} label="what it calls" />` : html`<h2>Arguments</h2>
        <${Json} value=${job.args.length ? { args: job.args, kwargs: job.kwargs } : job.kwargs} label="its arguments" />`}`}`;
}

// Metrics

const lengths = (of) => (of ? html`${span(of.p50)} <span class="mute">p50 ·</span> ${span(of.p95)} <span class="mute">p95 ·</span> ${span(of.p99)} <span
  class="mute">p99</span>` : "–");

export function Metrics({ job }) {
  const found = useData((stop) => get(`${pathOf(job)}/stats`, {}, stop), [job.job_id]);
  const usual = useData((stop) => get(`${pathOf(job)}/baseline`, {}, stop), [job.job_id]).data;
  return html`<${Loading} of=${found}>${(data) =>
    data.attempts === 0
      ? html`<${Empty} title="No attempts yet"><p>Figures come with the first run.</p><//>`
      : html`<${Facts} of=${[
          ["Attempts looked at", data.attempts.toLocaleString("en")], ["Since", html`<${When} at=${data.since} />`],
          ["Succeeded", `${data.succeeded.toLocaleString("en")}${data.success_rate === null ? "" : ` (${(data.success_rate * 100).toFixed(1)} %)`}`],
          ["Failed", data.failed.toLocaleString("en")],
          ["Waited", lengths(data.wait)], ["Took", lengths(data.run)],
          usual && ["Usually takes", usual.median && `${usual.median}, at most ${usual.longest}`], usual && ["Slow beyond", usual.slow_after],
          usual && ["Between two", usual.interval && `${usual.interval}${usual.outgrown ? ": it takes longer than that" : ""}`],
        ]} /><${ByDay} days=${data.days} />`}<//>`;
}

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
      ${days.length > 1 && html`<${Card} title="Attempts a day"><${Chart} times=${times} series=${counts}
        label="attempts and failures, day by day; the table below says the same" /><//>
      <${Card} title="How long they took (p95)"><${Chart} times=${times} series=${slow} unit=" s"
        label="the 95th percentile of their length, day by day; the table below says the same" /><//>`}
    </div>
    <div class="table" role="group" aria-label="figures by day" tabindex="0"><table><caption class="unseen">figures by day</caption><thead><tr><th scope="col">Day</th><th scope="col" class="number">Attempts</th>
      <th scope="col" class="number">Failed</th><th scope="col" class="number">p95</th></tr></thead>
      <tbody>${days.toReversed().slice(0, 31).map((one) => html`<tr key=${one.day}><td>${one.day}</td><td class="number">
        ${one.attempts.toLocaleString("en")}</td><td class="number ${one.failed ? "tone-bad" : ""}">${one.failed.toLocaleString("en")}</td><td class="number">
        ${span(one.p95)}</td></tr>`)}</tbody></table></div>`;
}

// Revisions

export function Revisions({ job, etag, again }) {
  const { found, more } = useList(`${pathOf(job)}/revisions`);
  return html`<${Loading} of=${found}>${({ items }) => html`<${Compare} job=${job} items=${items} etag=${etag}
    again=${() => { again(); found.again(); }} />`}<//>${more}`;
}

function Compare({ job, items, etag, again }) {
  const to = Number(query.value.get("b")) || job.revision;
  const from = Number(query.value.get("a")) || to - 1;
  function back(one) {
    confirm({
      title: `Let revision ${one.revision} of ${job.name} hold again?`,
      verb: `Roll back to ${one.revision}`,
      note: `Its definition comes back as a new revision, ${job.revision + 1}. Whether the job is paused stays as it is.`,
      act: () => ask("POST", `${pathOf(job)}/rollback`, { body: { revision: one.revision }, etag }).then(again),
      done: `${job.name} is as it was at revision ${one.revision}`,
    });
  }
  const pick = (name, one, chosen) => html`<input type="radio" name=${name}
    aria-label=${`${name === "a" ? "compare from" : "compare to"} revision ${one.revision}`} checked=${one.revision === chosen}
    onChange=${() => narrow({ [name]: String(one.revision) })} />`;
  return html`<${Difference} job=${job} from=${from} to=${to} />
    <div class="table"><table><caption class="unseen">Revisions of ${job.name}</caption>
      <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col" class="number">Revision</th><th scope="col">What</th>
        <th scope="col">When</th><th scope="col">By</th><th scope="col">Why</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${items.map((one) => html`<tr key=${one.revision}><td class="tight">${pick("a", one, from)}</td><td class="tight">${pick("b", one, to)}</td>
        <td class="number">${one.revision}</td><td>${one.what}</td>
        <td><${When} at=${one.at} /></td><td>${one.by}</td><td>${one.why ?? ""}</td>
        <td class="tight">${one.revision === job.revision ? html`<span class="mute">holds now</span>` : may("editor") && html`<button type="button"
          onClick=${() => back(one)}>Roll back …</button>`}</td></tr>`)}</tbody></table></div>`;
}

function Difference({ job, from, to }) {
  const against = from >= 1 && from !== to ? from : undefined;
  const found = useData((stop) => get(`${pathOf(job)}/revisions/${to}`, { against }, stop), [job.job_id, against, to], { still: true });
  return html`<${Card} title=${against ? `From revision ${against} to ${to}` : `Revision ${to}`} wide=${true} aside=${html`<${CopyAs}
    cli=${`bellringer jobs revisions '${job.name}' --show ${to}`}
    path=${`${pathOf(job)}/revisions/${to}${against ? `?against=${against}` : ""}`} />`}>
    <${Loading} of=${found}>${(data) => (data.against === null ? html`<p
      class="mute">Its first: there is none before it to compare with.</p>` : html`<${Changes} of=${data.changes} />`)}<//><//>`;
}

// Events

const EVENTS = (zone) => [
  { name: "Kind", class: "tight", cell: (event) => html`<${State} of=${event.kind} />` },
  { name: "When", class: "tight", cell: (event) => html`<${When} at=${event.at} job=${zone} />` },
  { name: "Occurrence", class: "tight", cell: (event) => (event.run_id ? runLink(event.run_id, html`<${When} at=${event.scheduled_for} job=${zone}
    short=${false} />`) : html`<${When} at=${event.scheduled_for} job=${zone} short=${false} />`) },
  { name: "Attempt", class: "number", cell: (event) => event.attempt },
  { name: "More", cell: (event) => html`<code class="clip long" title=${write(event.data)}>
    ${Object.entries(event.data).map(([name, one]) => `${name}: ${typeof one === "object" ? (one?.message ?? "…") : one}`).join(" · ")}</code>` },
];

export function Events({ job }) {
  const { found, more } = useList("events", { job: job.job_id });
  return html`<${Loading} of=${found}>${({ items }) =>
    items.length === 0
      ? html`<${Empty} title="No events"><p>Here is told when it fails, dies, is late, missed, slow or outgrown, and when it has recovered.</p>
          <p>For “late”, give it <code>late_after</code>.</p><//>`
      : html`<${Table} caption=${`Events of ${job.name}`} columns=${EVENTS(zoneOf(job))} rows=${items} id=${(event) => String(event.event_id)}
        open=${(event) => event.run_id && go(`runs/${part(event.run_id)}`)} />`}<//>${more}`;
}
