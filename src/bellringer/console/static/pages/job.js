// One job: how it does, when it fires next, what can be done to it, and all that is known of it, tab by tab.
import { html } from "../lib/html.js";
import { ask, get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { useKeys } from "../lib/keys.js";
import { go, narrow, query } from "../lib/place.js";
import { CopyAs, Link, Loading, Tabs, When } from "../parts/basics.js";
import { askBackfill, askPause, askResume, askRun, pathOf, remove, skipAt, stateOf, stateTitle } from "../parts/job_actions.js";
import { Schedule, zoneOf } from "../parts/schedule.js";
import { State, Strip } from "../parts/state.js";
import { whyJob } from "../parts/why.js";
import { GraphTab } from "./job_graph.js";
import { Configuration, Events, Ledger, Metrics, Revisions, Runs, Times } from "./job_tabs.js";

const TABS = {
  runs: "Runs", ledger: "Ledger", schedule: "Schedule", configuration: "Configuration",
  metrics: "Metrics", revisions: "Revisions", events: "Events",
};
const WITH_GRAPH = { runs: TABS.runs, graph: "Graph", ...TABS };
const LEFT = Object.fromEntries(["cursor", "a", "b", "year", "version", "against", "node"].map((name) => [name, ""])); // terms of one tab only
const SHOWN = { runs: Runs, graph: GraphTab, ledger: Ledger, schedule: Times, configuration: Configuration, metrics: Metrics, revisions: Revisions, events: Events };

export default function Job({ parts }) {
  const found = useData((stop) => ask("GET", `jobs/${part(parts.id)}`, { signal: stop }), [parts.id]);
  return html`<${Loading} of=${found}>${({ data, etag }) => html`<${Page} job=${data} etag=${etag} again=${found.again} />`}<//>`;
}

function Page({ job, etag, again }) {
  const strip = useData((stop) => get("jobs/strips", { ids: job.job_id, limit: 60 }, stop), [job.job_id]);
  const runs = strip.data?.items?.[0]?.runs ?? [];
  const tabs = job.workflow ? WITH_GRAPH : TABS;
  const chosen = query.value.get("tab") in tabs ? query.value.get("tab") : "runs";
  const Tab = SHOWN[chosen];
  useKeys(
    {
      e: ["why does it not run?", () => whyJob(job)],
      ...(may("operator") && { r: ["run it now", () => askRun(job)], p: ["pause or resume it", () => (job.paused ? askResume(job) : askPause(job))] }),
    },
    "Job",
    [job.job_id, job.revision, job.paused === null],
  );
  return html`<nav class="crumbs" aria-label="where you are"><${Link} to="jobs">Jobs<//> / ${job.name}</nav>
    <header class="head"><h1>${job.name}</h1><${State} of=${stateOf(job, runs)} title=${stateTitle(job)} /><span class="gap"></span>
      <${CopyAs} cli=${`bellringer jobs get '${job.name}'`} path=${pathOf(job)} /></header>
    <p class="lead"><${Schedule} job=${job} /> <${Coming} job=${job} /></p>
    ${job.paused && html`<p class="tone-warn"><span aria-hidden="true">❚❚</span> ${stateTitle(job)}</p>`}
    <div class="strip-line"><${Strip} runs=${runs} job=${zoneOf(job)} /> ${strip.data?.items?.[0] && html`<span class="mute">last success: <${When}
      at=${strip.data.items[0].last_success} job=${zoneOf(job)} /></span>`}</div>
    <${Buttons} job=${job} />
    <${Tabs} tabs=${tabs} chosen=${chosen} choose=${(tab) => narrow({ tab: tab === "runs" ? "" : tab, ...LEFT })} />
    <div role="tabpanel" aria-label=${tabs[chosen]}><${Tab} key=${`${chosen} ${job.job_id}`} job=${job} etag=${etag} again=${again} /></div>`;
}

/** When it fires next: counting down, as the clock of the page moves. */
function Coming({ job }) {
  if (!job.enabled || job.paused) return null;
  if (!job.next_at) return html`<span class="mute">· nothing to come</span>`;
  return html`<span class="coming">· next <strong><${When} at=${job.next_at} job=${zoneOf(job)} />
    </strong> <span class="mute">(<${When} at=${job.next_at} job=${zoneOf(job)} short=${false} />)</span></span>`;
}

function Buttons({ job }) {
  return html`<div class="tools" role="group" aria-label="what can be done">
    ${may("operator") && html`
      <button type="button" class="main" onClick=${() => askRun(job)}>Run now …</button>
      ${job.paused ? html`<button type="button" onClick=${() => askResume(job)}>Resume …</button>` : html`<button type="button"
        onClick=${() => askPause(job)}>Pause …</button>`}
      ${job.next_at && !job.paused && job.enabled && html`<button type="button" onClick=${() => skipAt(job, job.next_at)}>Skip next</button>`}
      <button type="button" onClick=${() => askBackfill(job)}>Backfill …</button>`}
    <button type="button" onClick=${() => whyJob(job)}>Why?</button>
    <span class="gap"></span>
    ${may("editor") && html`
      <${Link} class="button" to=${`jobs/${part(job.job_id)}/edit`}>Edit<//>
      ${!job.workflow && html`<${Link} class="button" to="jobs/new" terms=${{ from: job.job_id }}>Duplicate<//>`}
      <button type="button" class="danger" onClick=${() => remove(job, () => go("jobs"))}>Delete …</button>`}
  </div>`;
}
