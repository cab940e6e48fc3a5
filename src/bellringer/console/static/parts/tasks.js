// Tasks: their load, and pauses that keep all of their runs from starting.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { may, part, post } from "../lib/api.js";
import { navigate } from "../lib/router.js";
import { formatDuration } from "../lib/time.js";
import { CopyAs, Empty, Link, Time } from "./elements.js";
import { perform, confirm, notify } from "./dialog.js";
import { State } from "./state_badge.js";
import { Table } from "./table.js";

const pathOf = (task) => `tasks/${part(task.name)}`;

function TaskState({ task }) {
  if (task.paused?.resumed_at) return html`<span><${State} of="retrying" title="resumed; held runs are released gradually" /> <span class="mute">releasing</span></span>`;
  if (task.paused) return html`<span><${State} of="paused" title=${[task.paused.by, task.paused.reason].filter(Boolean).join(": ")} /> <span class="mute">
    ${task.paused.until ? html`until <${Time} at=${task.paused.until} />` : ""} ${task.paused.reason ?? ""}</span></span>`;
  if (!task.workers) return html`<span class="state tone-${task.ready ? "bad" : "mute"}"><${Icon} name="circle" /> no worker</span>`;
  return html`<${State} of="live" />`;
}

const count = (task, name, state) => (task[name]
  ? html`<${Link} to="runs" terms=${{ task: task.name, state }}>${task[name].toLocaleString("en")}<//>` : 0);

const COLUMNS = (reload) => [
  { name: "State", cell: (task) => html`<${TaskState} task=${task} />` },
  { name: "Task", cell: (task) => html`<code>${task.name}</code>` },
  { name: "Workers", class: "number", cell: (task) => task.workers },
  { name: "Ready", class: "number", cell: (task) => count(task, "ready", "queued") },
  { name: "Oldest", class: "number", cell: (task) => (task.oldest === null ? "–" : formatDuration(task.oldest)) },
  { name: "Retrying", class: "number", cell: (task) => count(task, "retrying", "retrying") },
  { name: "Running", class: "number", cell: (task) => count(task, "running", "running") },
  { name: "Held", class: "number", title: "runs that wait for the end of a pause", cell: (task) => count(task, "held", "blocked") },
  { name: "Dead (1 h)", class: "number", cell: (task) => (task.dead
    ? html`<${Link} to="dead-letters" terms=${{ task: task.name }}><span class="tone-bad">${task.dead.toLocaleString("en")}</span><//>` : 0) },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (task) => may("operator") && html`<span class="row-actions">
      ${task.paused ? html`<button type="button" class="quiet" aria-label=${`Resume task ${task.name}`} onClick=${() => resume(task, reload)}><${Icon} name="resume" /> Resume</button>`
    : html`<button type="button" class="quiet" aria-label=${`Pause task ${task.name}`} onClick=${() => pause(task, reload)}><${Icon} name="pause" /> Pause …</button>`}</span>` },
];

export function Tasks({ tasks, reload }) {
  return html`<div class="head"><h2>Tasks</h2><span class="gap"></span><${CopyAs} cli="bellringer tasks list" path="tasks" /></div>
    ${tasks.length ? html`<div class="dense"><${Table} caption="Tasks" columns=${COLUMNS(reload)} rows=${tasks} id=${(task) => task.name}
      open=${(task) => navigate("runs", { task: task.name })} /></div>`
    : html`<${Empty} title="No tasks"><p>Workers register their tasks when they start.</p><//>`}`;
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
