// Workers and pools: is there somebody for the work, and what can be done where there is not.
import { html, useState } from "../lib/html.js";
import { ask, caller, get, may, part, post } from "../lib/api.js";
import { useBeat } from "../lib/beat.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { go, query } from "../lib/place.js";
import { now, span } from "../lib/time.js";
import { CopyAs, Empty, Link, Loading, Trouble, When } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { attempt, confirm, show, tell } from "../parts/dialog.js";
import { Text, faultsAt } from "../parts/field.js";
import { Chips, Choice, Search } from "../parts/filters.js";
import { Gauge } from "../parts/gauge.js";
import { State } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { Verdict, worst } from "../parts/verdict.js";

const BEAT = 5; // seconds: signs of life are no news, so no pulse tells of them
const LONG = 60; // seconds that work may wait before somebody should know
const POOLS = 500;
const HTTP = "http"; // what servers serve themselves
const STATES = ["live", "draining", "stopped", "lost"];
const START = "bellringer worker app.py";

const present = (worker) => worker.state === "live" || worker.state === "draining";
const slotsOf = (worker) => Object.values(worker.pools).reduce((sum, slots) => sum + slots, 0);
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
/** What all tenants share is steered by callers of the whole installation. */
const mayHere = (role) => may(role) && Boolean(caller.value?.everywhere);

export default function Workers() {
  const found = useData(async (stop) => {
    const [pools, workers] = await Promise.all([gather("pools", {}, POOLS, stop), get("workers", {}, stop)]);
    return { pools: pools.items, workers: workers.items };
  }, []);
  useBeat(found, BEAT);
  return html`<header class="head"><h1>Workers & pools</h1><span class="gap"></span>
      ${mayHere("admin") && html`<button type="button" onClick=${() => edit(null, found.again)}>Make a pool …</button>`}</header>
    <${Loading} of=${found}>${(data) => html`<${Judged} data=${data} /><${Filters} pools=${data.pools} workers=${data.workers} />
      <${Pools} pools=${data.pools} again=${found.again} /><${Fleet} workers=${data.workers} at=${found.at} again=${found.again} />`}<//>`;
}

/** What is wrong, the worst first; each with its tone and the pool it is about. */
function faults({ pools, workers }) {
  const waits = (pool) => `${plural(pool.ready, "run")} ${pool.ready === 1 ? "waits" : "wait"} in ${pool.name}`;
  const lost = workers.filter((worker) => worker.state === "lost").length;
  return [
    ...pools.filter((pool) => pool.ready && !pool.workers).map((pool) => ["bad", `${waits(pool)}, and no worker serves it`, pool.name]),
    ...pools.filter((pool) => pool.ready && pool.paused).map((pool) => ["warn", `${waits(pool)}, which is paused`, pool.name]),
    ...pools.filter((pool) => pool.oldest > LONG && pool.workers
      && !pool.paused).map((pool) => ["warn", `${waits(pool)}, the first for ${span(pool.oldest)}`, pool.name]),
    ...(lost ? [["warn", `${plural(lost, "worker")} ${lost === 1 ? "was" : "were"} lost within the hour`, ""]] : []),
  ];
}

function Judged({ data }) {
  const there = data.workers.filter(present);
  const slots = there.reduce((sum, worker) => sum + slotsOf(worker), 0);
  const busy = there.reduce((sum, worker) => sum + worker.busy, 0);
  const wrong = faults(data);
  const rest = wrong.length ? "" : ", and nothing waits for long";
  const sum = there.length ? `${plural(there.length, "worker")} with ${plural(slots, "slot")}, ${busy} busy${rest}` : "No worker is there, so nothing runs";
  const tone = worst([...wrong.map(([one]) => one), ...(there.length ? [] : ["bad"])]);
  return html`<${Verdict} tone=${tone}>${sum}.
    ${wrong.slice(0, 3).map(([, text, pool]) => html` ${pool ? html`<${Link} to="runs" terms=${{ pool, state: "queued" }}>${text}<//>` : text}.`)}<//>
    ${there.length === 0 && html`<p>Start one where your code is: <${Command} text=${START} /></p>`}`;
}

function Filters({ pools, workers }) {
  const counts = Object.fromEntries(STATES.map((state) => [state, workers.filter((worker) => worker.state === state).length]));
  return html`<div class="tools">
    <${Search} label="search by name, host or task" placeholder="Name, host or task" />
    <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
    <${Chips} name="state" label="state of workers" of=${STATES} counts=${counts} />
  </div>`;
}

// Pools

const rateText = (rate) => {
  if (rate === null) return "";
  const [size, unit] = rate >= 1 ? [1, "s"] : rate * 60 >= 1 ? [60, "m"] : [3600, "h"];
  return `${+(rate * size).toPrecision(6)}/${unit}`;
};

function Bounds({ pool }) {
  const all = [pool.concurrency && `≤ ${pool.concurrency} at once`, pool.rate && `≤ ${rateText(pool.rate)}`, pool.timeout && `timeout ${pool.timeout}`];
  const told = all.filter(Boolean);
  return told.length ? told.join(" · ") : html`<span class="mute">none</span>`;
}

function PoolState({ pool }) {
  if (pool.paused) return html`<${State} of="paused" title=${[pool.paused.by, pool.paused.reason].filter(Boolean).join(": ")} /> <span class="mute">
    ${pool.paused.reason ?? ""}</span>`;
  if (!pool.workers) return html`<span class="state tone-${pool.ready ? "bad" : "mute"}"><span aria-hidden="true">○</span> no worker</span>`;
  return html`<${State} of="live" />`;
}

const COLUMNS = (again) => [
  { name: "State", cell: (pool) => html`<${PoolState} pool=${pool} />` },
  { name: "Pool", cell: (pool) => html`<strong>${pool.name}</strong>${pool.description && html` <span class="mute">${pool.description}</span>`}` },
  { name: "Busy", class: "tight", cell: (pool) => html`<${Gauge} value=${pool.busy} most=${pool.slots} label=${`busy slots of ${pool.name}`}
    waits=${pool.ready > 0} />` },
  { name: "Workers", class: "number", cell: (pool) => pool.workers },
  { name: "Ready", class: "number", cell: (pool) => (pool.ready
    ? html`<${Link} to="runs" terms=${{ pool: pool.name, state: "queued" }}>${pool.ready.toLocaleString("en")}<//>` : 0) },
  { name: "Oldest waits", class: "number", cell: (pool) => (pool.oldest === null ? "–" : span(pool.oldest)) },
  { name: "Bounds", cell: (pool) => html`<${Bounds} pool=${pool} />` },
  { name: "Jobs", class: "tight", cell: (pool) => html`<${Link} to="jobs" terms=${{ pool: pool.name }}>its jobs<//>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (pool) => mayHere("admin") && html`<span class="row-actions">
      ${pool.paused ? html`<button type="button" class="quiet" aria-label=${`Resume the pool ${pool.name}`}
        onClick=${() => resume(pool, again)}>Resume</button>`
        : html`<button type="button" class="quiet" aria-label=${`Pause the pool ${pool.name}`} onClick=${() => pause(pool, again)}>Pause …</button>`}
      <button type="button" class="quiet" aria-label=${`Edit the bounds of ${pool.name}`} onClick=${() => edit(pool, again)}>Edit …</button></span>` },
];

function Pools({ pools, again }) {
  const only = query.value.get("pool");
  const rows = only ? pools.filter((pool) => pool.name === only) : pools;
  return html`<div class="head"><h2>Pools</h2><span class="gap"></span><${CopyAs} cli="bellringer pools list" path="pools" /></div>
    ${rows.length ? html`<${Table} caption="Pools" columns=${COLUMNS(again)} rows=${rows} id=${(pool) => pool.name}
      open=${(pool) => go("jobs", { pool: pool.name })} />`
      : html`<${Empty} title=${only ? `No pool is called ${only}` : "No pools"}>
        <p>A pool is there once a worker serves it, or when it is made: <${Command}
        text=${`bellringer pools set ${only && /^[\w.-]+$/.test(only) ? only : "reports"} --concurrency 10`} /></p><//>`}`;
}

/** A pool is put as a whole: what is not meant stays as the server has it now. */
async function put(name, change) {
  const old = await get(`pools/${part(name)}`).catch((error) => (error.status === 404 ? null : Promise.reject(error)));
  const bounds = old && { description: old.description, concurrency: old.concurrency, rate: old.rate, timeout: old.timeout };
  const pause = old?.paused ? { paused: true, reason: old.paused.reason } : {};
  return (await ask("PUT", `pools/${part(name)}`, { body: { ...bounds, ...pause, ...change } })).data;
}

function pause(pool, again) {
  confirm({
    title: `Pause the pool ${pool.name}?`,
    verb: `Pause ${pool.name}`,
    wantsReason: true,
    note: "Nothing of it starts, of any tenant, until it is resumed. What runs goes on.",
    act: async (reason) => {
      await put(pool.name, { paused: true, reason });
      again();
      tell(`${pool.name} is paused`, { undo: () => put(pool.name, { paused: false, reason: undefined }).then(again) });
    },
  });
}

const resume = (pool, again) =>
  attempt(
    () => put(pool.name, { paused: false, reason: undefined }).then(again),
    `${pool.name} goes on`,
    { undo: () => put(pool.name, { paused: true, reason: pool.paused.reason ?? undefined }).then(again) },
  );

function edit(pool, again) {
  show(pool ? `The bounds of ${pool.name}` : "Make a pool", function Edit({ close }) {
    const [draft, change] = useState({ name: pool?.name ?? "", description: pool?.description ?? "", concurrency: String(pool?.concurrency ?? ""),
      rate: rateText(pool?.rate ?? null), timeout: pool?.timeout ?? "" });
    const [error, fail] = useState(null);
    const [busy, work] = useState(false);
    const field = (name) => ({ value: draft[name], set: (value) => change((old) => ({ ...old, [name]: value })), faults: faultsAt(error?.errors, `/${name}`) });
    async function save(event) {
      event.preventDefault();
      work(true);
      try {
        // A number that is none goes as it was typed: the server says what is wrong with it.
        const concurrency = draft.concurrency === "" ? null : /^\d+$/.test(draft.concurrency) ? Number(draft.concurrency) : draft.concurrency;
        await put(draft.name, { description: draft.description, concurrency, rate: draft.rate || null, timeout: draft.timeout || null });
        close();
        again();
        tell(`${draft.name} is kept`);
      } catch (problem) {
        fail(problem);
        work(false);
      }
    }
    const told = error?.errors?.some((one) => ["/description", "/concurrency", "/rate", "/timeout"].includes(one.pointer));
    return html`<form onSubmit=${save}>
      <p class="mute">They hold for all workers together. An empty field bounds nothing.</p>
      ${!pool && html`<${Text} label="Name" required=${true} ...${field("name")} />`}
      <${Text} label="What it is for" ...${field("description")} />
      <div class="fields"><${Text} label="Concurrency" hint="how many of its runs are under way at most" mode="numeric" ...${field("concurrency")} />
      <${Text} label="Rate" hint="how many start at most: 50/s, 300/m, 10/h" ...${field("rate")} />
      <${Text} label="Timeout" hint="of attempts whose job says none: 60s, 10m" ...${field("timeout")} /></div>
      ${error && !told && html`<${Trouble} error=${error} />`}
      <div class="actions"><button type="button" onClick=${close}>Keep as it is</button><button type="submit" class="main" disabled=${busy}>
        ${pool ? "Keep these bounds" : "Make the pool"}</button></div>
    </form>`;
  });
}

// Workers

const served = (worker) => Object.entries(worker.pools).map(([pool, slots]) => `${pool}×${slots}`).join(" ");

function Life({ worker }) {
  const left = worker.busy ? `drains: ${worker.busy} left` : "drained";
  const note = worker.state === "draining" ? left : worker.asked && present(worker)
    ? `asked to ${worker.asked === "stop" ? "stop" : "be quiet"}${worker.busy ? `, ${worker.busy} left` : ""}` : "";
  return html`<${State} of=${worker.state} />${note && html` <span class="mute">${note}</span>`}`;
}

function tasksOf(worker) {
  show(`What ${worker.name} can do`, ({ close }) => html`<ul>
    ${worker.tasks.map((task) => html`<li><${Link} to="runs" terms=${{ task }} onClick=${close}><code>${task}</code><//></li>`)}</ul>
    <div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`);
}

/** How long ago it was heard of, by the server's clock. */
function age(worker, at) {
  const seconds = Math.round(worker.age + Math.max(now.value - at, 0) / 1000);
  return seconds ? `${seconds < 10 ? `${seconds} s` : span(seconds)} ago` : "now";
}

const FLEET = (at, again) => [
  { name: "State", cell: (worker) => html`<${Life} worker=${worker} />` },
  { name: "Name", cell: (worker) => html`<${Link} to="runs" terms=${{ worker: worker.worker_id }} title="its runs">${worker.name}<//>` },
  { name: "Number", class: "number", cell: (worker) => worker.worker_id },
  { name: "Host", cell: (worker) => (worker.host === null ? html`<span class="mute" title="told to callers of the whole installation">–</span>`
    : html`${worker.host} <span class="mute">pid ${worker.pid}</span>`) },
  { name: "Version", cell: (worker) => worker.version },
  { name: "Pools × slots", cell: (worker) => served(worker) },
  { name: "Busy", class: "tight", cell: (worker) => html`<${Gauge} value=${worker.busy} most=${slotsOf(worker)} label=${`busy slots of ${worker.name}`} />` },
  { name: "Heard of", class: "number", cell: (worker) => age(worker, at) },
  { name: "Started", cell: (worker) => html`<${When} at=${worker.started_at} />` },
  { name: "Tasks", class: "number", cell: (worker) => html`<button type="button" class="quiet"
    aria-label=${`${plural(worker.tasks.length, "task")} of ${worker.name}`} onClick=${() => tasksOf(worker)}>${worker.tasks.length}</button>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight", cell: (worker) => mayHere("operator") && present(worker) && html`<span class="row-actions">
      <button type="button" class="quiet" disabled=${worker.asked !== null} aria-label=${`Quiet ${worker.name}`}
        onClick=${() => quiet(worker, again)}>Quiet …</button>
      <button type="button" class="quiet" disabled=${worker.asked === "stop" || isServers(worker)}
        title=${isServers(worker) ? "a part of a server: stop the server" : undefined} aria-label=${`Stop ${worker.name}`}
        onClick=${() => stop(worker, again)}>Stop …</button></span>` },
];

const isServers = (worker) => Object.keys(worker.pools).join() === HTTP;

function chosen(workers, terms) {
  const [text, pool, states] = [(terms.get("q") ?? "").toLowerCase(), terms.get("pool"), (terms.get("state") ?? "").split(",").filter(Boolean)];
  return workers.filter((worker) => {
    const named = [worker.name, worker.host ?? "", ...worker.tasks].some((one) => one.toLowerCase().includes(text));
    return named && (!pool || pool in worker.pools) && (!states.length || states.includes(worker.state));
  });
}

function Fleet({ workers, at, again }) {
  const rows = chosen(workers, query.value);
  const pool = query.value.get("pool");
  const command = pool && /^[\w.-]+$/.test(pool) ? `${START} --pool ${pool}=10` : START;
  return html`<div class="head"><h2>Workers</h2>${rows.length < workers.length && html`<span class="mute">${rows.length} of ${workers.length}</span>`}
    <span class="gap"></span><${CopyAs} cli="bellringer workers list" path="workers" /></div>
    ${rows.length ? html`<${Table} caption="Workers" columns=${FLEET(at, again)} rows=${rows} id=${(worker) => String(worker.worker_id)}
      open=${(worker) => go("runs", { worker: worker.worker_id })} />`
      : html`<${Empty} title=${workers.length ? "No worker fits" : "No workers"}>
        <p>A worker runs the tasks of an app; start one where your code is: <${Command} text=${command} /></p>
          ${workers.length > 0 && html`<p><${Link} to="workers">See all of them<//></p>`}<//>`}`;
}

const running = (worker) => (worker.busy ? `It finishes ${worker.busy === 1 ? "its one run" : `its ${worker.busy} runs`}` : "It runs nothing just now");

function quiet(worker, again) {
  confirm({
    title: `Let ${worker.name} be quiet?`,
    verb: "Quiet the worker",
    note: `${running(worker)}, and claims no more. Only a new start makes it work again.`,
    act: () => post(`workers/${part(worker.worker_id)}/quiet`, {}).then(again),
    done: `${worker.name} claims no more`,
  });
}

function stop(worker, again) {
  confirm({
    title: `Stop ${worker.name}?`,
    verb: "Stop the worker",
    note: `${running(worker)}${worker.busy ? " within its grace, gives back the rest," : ""} and ends.`,
    act: () => post(`workers/${part(worker.worker_id)}/stop`, {}).then(again),
    done: `${worker.name} was asked to stop`,
  });
}
