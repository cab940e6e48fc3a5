// Tasks: their load, and pauses that keep all of their runs from starting.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { usePolling } from "../lib/polling.js";
import { navigate } from "../lib/router.js";
import { formatDuration } from "../lib/time.js";
import { CopyAs, Empty, Link, Time } from "./elements.js";
import { perform, confirm, notify } from "./dialog.js";
import { State } from "./state_badge.js";
import { Table } from "./table.js";

const RECENT = "1h"; // the period of failures and durations
const RECENT_POLL_SECONDS = 30; // reading many attempts takes a while

const pathOf = (task) => `tasks/${part(task.name)}`;

/** What is unusual about a task: nothing for most. */
function TaskNote({ task }) {
  if (task.paused?.resumed_at) return html`<${State} of="retrying" title="resumed; held runs are released gradually" /> <span class="mute">releasing</span>`;
  if (task.paused) return html`<${State} of="paused" title=${[task.paused.by, task.paused.reason].filter(Boolean).join(": ")} /> <span class="mute">
    ${task.paused.until ? html`until <${Time} at=${task.paused.until} />` : ""} ${task.paused.reason ?? ""}</span>`;
  if (!task.workers) return html`<span class="state tone-${task.ready ? "bad" : "mute"}"><${Icon} name="circle" /> no worker</span>`;
  return null;
}

const nothing = null; // an empty cell: the style shows a dash, on phones the cell is left out
const count = (task, name, state) => (task[name]
  ? html`<${Link} to="runs" terms=${{ task: task.name, state }}>${task[name].toLocaleString("en")}<//>` : nothing);

/** Failed attempts of the last hour; `time` is null if none of the attempts that were read is of the task. */
function Failures({ task, time }) {
  if (!time) return nothing;
  const text = `${time.failures.toLocaleString("en")} of ${time.attempts.toLocaleString("en")}`;
  return time.failures ? html`<${Link} to="runs" terms=${{ task: task.name, from: RECENT }}><span class="tone-bad">${text}</span><//>` : text;
}

/** Columns of numbers that are all zero are left out. */
function columnsOf(tasks, times, reload) {
  const some = (name) => tasks.some((task) => task[name]);
  return [
    { name: "Task", class: "task-name-cell", phone: "title", cell: (task) => html`<${Link} to="runs" terms=${{ task: task.name }} title="Runs of this task"><code>${task.name}</code><//> <${TaskNote} task=${task} />` },
    { name: "Workers", class: "number", phone: "hide", cell: (task) => task.workers },
    { name: "Waiting", class: "number", phone: some("ready") ? "line" : "hide", short: "waiting", title: "runs that are due and wait for a worker", cell: (task) => count(task, "ready", "queued") },
    some("oldest") && { name: "Longest wait", class: "number", phone: "hide", cell: (task) => (task.oldest === null ? nothing : formatDuration(task.oldest)) },
    { name: "Running", class: "number", phone: some("running") ? "line" : "hide", short: "running", cell: (task) => count(task, "running", "running") },
    { name: "Retrying", class: "number", phone: some("retrying") ? "line" : "hide", short: "retrying", cell: (task) => count(task, "retrying", "retrying") },
    some("held") && { name: "Held", class: "number", phone: "line", short: "held", title: "runs that wait for the end of a pause", cell: (task) => count(task, "held", "blocked") },
    { name: "Failed, last hour", class: "number", phone: "line", short: "failed", title: "failed attempts of all attempts in the last hour", cell: (task) => html`<${Failures} task=${task} time=${times.get(task.name)} />` },
    { name: "Median time", class: "number", phone: "hide", title: "half of the attempts in the last hour took no longer", cell: (task) => (times.get(task.name)?.p50 == null ? nothing : formatDuration(times.get(task.name).p50)) },
    { name: "Dead letters, last hour", class: "number", phone: "line", short: "dead letters", title: "new dead letters in the last hour; a failed node of a workflow counts for the workflow run", cell: (task) => (task.dead
      ? html`<${Link} to="dead-letters" terms=${{ task: task.name }}><span class="tone-bad">${task.dead.toLocaleString("en")}</span><//>` : nothing) },
    { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "acts", cell: (task) => may("operator") && html`<span class="row-actions">
      ${task.paused ? html`<button type="button" class="quiet" aria-label=${`Resume task ${task.name}`} onClick=${() => resume(task, reload)}><${Icon} name="resume" /> Resume</button>`
    : html`<button type="button" class="quiet" aria-label=${`Pause task ${task.name}`} onClick=${() => pause(task, reload)}><${Icon} name="pause" /> Pause…</button>`}</span>` },
  ].filter(Boolean);
}

/** How much a task needs attention: pauses, missing workers and failures come before load; 0 for an idle task. */
function urgency(task, time) {
  if (task.paused || (task.ready && !task.workers)) return 4;
  if (task.dead || time?.failures) return 3;
  if (task.held || task.retrying) return 2;
  return task.ready || task.running ? 1 : 0;
}

export function Tasks({ tasks, filter, reload }) {
  const found = useData(async (stop) => (await get("overview", { range: RECENT }, stop)).tasks.items, [], { once: true });
  usePolling(found, RECENT_POLL_SECONDS);
  const times = new Map((found.data ?? []).map((one) => [one.task, one]));
  const named = filter ? tasks.filter((task) => task.name.toLowerCase().includes(filter.toLowerCase())) : tasks;
  const rank = (task) => urgency(task, times.get(task.name));
  const busy = named.filter((task) => rank(task)).toSorted((a, b) => rank(b) - rank(a));
  const idle = named.filter((task) => !rank(task));
  const table = (caption, rows) => html`<${Table} caption=${caption} kind="tasks" columns=${columnsOf(named, times, reload)} rows=${rows} id=${(task) => task.name}
    open=${(task) => navigate("runs", { task: task.name })} />`;
  return html`<div class="head"><h2>Tasks</h2><span class="mute">${busy.length} active or failing, ${idle.length} idle</span><span class="gap"></span><${CopyAs} cli="bellringer tasks list" path="tasks" /></div>
    ${!tasks.length && html`<${Empty} title="No tasks"><p>Workers register their tasks when they start.</p><//>`}
    ${tasks.length > 0 && !named.length && html`<p class="mute">No task name contains “${filter}”.</p>`}
    ${busy.length > 0 && table("Tasks", busy)}
    ${idle.length > 0 && html`<details class="idle-tasks" open=${Boolean(filter)}><summary>${idle.length} idle ${idle.length === 1 ? "task" : "tasks"}
      <span class="mute">(nothing waiting, running or failed in the last hour)</span></summary>${table("Idle tasks", idle)}</details>`}`;
}

function pause(task, reload) {
  confirm({
    title: `Pause task ${task.name}?`,
    verb: `Pause ${task.name}`,
    wantsReason: true,
    note: "No run of this task starts for your tenant until it is resumed: scheduled, sent, retried or part of a workflow. Executing runs continue, and new runs wait.",
    act: async (reason) => {
      await post(`${pathOf(task)}/pause`, { reason });
      reload();
      notify(`Paused ${task.name}`, { undo: () => post(`${pathOf(task)}/resume`, {}).then(reload) });
    },
  });
}

const resume = (task, reload) => perform(() => post(`${pathOf(task)}/resume`, {}).then(reload), `Resumed ${task.name}`);
