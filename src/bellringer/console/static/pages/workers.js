// Workers and pools: utilization, backlog and actions.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { request, caller, get, may, part, post } from "../lib/api.js";
import { usePolling } from "../lib/polling.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query } from "../lib/router.js";
import { formatAge, formatDuration, now } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading, ErrorMessage, Time } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { perform, confirm, openDialog, notify } from "../parts/dialog.js";
import { TextField, faultsAt } from "../parts/field.js";
import { Chips, Choice, Search } from "../parts/filters.js";
import { Gauge } from "../parts/gauge.js";
import { Menu } from "../parts/menu.js";
import { RunDuration } from "../parts/run_text.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { Tasks } from "../parts/tasks.js";
import { Verdict, worst } from "../parts/health_summary.js";

const POLL_SECONDS = 5; // heartbeats are not announced by the live stream
const LONG_WAIT_SECONDS = 60; // seconds of waiting that are worth a warning
const POOLS = 500;
const RUNNING = 200; // running runs that are read, of the caller's tenant
const NAMED_RUNS = 2; // per worker
const HTTP = "http"; // the pool that servers serve themselves
const STATES = ["live", "draining", "stopped", "lost"];
const START = "bellringer worker app.py";

const present = (worker) => worker.state === "live" || worker.state === "draining";
const slotsOf = (worker) => Object.values(worker.pools).reduce((sum, slots) => sum + slots, 0);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
/** Workers and pools are shared by all tenants, so only installation callers can change them. */
const mayInstallation = (role) => may(role) && Boolean(caller.value?.everywhere);

export default function Workers() {
  const found = useData(async (stop) => {
    const running = get("runs", { state: "running", limit: RUNNING }, stop).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : { items: [] }));
    const [pools, workers, tasks, runs] = await Promise.all([fetchPages("pools", {}, POOLS, stop), get("workers", {}, stop), fetchPages("tasks", {}, POOLS, stop), running]);
    return { pools: pools.items, workers: workers.items, tasks: tasks.items, runs: Map.groupBy(runs.items, (run) => run.worker_id) };
  }, []);
  usePolling(found, POLL_SECONDS);
  return html`<header class="head"><h1>Workers & pools</h1><span class="gap"></span>
      ${mayInstallation("admin") && html`<button type="button" onClick=${() => edit(null, found.reload)}><${Icon} name="plus" /> New pool…</button>`}</header>
    <${Loading} of=${found} shape="page">${(data) => html`<${Summary} data=${data} /><${Filters} pools=${data.pools} workers=${data.workers} />
      <${Pools} pools=${data.pools} reload=${found.reload} /><${WorkerTable} workers=${data.workers} runs=${data.runs} at=${found.at} reload=${found.reload} />
      <${Tasks} tasks=${data.tasks} filter=${query.value.get("q") ?? ""} reload=${found.reload} />`}<//>`;
}

/** The problems, worst first, each with its tone and pool. */
function problems({ pools, workers, tasks }) {
  const waits = (pool) => `${plural(pool.ready, "run")} ${pool.ready === 1 ? "waits" : "wait"} in ${pool.name}`;
  const lost = workers.filter((worker) => worker.state === "lost").length;
  return [
    ...pools.filter((pool) => pool.ready && !pool.workers).map((pool) => ["bad", `${waits(pool)}, which no worker serves`, pool.name]),
    ...pools.filter((pool) => pool.ready && pool.paused).map((pool) => ["warn", `${waits(pool)}, which is paused`, pool.name]),
    ...pools.filter((pool) => pool.oldest > LONG_WAIT_SECONDS && pool.workers
      && !pool.paused).map((pool) => ["warn", `${waits(pool)}, the oldest for ${formatDuration(pool.oldest)}`, pool.name]),
    ...tasks.filter((task) => task.held && !task.paused?.resumed_at).map((task) => ["warn", `${plural(task.held, "run")} of ${task.name}, which is paused, ${task.held === 1 ? "waits" : "wait"}`, ""]),
    ...(lost ? [["warn", `${plural(lost, "worker")} ${lost === 1 ? "was" : "were"} lost in the last hour`, ""]] : []),
  ];
}

function Summary({ data }) {
  const there = data.workers.filter(present);
  const slots = there.reduce((sum, worker) => sum + slotsOf(worker), 0);
  const busy = there.reduce((sum, worker) => sum + worker.busy, 0);
  const wrong = problems(data);
  const waiting = data.pools.reduce((total, pool) => total + pool.ready, 0);
  const rest = wrong.length ? "" : waiting ? `, ${plural(waiting, "run")} waiting` : ", nothing waiting";
  const sum = there.length ? `${plural(there.length, "worker")} with ${plural(slots, "slot")}, ${busy} busy${rest}` : "No worker is running, so no run executes";
  const tone = worst([...wrong.map(([one]) => one), ...(there.length ? [] : ["bad"])]);
  return html`<${Verdict} tone=${tone}>${sum}.
    ${wrong.slice(0, 3).map(([, text, pool]) => html` ${pool ? html`<${Link} to="runs" terms=${{ pool, state: "queued" }}>${text}<//>` : text}.`)}<//>
    ${there.length === 0 && html`<p>Start a worker where your code is: <${Command} text=${START} /></p>`}`;
}

function Filters({ pools, workers }) {
  const counts = Object.fromEntries(STATES.map((state) => [state, workers.filter((worker) => worker.state === state).length]));
  const states = STATES.filter((state) => counts[state] || (query.value.get("state") ?? "").includes(state));
  return html`<div class="tools">
    <${Search} label="Search by name, host or task" placeholder="Name, host or task" />
    <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
    ${states.length > 1 && html`<${Chips} name="state" label="State of workers" of=${states} counts=${counts} />`}
  </div>`;
}

// Pools

const rateText = (rate) => {
  if (rate === null) return "";
  const [size, unit] = rate >= 1 ? [1, "s"] : rate * 60 >= 1 ? [60, "m"] : [3600, "h"];
  return `${+(rate * size).toPrecision(6)}/${unit}`;
};

function PoolLimits({ pool }) {
  const all = [pool.concurrency && `≤ ${pool.concurrency} concurrent`, pool.rate && `≤ ${rateText(pool.rate)}`, pool.timeout && `timeout ${pool.timeout}`];
  const limits = all.filter(Boolean);
  return limits.length ? limits.join(" · ") : html`<span class="mute">none</span>`;
}

function PoolState({ pool }) {
  if (pool.paused) return html`<span><${State} of="paused" title=${[pool.paused.by, pool.paused.reason].filter(Boolean).join(": ")} /> <span class="mute">
    ${pool.paused.reason ?? ""}</span></span>`;
  if (!pool.workers) return html`<span class="state tone-${pool.ready ? "bad" : "mute"}"><${Icon} name=${pool.ready ? "warning" : "circle"} /> no worker</span>`;
  return html`<${State} of="live" />`;
}

const poolTrouble = (pool) => (pool.ready && (!pool.workers || pool.paused || pool.oldest > LONG_WAIT_SECONDS) ? 2 : pool.paused ? 1 : 0);

const COLUMNS = (reload) => [
  { name: "Pool", phone: "title", cell: (pool) => html`<${Link} to="jobs" terms=${{ pool: pool.name }} class="name" title="Jobs of this pool">${pool.name}<//>${pool.description && html` <span
    class="mute">${pool.description}</span>`}` },
  { name: "State", phone: "side", cell: (pool) => html`<${PoolState} pool=${pool} />` },
  { name: "Busy slots", class: "tight", phone: "line", cell: (pool) => html`<${Gauge} value=${pool.busy} most=${pool.slots} label=${`busy slots of ${pool.name}`}
    waits=${pool.ready > 0} runs=${{ pool: pool.name, state: "running" }} />` },
  { name: "Workers", class: "number", phone: "line", short: "workers", cell: (pool) => pool.workers },
  { name: "Waiting", class: "number", phone: "line", short: "waiting", title: "runs that are due and wait for a worker", cell: (pool) => (pool.ready
    ? html`<${Link} to="runs" terms=${{ pool: pool.name, state: "queued" }}>${pool.ready.toLocaleString("en")}<//>` : 0) },
  { name: "Longest wait", class: "number", phone: "hide", title: "of the runs that wait now", cell: (pool) => (pool.oldest === null ? "–" : formatDuration(pool.oldest)) },
  { name: "Limits", phone: "line", short: "limits:", cell: (pool) => html`<${PoolLimits} pool=${pool} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "acts", cell: (pool) => mayInstallation("admin") && html`<${Menu} label=${`Actions: pool ${pool.name}`} items=${[
    pool.paused ? { text: "Resume", icon: "resume", act: () => resume(pool, reload) } : { text: "Pause…", icon: "pause", act: () => pause(pool, reload) },
    { text: "Change limits…", icon: "edit", act: () => edit(pool, reload) },
  ]} />` },
];

function Pools({ pools, reload }) {
  const only = query.value.get("pool");
  const rows = (only ? pools.filter((pool) => pool.name === only) : pools).toSorted((a, b) => poolTrouble(b) - poolTrouble(a));
  return html`<div class="head"><h2>Pools</h2><span class="gap"></span><${CopyAs} cli="bellringer pools list" path="pools" /></div>
    ${rows.length ? html`<${Table} caption="Pools" columns=${COLUMNS(reload)} rows=${rows} id=${(pool) => pool.name}
      open=${(pool) => navigate("jobs", { pool: pool.name })} />`
      : html`<${Empty} title=${only ? `There is no pool ${only}` : "No pools"}>
        <p>A pool is created when a worker serves it, or by an administrator: <${Command}
        text=${`bellringer pools set ${only && /^[\w.-]+$/.test(only) ? only : "reports"} --concurrency 10`} /></p><//>`}`;
}

/** PUT replaces the whole pool, so unchanged fields are read first. */
async function updatePool(name, change) {
  const old = await get(`pools/${part(name)}`).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
  const bounds = old && { description: old.description, concurrency: old.concurrency, rate: old.rate, timeout: old.timeout };
  const pause = old?.paused ? { paused: true, reason: old.paused.reason } : {};
  return (await request("PUT", `pools/${part(name)}`, { body: { ...bounds, ...pause, ...change } })).data;
}

function pause(pool, reload) {
  confirm({
    title: `Pause pool ${pool.name}?`,
    verb: `Pause ${pool.name}`,
    wantsReason: true,
    note: "No run of any tenant starts in this pool until it is resumed. Executing runs continue.",
    act: async (reason) => {
      await updatePool(pool.name, { paused: true, reason });
      reload();
      notify(`Paused ${pool.name}`, { undo: () => updatePool(pool.name, { paused: false, reason: undefined }).then(reload) });
    },
  });
}

const resume = (pool, reload) =>
  perform(
    () => updatePool(pool.name, { paused: false, reason: undefined }).then(reload),
    `Resumed ${pool.name}`,
    { undo: () => updatePool(pool.name, { paused: true, reason: pool.paused.reason ?? undefined }).then(reload) },
  );

function edit(pool, reload) {
  openDialog(pool ? `Limits of ${pool.name}` : "New pool", function Edit({ close }) {
    const [draft, setDraft] = useState({ name: pool?.name ?? "", description: pool?.description ?? "", concurrency: String(pool?.concurrency ?? ""),
      rate: rateText(pool?.rate ?? null), timeout: pool?.timeout ?? "" });
    const [error, setError] = useState(null);
    const [busy, setBusy] = useState(false);
    const field = (name) => ({ value: draft[name], set: (value) => setDraft((old) => ({ ...old, [name]: value })), faults: faultsAt(error?.errors, `/${name}`) });
    async function save(event) {
      event.preventDefault();
      setBusy(true);
      try {
        // An invalid number is sent as text; the server reports the error.
        const concurrency = draft.concurrency === "" ? null : /^\d+$/.test(draft.concurrency) ? Number(draft.concurrency) : draft.concurrency;
        await updatePool(draft.name, { description: draft.description, concurrency, rate: draft.rate || null, timeout: draft.timeout || null });
        close();
        reload();
        notify(`Saved ${draft.name}`);
      } catch (problem) {
        setError(problem);
        setBusy(false);
      }
    }
    const limits = error?.errors?.some((one) => ["/description", "/concurrency", "/rate", "/timeout"].includes(one.pointer));
    return html`<form onSubmit=${save}>
      <p class="mute">The limits apply to all workers together. Leave a field empty for no limit.</p>
      ${!pool && html`<${TextField} label="Name" required=${true} ...${field("name")} />`}
      <${TextField} label="Description" ...${field("description")} />
      <div class="fields"><${TextField} label="Concurrency" hint="maximum number of executing runs" mode="numeric" ...${field("concurrency")} />
      <${TextField} label="Rate" hint="maximum number of starts: 50/s, 300/m, 10/h" ...${field("rate")} />
      <${TextField} label="Timeout" hint="for attempts without a timeout of their own: 60s, 10m" ...${field("timeout")} /></div>
      ${error && !limits && html`<${ErrorMessage} error=${error} />`}
      <div class="actions"><button type="button" onClick=${close}>Cancel</button><button type="submit" class="main" disabled=${busy}>
        ${pool ? "Save" : "Create pool"}</button></div>
    </form>`;
  });
}

// Workers

const served = (worker) => Object.entries(worker.pools).map(([pool, slots]) => `${pool}: ${slots}`).join(", ");

function WorkerState({ worker }) {
  const left = worker.busy ? `${plural(worker.busy, "run")} left` : "no runs left";
  const note = worker.state === "draining" ? left : worker.asked && present(worker)
    ? `${worker.asked === "stop" ? "will stop" : "takes no more work"}${worker.busy ? `, ${plural(worker.busy, "run")} left` : ""}` : "";
  return html`<span><${State} of=${worker.state} />${note && html` <span class="mute">${note}</span>`}</span>`;
}

function tasksOf(worker) {
  openDialog(`Tasks of ${worker.name}`, ({ close }) => html`<ul>
    ${worker.tasks.map((task) => html`<li><${Link} to="runs" terms=${{ task }} onClick=${close}><code>${task}</code><//></li>`)}</ul>
    <div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`);
}

/** Age of the last heartbeat, by the server's clock. */
function age(worker, at) {
  const seconds = Math.round(worker.age + Math.max(now.value - at, 0) / 1000);
  return seconds ? `${formatAge(seconds)} ago` : "now";
}

const WORKER_TROUBLE = ["draining", "lost"]; // listed first, the last of them before the others

/** The first runs that a worker executes, and how many more: of the caller's tenant. */
function RunningNow({ worker, runs = [] }) {
  const more = worker.busy - Math.min(runs.length, NAMED_RUNS);
  const terms = { worker: worker.worker_id, state: "running" };
  return html`<span class="running-now">${runs.slice(0, NAMED_RUNS).map((run) => html`<span key=${run.run_id} class="nobreak"><${Link} to=${`runs/${part(run.run_id)}`} class="clip short" title=${`${nameOf(run)}, task ${run.task}`}>
    ${nameOf(run)}<//> <span class="mute"><${RunDuration} run=${run} /></span></span>`)}${more > 0 && html`<${Link} to="runs" terms=${terms}>${runs.length ? `${more} more` : plural(more, "run")}<//>`}</span>`;
}

const nameOf = (run) => (run.workflow ? `${run.workflow.job ?? "workflow"} › ${run.workflow.node}` : (run.job ?? run.task));

const FLEET = (runs, at, reload) => [
  { name: "Worker", phone: "title", cell: (worker) => html`<span class="nobreak"><${Link} to="runs" terms=${{ worker: worker.worker_id }} class="name" title=${`Runs of this worker (id ${worker.worker_id})`}>${worker.name}<//>
    ${isServers(worker) && html` <span class="mute" title="It runs HTTP jobs in the process of a server, and stops with that server.">embedded in a server</span>`}</span>` },
  { name: "State", phone: "side", cell: (worker) => html`<${WorkerState} worker=${worker} />` },
  { name: "Busy slots", class: "tight", phone: "line", cell: (worker) => html`<${Gauge} value=${worker.busy} most=${slotsOf(worker)} label=${`busy slots of ${worker.name}`}
    runs=${{ worker: worker.worker_id, state: "running" }} />` },
  { name: "Running now", phone: "full", cell: (worker) => worker.busy > 0 && html`<${RunningNow} worker=${worker} runs=${runs.get(worker.worker_id)} />` },
  { name: "Slots by pool", phone: "line", cell: (worker) => served(worker) },
  { name: "Heartbeat", class: "number", phone: "line", short: "heartbeat", cell: (worker) => age(worker, at) },
  { name: "Started", phone: "hide", cell: (worker) => html`<${Time} at=${worker.started_at} />` },
  { name: "Host", phone: "hide", cell: (worker) => (worker.host === null ? html`<span class="mute" title="visible to installation callers">–</span>`
    : html`<span>${worker.host} <span class="mute">pid ${worker.pid}</span></span>`) },
  { name: "Version", class: "rare", phone: "hide", cell: (worker) => worker.version },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "acts", cell: (worker) => html`<${Menu} label=${`Actions: ${worker.name}`} items=${workerActions(worker, reload)} />` },
];

function workerActions(worker, reload) {
  const changes = mayInstallation("operator") && present(worker);
  return [
    { text: `Show its ${plural(worker.tasks.length, "task")}`, icon: "task", act: () => tasksOf(worker) },
    { text: "Show its runs", icon: "runs", to: "runs", terms: { worker: worker.worker_id } },
    changes && worker.asked === null && { text: "Stop taking work…", icon: "pause", title: "Running runs finish; the process stays.", act: () => quiet(worker, reload) },
    changes && worker.asked !== "stop" && !isServers(worker) && { text: "Stop the worker…", icon: "close", title: "Running runs finish within the grace period; then the process exits.", act: () => stop(worker, reload) },
  ];
}

const isServers = (worker) => Object.keys(worker.pools).join() === HTTP;

function chosen(workers, terms) {
  const [text, pool, states] = [(terms.get("q") ?? "").toLowerCase(), terms.get("pool"), (terms.get("state") ?? "").split(",").filter(Boolean)];
  return workers.filter((worker) => {
    const named = [worker.name, worker.host ?? "", ...worker.tasks].some((one) => one.toLowerCase().includes(text));
    return named && (!pool || pool in worker.pools) && (!states.length || states.includes(worker.state));
  });
}

function WorkerTable({ workers, runs, at, reload }) {
  const rows = chosen(workers, query.value).toSorted((a, b) => WORKER_TROUBLE.indexOf(b.state) - WORKER_TROUBLE.indexOf(a.state));
  const pool = query.value.get("pool");
  const command = pool && /^[\w.-]+$/.test(pool) ? `${START} --pool ${pool}=10` : START;
  return html`<div class="head"><h2>Workers</h2>${rows.length < workers.length && html`<span class="mute">${rows.length} of ${workers.length}</span>`}
    <span class="gap"></span><${CopyAs} cli="bellringer workers list" path="workers" /></div>
    ${rows.length ? html`<${Table} caption="Workers" columns=${FLEET(runs, at, reload)} rows=${rows} id=${(worker) => String(worker.worker_id)}
      open=${(worker) => navigate("runs", { worker: worker.worker_id })} />`
      : html`<${Empty} title=${workers.length ? "No matching workers" : "No workers"}>
        <p>A worker executes the tasks of an app. Start one where your code is: <${Command} text=${command} /></p>
          ${workers.length > 0 && html`<p><${Link} to="workers">Show all workers<//></p>`}<//>`}`;
}

const running = (worker) => (worker.busy ? `It finishes ${worker.busy === 1 ? "its run" : `its ${worker.busy} runs`}` : "It has no runs");

function quiet(worker, reload) {
  confirm({
    title: `${worker.name}: take no more work?`,
    verb: "Stop taking work",
    note: `${running(worker)} and takes no more. Its process stays; restart it to undo this.`,
    act: () => post(`workers/${part(worker.worker_id)}/quiet`, {}).then(reload),
    done: `${worker.name} takes no more runs`,
  });
}

function stop(worker, reload) {
  confirm({
    title: `Stop ${worker.name}?`,
    verb: "Stop worker",
    note: `${running(worker)}${worker.busy ? " within its grace period, returns the rest," : ""} and exits.`,
    act: () => post(`workers/${part(worker.worker_id)}/stop`, {}).then(reload),
    done: `${worker.name} will stop`,
  });
}
