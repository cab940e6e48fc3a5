// The cluster: does every shard have its node, do the clocks agree, and is nothing behind.
import { html } from "../lib/html.js";
import { get } from "../lib/api.js";
import { useBeat } from "../lib/beat.js";
import { useData } from "../lib/load.js";
import { query } from "../lib/place.js";
import { now, span } from "../lib/time.js";
import { Card, CopyAs, Empty, Facts, Link, Loading, When } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { Choice } from "../parts/filters.js";
import { Badge, ShardStrip, letter } from "../parts/shards.js";
import { State } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { Verdict, worst } from "../parts/verdict.js";

const BEAT = 3; // seconds: leases are renewed without a pulse
const SILENT = 10; // seconds after which a node that says nothing has lost its leases
const SKEWED = 1; // seconds between clocks that somebody should know of
const LATE = 5; // seconds that a shard may be behind

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
/** The same length of time, with its direction. */
const signed = (seconds) => `${seconds < 0 ? "−" : "+"}${span(Math.abs(seconds))}`;

function readCluster(stop) {
  const none = (error) => (error.name === "AbortError" ? Promise.reject(error) : null); // the rest is worth showing without it
  return Promise.all([get("cluster", {}, stop), get("cluster/tz-moves", { limit: 20 }, stop).catch(none),
    get("version", {}, stop).catch(none)]).then(([cluster, tz, version]) => ({ ...cluster, tz, version }));
}

export default function Cluster() {
  const found = useData(readCluster, []);
  useBeat(found, BEAT);
  return html`<header class="head"><h1>Cluster</h1><span class="gap"></span><${CopyAs} cli="bellringer cluster status" path="cluster" /></header>
    <${Loading} of=${found}>${(data) => {
      const places = new Map(data.nodes.map((node, place) => [node.node_id, place]));
      return html`<${Judged} data=${data} /><${Nodes} nodes=${data.nodes} places=${places} leases=${data.leases} />
        <${Shards} data=${data} places=${places} at=${found.at} />
        <div class="cards"><${Lag} lag=${data.lag} /><${Rules} data=${data} /></div><${Zones} tz=${data.tz} />`;
    }}<//>`;
}

const alive = (node) => node.age < SILENT;
const stateOf = (node) => (!alive(node) ? "gone" : node.waits_for ? "waiting" : "live");

/** What is wrong, each with its tone. */
function faults(data) {
  const { nodes, shards, lag, schema, tz } = data;
  const late = lag.firing > LATE && `fires are up to ${span(lag.firing)} late`;
  const waits = nodes.filter((node) => alive(node) && node.waits_for).map((node) => `${node.name} waits for ${node.waits_for}`);
  const versions = tz && Object.keys(tz.applied).some((version) => version !== tz.version) && "some shards follow other rules of the time zones";
  return [
    ...(nodes.some(alive) ? [] : [["bad", "no scheduler lives, so nothing fires"]]),
    ...(shards.free ? [["bad", `${plural(shards.free, "shard")} without a holder, whose jobs do not fire`]] : []),
    ...(late ? [["bad", late]] : []),
    ...(skewOf(data) >= SKEWED ? [["warn", "the clocks differ"]] : []),
    ...waits.map((text) => ["warn", text]),
    ...(schema.current === schema.wanted ? [] : [["warn", `the schema is ${schema.current}, and ${schema.wanted} is wanted`]]),
    ...(versions ? [["warn", versions]] : []),
  ];
}

const skewOf = (data) => Math.max(Math.abs(data.skew), ...data.nodes.filter(alive).map((node) => Math.abs(node.skew)));

function Judged({ data }) {
  const { held, total } = data.shards;
  const expired = data.leases.filter((lease) => !lease.holder && lease.token > 0).length;
  const wrong = faults(data);
  return html`<${Verdict} tone=${worst(wrong.map(([tone]) => tone))}><a href="#leases" onClick=${toLeases}>
    ${held}/${total} shards</a> held, ${expired} expired, skew ${span(skewOf(data))}${wrong.map(([, text]) => `; ${text}`).join("")}.<//>
    ${!data.nodes.some(alive) && html`<p>Start a scheduler: <${Command} text="bellringer scheduler" /></p>`}`;
}

function toLeases(event) {
  event.preventDefault();
  document.getElementById("leases")?.scrollIntoView();
}

const tokens = (leases) => {
  const all = leases.map((lease) => lease.token);
  if (!all.length) return "–";
  const [least, most] = [Math.min(...all), Math.max(...all)];
  return least === most ? String(least) : `${least}–${most}`;
};

function Nodes({ nodes, places, leases }) {
  const held = (node) => leases.filter((lease) => lease.holder === node.node_id);
  const number = (name, cell, title) => ({ name, class: "number", cell, title });
  const columns = [
    { name: "State", cell: (node) => html`<${State} of=${stateOf(node)} />
      ${node.waits_for && alive(node) ? html` <span class="mute">for ${node.waits_for}</span>` : ""}` },
    { name: "Node", cell: (node) => html`<${Badge} place=${places.get(node.node_id)} /> <strong>${node.name}</strong> <span class="mute">
      ${node.host === null ? "" : `${node.host} pid ${node.pid}`}</span>` },
    { name: "Version", cell: (node) => node.version },
    { name: "Region", cell: (node) => node.region ?? html`<span class="mute">–</span>` },
    number("Shards", (node) => html`<${Link} to="cluster" terms=${{ node: node.node_id }}>${held(node).length}<//>`),
    number("Tokens", (node) => tokens(held(node)), "each grew by one with every new holder"),
    number("Fired", (node) => node.fired.toLocaleString("en")),
    number("Refused", (node) => node.refused.toLocaleString("en"), "fires that it had no right to any more"),
    number("Skew", (node) => signed(node.skew), "its clock against that of the database"),
    number("Heard of", (node) => (node.age < 1 ? "now" : `${Math.round(node.age) < 10 ? `${Math.round(node.age)} s` : span(node.age)} ago`)),
    { name: "Started", cell: (node) => html`<${When} at=${node.started_at} />` },
  ];
  return html`<h2 class="section">Nodes</h2>${nodes.length
    ? html`<${Table} caption="Scheduler nodes" columns=${columns} rows=${nodes} id=${(node) => node.node_id} />`
    : html`<${Empty} title="No nodes"><p>A server brings a scheduler with it; one alone is started by <${Command} text="bellringer scheduler" /></p><//>`}`;
}

function Shards({ data, places, at }) {
  const only = query.value.get("node");
  const names = Object.fromEntries(data.nodes.map((node) => [node.node_id, `${letter(places.get(node.node_id))} · ${node.name}`]));
  const rows = data.leases.filter((lease) => !only || (only === "none" ? !lease.holder : lease.holder === only));
  const late = new Map(data.lag.shards.map((one) => [one.shard, one.late]));
  const left = (lease) => Math.max(lease.seconds_left - Math.max(now.value - at, 0) / 1000, 0);
  const columns = [
    { name: "Shard", class: "number", cell: (lease) => lease.shard },
    { name: "State", cell: (lease) => (lease.holder ? html`<${State} of="held" />`
      : html`<span class="state tone-bad"><span aria-hidden="true">✕</span> ${lease.token ? "expired" : "free"}</span>`) },
    { name: "Holder", cell: (lease) => (lease.holder ? html`<${Badge} place=${places.get(lease.holder) ?? 0} /> ${lease.node ?? lease.holder}`
      : html`<span class="mute">nobody</span>`) },
    { name: "Token", class: "number", title: "the fence: it grew by one with every new holder", cell: (lease) => lease.token },
    { name: "Time left", class: "number", cell: (lease) => (lease.holder ? `${left(lease).toFixed(1)} s` : "–") },
    { name: "Region", cell: (lease) => lease.region ?? html`<span class="mute">–</span>` },
    { name: "Behind", class: "number", cell: (lease) => (late.has(lease.shard) ? html`<span class="tone-warn">${span(late.get(lease.shard))}</span>` : "0") },
  ];
  const label = `${data.shards.held} of ${data.shards.total} shards are held; the table of leases tells by whom`;
  return html`<h2 id="leases" class="section">Shards and leases</h2>
    <${ShardStrip} leases=${data.leases} places=${places} label=${label} />
    <div class="tools"><${Choice} name="node" label="Holder" of=${{ ...names, none: "nobody" }} /><span class="mute">
      ${rows.length} of ${data.leases.length}</span><span class="gap"></span><${CopyAs} cli="bellringer cluster leases" path="cluster/leases" /></div>
    ${rows.length ? html`<div class="tall"><${Table} caption="Leases by shard" columns=${columns} rows=${rows} id=${(lease) => String(lease.shard)} /></div>`
      : html`<${Empty} title="No lease fits"><p><${Link} to="cluster">See all of them<//></p><//>`}`;
}

function Lag({ lag }) {
  return html`<${Card} title="How far behind" aside=${lag.firing ? html`<span class="tone-warn">firing ${span(lag.firing)} late</span>`
    : html`<span class="mute">firing in time</span>`}>
    ${lag.pools.length ? html`<div class="table" role="group" aria-label="What waits in pools" tabindex="0"><table>
      <caption class="unseen">What waits in pools</caption>
      <thead><tr><th scope="col">Pool</th>${["Ready", "Sent", "Unread", "Running",
        "Oldest waits"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${lag.pools.map((one) => html`<tr key=${one.pool}><th scope="row"><${Link} to="workers" terms=${{ pool: one.pool }}>${one.pool}<//></th>
        <td class="number">${one.ready}</td><td class="number">${one.sent}</td><td class="number">${one.unread ?? "–"}</td><td class="number">
          ${one.running}</td><td class="number">${one.oldest ? span(one.oldest) : "–"}</td></tr>`)}</tbody></table></div>`
      : html`<p class="mute">Nothing waits in any pool.</p>`}<//>`;
}

function Rules({ data }) {
  const { schema, version, tz, skew } = data;
  return html`<${Card} title="What it runs by"><${Facts} of=${[
    version && ["Program", `${version.version}, API ${version.api}`],
    ["Schema", schema.current === schema.wanted ? `${schema.current}, as wanted`
      : html`<span class="tone-warn">${schema.current}, wanted ${schema.wanted}</span> <${Command} text="bellringer migrate" />`],
    ["This server's clock", `${span(Math.abs(skew))} ${skew >= 0 ? "ahead of" : "behind"} the database`],
    tz && ["Time zone rules", tz.version],
    tz && ["Applied by", Object.entries(tz.applied).map(([one, shards]) => `${one}: ${shards} of ${tz.shards} shards`).join(", ")
      || "no shard has needed them yet"],
  ]} /><//>`;
}

function Zones({ tz }) {
  if (!tz?.items.length) return null;
  const columns = [
    { name: "Rules", cell: (move) => move.version },
    { name: "Schedule", cell: (move) => move.description },
    { name: "Jobs", class: "number", cell: (move) => move.jobs.toLocaleString("en") },
    { name: "Next was", cell: (move) => html`<${When} at=${move.old_next} short=${false} />` },
    { name: "Next is", cell: (move) => html`<${When} at=${move.new_next} short=${false} />` },
    { name: "Moved", cell: (move) => html`<${When} at=${move.moved_at} />` },
  ];
  return html`<h2 class="section">What new rules of the time zones have moved</h2>
    <${Table} caption="Moves by new time zone rules" columns=${columns} rows=${tz.items}
    id=${(move) => `${move.version} ${move.description} ${move.moved_at}`} />`;
}
