// The tabs of a job that show its schedule and its revisions. The other tabs have files of their own.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { request, get, may, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { wallClock } from "../lib/zoned.js";
import { Card, CopyAs, Empty, Loading } from "../parts/elements.js";
import { perform, confirm } from "../parts/dialog.js";
import { Changes } from "../parts/diff.js";
import { pathOf, skipAt, unskip } from "../parts/job_actions.js";
import { Moment, useList, useRevisionChanges } from "../parts/job_lists.js";
import { Fires, Meaning, expression, usePreview, zoneOf } from "../parts/schedule.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { YearChart } from "../parts/year.js";

const TIMES = 10;

// Schedule

export function Times({ job }) {
  const skips = useData((stop) => get(`${pathOf(job)}/skip`, { limit: 100 }, stop), [job.job_id]);
  const skipped = new Map((skips.data?.items ?? []).map((one) => [new Date(one.at).getTime(), one]));
  if (!job.schedules.length) return html`<${Empty} title="No schedule"><p>The job runs only when it is triggered.</p><p>
    <code>bellringer jobs trigger ${job.name}</code></p><//>`;
  return html`${(!job.enabled || job.paused) && html`<p
    class="tone-warn">The job is ${job.paused ? "paused" : "disabled"}. These are the times at which it would run.</p>`}
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
  return html`<${Card} title=${job.schedules.length > 1 ? html`<code>${expression(schedule)}</code>` : "Next runs"} wide=${true}>
    <${Loading} of=${{ data: response ?? undefined, error, busy, reload: undefined }}>${(data) => html`<${Meaning} of=${data} brief=${job.schedules.length === 1} />
      <${Fires} fires=${fires} zone=${schedule.tz} act=${act} />`}<//>
    ${(job.jitter || job.ends_at || from) && html`<p class="mute">
      ${[job.jitter && `runs start ${job.jitter_by} after these times (jitter)`, from && "the schedule has not started", job.ends_at && "the schedule has an end"]
        .filter(Boolean).join(" · ")}</p>`}<//>`;
}

/** Whether runs of this year may have been deleted: the job is older than what is kept, and nothing older is there. */
const runsAreMissing = ({ kept_from: since, days, year }, job) =>
  since > `${year}-01-01` && job.created_at.slice(0, 10) < since && !days.some((one) => one.runs && one.day < since);

function Days({ job }) {
  const thisYear = new Date().getUTCFullYear();
  const year = Number(query.value.get("year")) || thisYear;
  const found = useData((stop) => get(`${pathOf(job)}/days`, { year }, stop), [job.job_id, year]);
  const turn = (to) => setQuery({ year: to === thisYear ? "" : String(to) });
  const aside = html`<span class="year-switch"><button type="button" class="quiet" aria-label="Previous year" onClick=${() => turn(year - 1)}><${Icon} name="chevron-left" /></button><strong>
    ${year}</strong>
    <button type="button" class="quiet" aria-label="Next year" onClick=${() => turn(year + 1)}><${Icon} name="chevron-right" /></button></span>`;
  return html`<${Card} title="Year" wide=${true} aside=${aside}>
    <${Loading} of=${found}>${(data) => html`<${YearChart} of=${data} />
      <p class="mute">Days begin at 00:00 UTC${zoneOf(job) === "UTC" ? "" : ` (today ${wallClock(`${new Date().toISOString().slice(0, 10)}T00:00Z`, zoneOf(job)).time} in ${zoneOf(job)})`}.${runsAreMissing(data, job) ? ` Runs before ${data.kept_from} are no longer kept.` : ""}
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
  const changes = useRevisionChanges(pathOf(job), items);
  function back(one) {
    confirm({
      title: `Roll back ${job.name} to revision ${one.revision}?`,
      verb: `Roll back to ${one.revision}`,
      note: `The old definition becomes a new revision, ${job.revision + 1}. A pause is not affected.`,
      act: () => request("POST", `${pathOf(job)}/rollback`, { body: { revision: one.revision }, etag }).then(reload),
      done: `Rolled ${job.name} back to revision ${one.revision}`,
    });
  }
  const columns = [
    { name: "Revision", class: "tight", phone: "title", cell: (one) => html`<strong>${one.revision}</strong> ${one.what.replaceAll("_", " ")}${one.revision === job.revision && html` <span class="tag">current</span>`}` },
    { name: "When", class: "tight", phone: "side", cell: (one) => html`<${Moment} at=${one.at} />` },
    { name: "By", class: "tight", phone: "line", short: "by", cell: (one) => one.by },
    { name: "Changes", class: "changes", phone: "full", cell: (one) => [changes.get(one.revision), one.why].filter(Boolean).join(" · ") },
    { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "full", cell: (one) => html`<span class="row-actions">
      ${one.revision > 1 && html`<button type="button" class="quiet" aria-label=${`Show diff of revision ${one.revision}`} aria-pressed=${one.revision === to && from === to - 1}
        onClick=${() => setQuery({ a: "", b: String(one.revision) })}>Show diff</button>`}
      ${one.revision !== job.revision && may("editor") && html`<button type="button" class="quiet" onClick=${() => back(one)}>Roll back to ${one.revision}…</button>`}</span>` },
  ];
  return html`<${Difference} job=${job} items=${items} from=${from} to=${to} />
    <${Table} caption=${`Revisions of ${job.name}`} kind="of-job" columns=${columns} rows=${items} id=${(one) => String(one.revision)} />`;
}

/** The changes between two revisions, which two selects choose. */
function Difference({ job, items, from, to }) {
  const against = from >= 1 && from !== to ? from : undefined;
  const found = useData((stop) => get(`${pathOf(job)}/revisions/${to}`, { against }, stop), [job.job_id, against, to], { once: true });
  const select = (name, label, chosen) => html`<label class="choice"><span>${label}</span><select value=${String(chosen)} onChange=${(event) => setQuery({ [name]: event.target.value })}>
    ${[...new Set([...items.map((one) => one.revision), chosen])].filter((one) => one >= 1).map((one) => html`<option value=${String(one)} selected=${one === chosen}>${one}${one === job.revision ? " (current)" : ""}</option>`)}</select></label>`;
  return html`<${Card} title=${against ? `Changes from revision ${against} to ${to}` : `Revision ${to}`} wide=${true} aside=${html`<span class="compare">${job.revision > 1 && html`
    ${select("a", "From", from)}${select("b", "To", to)}`}<${CopyAs}
    cli=${`bellringer jobs revisions '${job.name}' --show ${to}`}
    path=${`${pathOf(job)}/revisions/${to}${against ? `?against=${against}` : ""}`} /></span>`}>
    <${Loading} of=${found}>${(data) => (data.against === null ? html`<p
      class="mute">This is the first revision.</p>` : html`<${Changes} of=${data.changes} />`)}<//><//>`;
}
