// One job: state, next fire, actions and tabs.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { request, get, may, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { Link, Loading, Tabs, Time, copy } from "../parts/elements.js";
import { notify } from "../parts/dialog.js";
import { askBackfill, askPause, askResume, askRun, pathOf, remove, skipAt, stateOf, stateTitle } from "../parts/job_actions.js";
import { Moment } from "../parts/job_lists.js";
import { Menu } from "../parts/menu.js";
import { Schedule, zoneOf } from "../parts/schedule.js";
import { copyItems } from "../parts/copy_as.js";
import { Changes } from "../parts/diff.js";
import { State, Strip } from "../parts/state_badge.js";
import { whyJob } from "../parts/why.js";
import { GraphTab } from "./job_graph.js";
import { Configuration } from "./job_configuration.js";
import { Metrics } from "./job_metrics.js";
import { Events } from "./job_events.js";
import { Ledger } from "./job_ledger.js";
import { Runs } from "./job_runs.js";
import { Revisions, Times } from "./job_tabs.js";

const TABS = {
  runs: "Runs", ledger: "Ledger", schedule: "Schedule", configuration: "Configuration",
  metrics: "Metrics", revisions: "Revisions", events: "Events",
};
const WITH_GRAPH = { runs: TABS.runs, graph: "Graph", ...TABS };
const TAB_PARAMETERS = Object.fromEntries(["cursor", "a", "b", "year", "version", "against", "node", "range", "zoom", "table", "as", "defaults", "state", "cause", "outcome", "kind"].map((name) => [name, ""])); // query parameters that belong to one tab
const TAB_COMPONENTS = { runs: Runs, graph: GraphTab, ledger: Ledger, schedule: Times, configuration: Configuration, metrics: Metrics, revisions: Revisions, events: Events };

export default function Job({ parts }) {
  const found = useData((stop) => request("GET", `jobs/${part(parts.id)}`, { signal: stop }), [parts.id]);
  return html`<${Loading} of=${found} shape="page">${({ data, etag }) => html`<${Page} job=${data} etag=${etag} reload=${found.reload} />`}<//>`;
}

function Page({ job, etag, reload }) {
  const strip = useData((stop) => get("jobs/strips", { ids: job.job_id, limit: 60 }, stop), [job.job_id]);
  const runs = strip.data?.items?.[0]?.runs ?? [];
  const tabs = job.workflow ? WITH_GRAPH : TABS;
  const chosen = query.value.get("tab") in tabs ? query.value.get("tab") : "runs";
  const Tab = TAB_COMPONENTS[chosen];
  useShortcuts(
    {
      e: ["explain", () => whyJob(job)],
      ...(may("operator") && { r: ["run now", () => askRun(job)], p: ["pause or resume", () => (job.paused ? askResume(job) : askPause(job))] }),
    },
    "Job",
    [job.job_id, job.revision, job.paused === null],
  );
  return html`<nav class="crumbs" aria-label="Breadcrumbs"><${Link} to="jobs">Jobs<//> / ${job.name}</nav>
    <header class="head"><h1>${job.name}</h1><${State} of=${stateOf(job, runs)} title=${stateTitle(job)} />${job.orphaned_at && html` <${State} of="orphaned" title=${orphanTitle(job)} />`}</header>
    <p class="lead"><${Schedule} job=${job} /> <${NextFire} job=${job} /></p>
    ${job.paused && html`<p class="tone-warn"><${Icon} name="pause" /> ${stateTitle(job)}</p>`}
    ${job.orphaned_at && html`<p class="tone-warn"><${Icon} name="warning" /> ${orphanTitle(job)}</p>`}
    ${job.drift && html`<${Drift} drift=${job.drift} app=${job.app} />`}
    <div class="strip-line"><${Strip} runs=${runs} job=${zoneOf(job)} /> ${runs.length > 0 && html`<span class="mute">${stripText(runs)} · last success <${Time}
      at=${strip.data.items[0].last_success} job=${zoneOf(job)} /></span>`}</div>
    <${Buttons} job=${job} share=${chosen !== "metrics" && {}} />
    <${Tabs} tabs=${tabs} chosen=${chosen} choose=${(tab) => setQuery({ tab: tab === "runs" ? "" : tab, ...TAB_PARAMETERS })} />
    <div role="tabpanel" aria-label=${tabs[chosen]}><${Tab} key=${`${chosen} ${job.job_id}`} job=${job} etag=${etag} reload=${reload} /></div>`;
}

const orphanTitle = (job) =>
  `The code of the app ${job.app} no longer declares this job${job.app_version ? `; version ${job.app_version} was the last that did` : ""}.`;

/** What the bars show: how many runs, and how many of them failed. */
function stripText(runs) {
  const failed = runs.filter((run) => run.state === "dead").length;
  return `${runs.length === 1 ? "last run" : `last ${runs.length} runs`}, ${failed ? `${failed} failed` : "none failed"}`;
}

/** The fields that operators changed, and that the next start of the app overrides. */
function Drift({ drift, app }) {
  const fields = drift.fields.map(({ field, declared, current }) => ({ field, before: declared, after: current }));
  return html`<details class="drift"><summary><span class="tone-warn"><${Icon} name="warning" /> Differs from the code of the app ${app} in ${fields.length}
    ${fields.length === 1 ? " field" : " fields"}${drift.by && html` (changed by ${drift.by} <${Time} at=${drift.at} />)`}.</span> The next start of the app will undo these changes, except Enabled.</summary>
    <${Changes} of=${fields} caption="Drift" names=${["In code", "Now"]} /></details>`;
}

/** The next fire, counting down. */
function NextFire({ job }) {
  if (!job.enabled || job.paused) return null;
  if (!job.next_at) return html`<span class="mute">· no upcoming runs</span>`;
  return html`<span class="coming">· next <strong><${Time} at=${job.next_at} job=${zoneOf(job)} />
    </strong> <span class="mute">(<${Moment} at=${job.next_at} job=${zoneOf(job)} ago=${false} />)</span></span>`;
}

/** share: the link to copy, unless the tab has a menu with a better one. */
function Buttons({ job, share }) {
  return html`<div class="tools" role="group" aria-label="Actions">
    ${may("operator") && html`
      <button type="button" class="main" onClick=${() => askRun(job)}>Run now…</button>
      ${job.paused ? html`<button type="button" onClick=${() => askResume(job)}>Resume…</button>` : html`<button type="button"
        onClick=${() => askPause(job)}>Pause…</button>`}
      ${job.next_at && !job.paused && job.enabled && html`<button type="button" onClick=${() => skipAt(job, job.next_at)}>Skip next</button>`}
      <button type="button" onClick=${() => askBackfill(job)}>Backfill…</button>`}
    <button type="button" onClick=${() => whyJob(job)}>Explain</button>
    <span class="gap"></span>
    ${may("editor") && html`<${Link} class="button" to=${`jobs/${part(job.job_id)}/edit`}><${Icon} name="edit" /> Edit<//>`}
    <${Menu} label=${`More actions: ${job.name}`} kind="icon" items=${[
        may("editor") && !job.workflow && { text: "Duplicate", icon: "copy", to: "jobs/new", terms: { from: job.job_id } },
        { text: "Copy the id", icon: "link", act: () => copy(job.job_id).then(() => notify(`Copied the id of ${job.name}`)) },
        ...copyItems({ share, cli: `bellringer jobs get '${job.name}'`, path: pathOf(job) }),
        may("editor") && "-",
        may("editor") && { text: "Delete…", icon: "trash", tone: "bad", act: () => remove(job, () => navigate("jobs")) },
      ]} />
  </div>`;
}
