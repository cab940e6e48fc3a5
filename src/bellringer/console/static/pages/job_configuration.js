// The configuration of a job, in groups: first what differs from the defaults, then the rest.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { part } from "../lib/api.js";
import { setQuery, query } from "../lib/router.js";
import { Card, DescriptionList, Json, Link, Time } from "../parts/elements.js";
import { CopyButton } from "../parts/run_text.js";
import { Segments, segment } from "../parts/segmented_control.js";

const moment = (at) => at && html`<${Time} at=${at} short=${false} />`;
const words = (text) => text.replaceAll("_", " ");
const list = (values) => (values?.length ? values.join(", ") : null);
const jobLink = (name) => html`<${Link} to=${`jobs/${part(name)}`}>${name}<//>`;
const none = html`<span class="mute">none</span>`;

const VIEWS = { settings: "Settings", json: "JSON" };

// What a job has if nothing was said. A field without an entry here always differs: it belongs to this job.
const USUAL = {
  routed: true, priority: 5, timeout: null, heartbeat: null, expected_duration: null, delivery: "at_least_once", keep_result: false, max_concurrency: null,
  concurrency_key: null, region: null, misfire: "fire_once", overlap: "skip", late_after: null, expires_in: null, pause_after_failures: null, jitter: null,
  starts_at: null, ends_at: null, after: null, after_completion: "keep", enabled: true, app: null,
};
const USUAL_RETRY = { attempts: 3, base: "5s", cap: "15m", delays: null, jitter: null, never_on: null, only_on: null, max_elapsed: null };
// Settings that are shown also if they have their defaults: they decide when and where runs start.
const ALWAYS_SHOWN = new Set(["Enabled", "Pool", "Priority", "Timeout", "Concurrent runs", "Attempts", "First retry delay", "Longest delay", "Overlap", "Misfire", "Late after", "App", "Tags"]);
const RETRY_NAMES = {
  attempts: "Attempts", base: "First retry delay", cap: "Longest delay", delays: "Fixed delays", jitter: "Jitter of delays", never_on: "Never on", only_on: "Only on",
  max_elapsed: "Give up after",
};

/** [name, value, differs from the default] of each field of each group. */
function groupsOf(job) {
  const differs = (name) => !(name in USUAL) || JSON.stringify(job[name] ?? null) !== JSON.stringify(USUAL[name]);
  const row = (name, title, shown = job[name]) => [title, shown ?? none, differs(name)];
  const retry = { ...USUAL_RETRY, ...job.retry };
  return {
    Schedule: [
      ["Runs", html`${job.description}${job.schedules.filter((one) => one.cron || one.rrule).map((one) => html`<br /><code class="mute unbroken">${one.cron ?? one.rrule}</code>`)}`, true],
      row("enabled", "Enabled", job.enabled ? "yes" : "no"),
      row("jitter", "Jitter", job.jitter && `up to ${job.jitter}; ${job.jitter_by} for this job`),
      row("starts_at", "Starts", moment(job.starts_at)), row("ends_at", "Ends", moment(job.ends_at)),
      row("after", "Starts after", job.after && html`${jobLink(job.after.job)}, on ${words(job.after.on)}`),
      ["Followed by", job.followers.length ? job.followers.map((name, n) => html`${n ? ", " : ""}${jobLink(name)}`) : none, job.followers.length > 0],
      row("after_completion", "After completion", words(job.after_completion)),
      ["Done", moment(job.done_at) ?? none, Boolean(job.done_at)],
    ],
    Execution: [
      ["Task", html`<${Link} to="runs" terms=${{ task: job.task }} title="Runs of this task"><code>${job.task}</code><//>`, true],
      row("routed", "Pool", `${job.pool}${job.routed ? ", chosen by the duration of its runs" : ""}`),
      row("priority", "Priority"), row("timeout", "Timeout"), row("heartbeat", "Heartbeat"), row("expected_duration", "Expected duration"),
      row("delivery", "Delivery", words(job.delivery)), row("max_concurrency", "Concurrent runs", job.max_concurrency ? `at most ${job.max_concurrency}` : "no limit"),
      row("concurrency_key", "Concurrency key", job.concurrency_key && html`<code>${job.concurrency_key}</code>, at most ${job.concurrency_limit} at once`),
      row("keep_result", "Result", job.keep_result ? "kept for the next run" : "not kept"), row("region", "Region"),
    ],
    Retry: Object.entries(RETRY_NAMES).filter(([name]) => !(retry.delays && ["base", "cap"].includes(name))).map(([name, title]) => [
      title, (Array.isArray(retry[name]) ? list(retry[name]) : retry[name]) ?? none, JSON.stringify(retry[name]) !== JSON.stringify(USUAL_RETRY[name])]),
    "Overlap and misfire": [
      row("overlap", "Overlap", words(job.overlap)), row("misfire", "Misfire", words(job.misfire)),
      ["Catch-up", job.max_catchup === null ? none : `at most ${job.max_catchup}, none older than ${job.catchup_window}${job.catchup_rate ? `, ${job.catchup_rate} per minute` : ""}`,
        job.max_catchup !== null],
      row("late_after", "Late after"), row("expires_in", "Expires in"),
      row("pause_after_failures", "Pause after", job.pause_after_failures && `${job.pause_after_failures} failures in a row`),
    ],
    Ownership: [
      ["Owner", job.owner === "code" && job.app ? `defined in code, by the app ${job.app}` : job.owner, true], ["Tags", job.tags.length ? job.tags.map((tag) => html`<${Link} class="tag" to="jobs" terms=${{ tag }} title=${`Jobs with the tag ${tag}`}>${tag}<//> `) : none, job.tags.length > 0],
      row("app", "App", job.app && html`<${Link} to="jobs" terms=${{ app: job.app }}>${[job.app, job.app_version].filter(Boolean).join(" ")}<//>`),
    ],
    Record: [
      ["Revision", job.revision, true], ["Created", moment(job.created_at), true], job.updated_at !== job.created_at && ["Changed", moment(job.updated_at), true],
      ["ID", html`<code class="clip id" title=${job.job_id}>${job.job_id}</code> <${CopyButton} text=${job.job_id} what="the ID" />`, true],
    ],
  };
}

function Groups({ groups }) {
  return html`<div class="cards groups">${groups.map(([title, rows]) => html`<${Card} key=${title} title=${title}><${DescriptionList} of=${rows.map(([name, value, differs]) => [name, differs ? value : html`<span class="mute">${value}</span>`])} /><//>`)}</div>`;
}

function Payload({ job }) {
  const hidden = list(job.redact);
  const [title, value] = job.http ? ["HTTP request", job.http] : ["Arguments", job.args.length ? { args: job.args, kwargs: job.kwargs } : job.kwargs];
  const isEmpty = Object.keys(value).length === 0;
  return html`<${Card} title="Payload" wide=${true} aside=${hidden && html`<span class="mute"><${Icon} name="lock" /> hidden: ${hidden}</span>`}>
    ${isEmpty ? html`<p class="mute">The task runs without arguments.</p>` : html`<${Json} value=${value} label=${title} />`}<//>`;
}

export function Configuration({ job }) {
  const groups = Object.entries(groupsOf(job)).map(([title, rows]) => [title, rows.filter(Boolean)]);
  const pick = (isWanted) => groups.map(([title, rows]) => [title, rows.filter(isWanted)]).filter(([, rows]) => rows.length > 0);
  const isShown = ([name, , differs]) => differs || ALWAYS_SHOWN.has(name);
  const atDefault = pick((row) => !isShown(row));
  const count = atDefault.reduce((sum, [, rows]) => sum + rows.length, 0);
  return html`<div class="tools"><span class="mute">Values in gray are defaults.</span><span class="gap"></span><${Segments} name="as" label="View" of=${VIEWS} usual="settings" /></div>
    ${segment("as", VIEWS, "settings") === "json" ? html`<${Json} value=${job} label="The job as JSON" />` : html`<${Groups} groups=${pick(isShown)} /><${Payload} job=${job} />
      <details open=${query.value.get("defaults") === "1"}><summary onClick=${(event) => { event.preventDefault(); setQuery({ defaults: query.peek().get("defaults") ? "" : "1" }); }}>${count} more settings at their defaults</summary>
        <${Groups} groups=${atDefault} /></details>`}`;
}
