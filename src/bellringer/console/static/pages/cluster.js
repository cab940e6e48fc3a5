// Cluster: shard holders and their moves, clock skew, lag, and the health of the database.
import { html } from "../lib/html.js";
import { caller, get } from "../lib/api.js";
import { fetchPages } from "../lib/pages.js";
import { usePolling } from "../lib/polling.js";
import { useData } from "../lib/page_data.js";
import { query } from "../lib/router.js";
import { formatAge, formatDuration, now } from "../lib/time.js";
import { Card, CopyAs, Empty, DescriptionList, Link, Loading, Time } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { Choice } from "../parts/filters.js";
import { DatabaseHealth, databaseProblems } from "../parts/database_health.js";
import { segment } from "../parts/segmented_control.js";
import { HOURS, MOVES_READ, ShardMoves, USUAL_HOURS, placesOf } from "../parts/shard_moves.js";
import { Badge, ShardStrip, heldFor, letter } from "../parts/shards.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { Verdict, worst } from "../parts/health_summary.js";

const POLL_SECONDS = 3; // lease renewals are not announced by the live stream
const DATABASE_POLL_SECONDS = 15; // measuring the size of a large database takes a while
const LOST_AFTER_SECONDS = 10; // seconds without a heartbeat after which a node has lost its leases
const RECENT_LOSS_MS = 60_000; // milliseconds for which an expired lease is a warning, even if another node has taken over
const MAX_SKEW_SECONDS = 1; // seconds of clock skew that are worth a warning
const LATE_AFTER_SECONDS = 5; // seconds that a shard may be late

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
/** Formats a duration with its sign. */
const signed = (seconds) => `${Math.abs(seconds) < 0.0005 ? "" : seconds < 0 ? "−" : "+"}${formatDuration(Math.abs(seconds))}`;

function readCluster(hours, stop) {
  const none = (error) => (error.name === "AbortError" ? Promise.reject(error) : null); // show the rest without it
  return Promise.all([get("cluster", {}, stop), fetchPages("cluster/moves", { hours }, MOVES_READ, stop).catch(none),
    get("cluster/tz-moves", { limit: 20 }, stop).catch(none), get("version", {}, stop).catch(none)])
    .then(([cluster, moves, tz, version]) => ({ ...cluster, moves, tz, version }));
}

export default function Cluster() {
  const hours = segment("hours", HOURS, USUAL_HOURS);
  const isInstallation = Boolean(caller.value?.everywhere); // the database serves all tenants
  const found = useData((stop) => readCluster(hours, stop), [hours]);
  const database = useData(async (stop) => (isInstallation ? get("cluster/database", {}, stop) : null), [isInstallation], { once: true });
  usePolling(found, POLL_SECONDS);
  usePolling(database, DATABASE_POLL_SECONDS);
  return html`<header class="head"><h1>Cluster</h1><span class="gap"></span><${CopyAs} cli="bellringer cluster status" path="cluster" /></header>
    <${Loading} of=${found} shape="page">${(data) => {
      const places = placesOf(data.nodes, data.moves?.items ?? []);
      return html`<${Summary} data=${data} health=${database.data} /><${Nodes} nodes=${data.nodes} places=${places} leases=${data.leases} lost=${lostNodes(data)} />
        <${Shards} data=${data} places=${places} />
        ${data.moves && html`<${ShardMoves} moves=${data.moves} leases=${data.leases} places=${places} hours=${hours} />`}
        <div class="cards two">${database.data && html`<${DatabaseHealth} health=${database.data} />`}<${Versions} data=${data} /><${Lag} lag=${data.lag} /></div>
        <${Leases} data=${data} places=${places} at=${found.at} /><${ZoneMoves} tz=${data.tz} />`;
    }}<//>`;
}

const alive = (node) => node.age < LOST_AFTER_SECONDS;
const stateOf = (node, isLost) => (!alive(node) ? "gone" : isLost ? "lost" : node.waits_for ? "waiting" : "live");

/** Nodes whose leases expired after their last heartbeat: they are listed for a while, but hold nothing. Node id → expired moves. */
function lostNodes({ nodes, moves }) {
  const seen = new Map(nodes.map((node) => [node.node_id, Date.parse(node.seen_at)]));
  return Map.groupBy((moves?.items ?? []).filter((move) => move.cause === "expired" && Date.parse(move.at) > (seen.get(move.previous) ?? Infinity)), (move) => move.previous);
}

/** Leases that expired within the last minute, as one text for each node that had them. */
function recentLosses({ moves }) {
  const recent = (moves?.items ?? []).filter((move) => move.cause === "expired" && Date.parse(moves.until) - Date.parse(move.at) < RECENT_LOSS_MS);
  return [...Map.groupBy(recent, (move) => move.previous)].map(([, lost]) => `the leases of ${lost[0].previous_node ?? "a node"} on ${plural(lost.length, "shard")} expired ${formatDuration(
    Math.max((Date.parse(moves.until) - Date.parse(lost[0].at)) / 1000, 1))} ago`);
}

/** The problems, each with its tone. */
function problems(data, health) {
  const { nodes, shards, lag, schema, tz } = data;
  const late = lag.firing > LATE_AFTER_SECONDS && `scheduled runs are up to ${formatDuration(lag.firing)} late`;
  const waits = nodes.filter((node) => alive(node) && node.waits_for).map((node) => `${node.name} waits for ${node.waits_for}`);
  const versions = tz && Object.keys(tz.applied).some((version) => version !== tz.version) && "some shards use another version of the time zone rules";
  return [
    ...(nodes.some(alive) ? [] : [["bad", "no scheduler is running, so no schedule starts runs"]]),
    ...(shards.free ? [["bad", `${plural(shards.free, "shard")} without a holder: their schedules start no runs`]] : []),
    ...(late ? [["bad", late]] : []),
    ...(skewOf(data) >= MAX_SKEW_SECONDS ? [["warn", "clocks differ"]] : []),
    ...recentLosses(data).map((text) => ["warn", text]),
    ...waits.map((text) => ["warn", text]),
    ...databaseProblems(health),
    ...(schema.current === schema.wanted ? [] : [["warn", `the schema is version ${schema.current}, but this server needs ${schema.wanted}`]]),
    ...(versions ? [["warn", versions]] : []),
  ];
}

const skewOf = (data) => Math.max(Math.abs(data.skew), ...data.nodes.filter(alive).map((node) => Math.abs(node.skew)));

function Summary({ data, health }) {
  const { held, total } = data.shards;
  const expired = data.leases.filter((lease) => !lease.holder && lease.token > 0).length;
  const found = problems(data, health);
  return html`<${Verdict} tone=${worst(found.map(([tone]) => tone))}><a href="#leases" onClick=${toLeases}>
    ${held}/${total} shards</a> held, ${expired} expired, skew ${formatDuration(skewOf(data))}${found.map(([, text]) => `; ${text}`).join("")}.<//>
    ${!data.nodes.some(alive) && html`<p>Start a scheduler: <${Command} text="bellringer scheduler" /></p>`}`;
}

function toLeases(event) {
  event.preventDefault();
  const leases = document.getElementById("leases");
  if (!leases) return;
  leases.open = true;
  leases.scrollIntoView();
}

const tokens = (leases) => {
  const all = leases.map((lease) => lease.token);
  if (!all.length) return "–";
  const [least, most] = [Math.min(...all), Math.max(...all)];
  return least === most ? String(least) : `${least}–${most}`;
};

const PHONE_NUMBERS = { Shards: "shards", "Held for": "held for", Skew: "clock", Heartbeat: "heartbeat" }; // the others are left out on phones

function Nodes({ nodes, places, leases, lost }) {
  const held = (node) => leases.filter((lease) => lease.holder === node.node_id);
  const number = (name, cell, title) => ({ name, class: "number", cell, title, phone: PHONE_NUMBERS[name] ? "line" : "hide", short: PHONE_NUMBERS[name] });
  const columns = [
    { name: "State", phone: "side", cell: (node) => html`<${State} of=${stateOf(node, lost.has(node.node_id))} />
      ${node.waits_for && alive(node) ? html` <span class="mute">for ${node.waits_for}</span>` : ""}` },
    { name: "Node", phone: "title", cell: (node) => html`<span><${Badge} place=${places.get(node.node_id)} /> <strong>${node.name}</strong> <span class="mute">
      ${node.host === null ? "" : `${node.host} pid ${node.pid}`}</span></span>` },
    { name: "Version", phone: "line", cell: (node) => node.version },
    { name: "Region", phone: "hide", cell: (node) => node.region ?? html`<span class="mute">–</span>` },
    number("Shards", (node) => html`<${Link} to="cluster" terms=${{ node: node.node_id }}>${held(node).length}<//>`),
    number("Held for", (node) => heldFor(held(node)), "how long the node has had its shards: the latest and the first that it got"),
    number("Tokens", (node) => tokens(held(node)), "fencing tokens; each grows with every new holder"),
    number("Runs created", (node) => node.fired.toLocaleString("en"), "occurrences that the node turned into runs"),
    number("Rejected writes", (node) => node.refused.toLocaleString("en"), "writes rejected because the node had lost the lease"),
    number("Skew", (node) => signed(node.skew), "clock of the node minus clock of the database"),
    number("Heartbeat", (node) => (node.age < 1 ? "now" : `${formatAge(node.age)} ago`)),
    { name: "Started", phone: "hide", cell: (node) => html`<${Time} at=${node.started_at} />` },
  ];
  return html`<h2 class="section">Nodes</h2>${nodes.length
    ? html`<${Table} caption="Scheduler nodes" columns=${columns} rows=${nodes} id=${(node) => node.node_id} />`
    : html`<${Empty} title="No nodes"><p>Every server includes a scheduler. To start one without an API: <${Command} text="bellringer scheduler" /></p><//>`}`;
}

function Shards({ data, places }) {
  const label = `${data.shards.held} of ${data.shards.total} shards are held; the table of leases lists the holders`;
  return html`<h2 id="shards" class="section">Shards</h2><${ShardStrip} leases=${data.leases} places=${places} label=${label} />`;
}

function Leases({ data, places, at }) {
  const only = query.value.get("node");
  const names = Object.fromEntries(data.nodes.map((node) => [node.node_id, `${letter(places.get(node.node_id))} · ${node.name}`]));
  const rows = data.leases.filter((lease) => !only || (only === "none" ? !lease.holder : lease.holder === only));
  const late = new Map(data.lag.shards.map((one) => [one.shard, one.late]));
  const left = (lease) => Math.max(lease.seconds_left - Math.max(now.value - at, 0) / 1000, 0);
  const columns = [
    { name: "Shard", class: "number", phone: "title", cell: (lease) => lease.shard },
    { name: "State", phone: "side", cell: (lease) => html`<${State} of=${lease.holder ? "held" : lease.token ? "expired" : "free"} />` },
    { name: "Holder", phone: "line", cell: (lease) => (lease.holder ? html`<span><${Badge} place=${places.get(lease.holder) ?? 0} /> ${lease.node ?? lease.holder}</span>`
      : html`<span class="tone-bad">none: its schedules start no runs</span>`) },
    { name: "Held for", class: "number", phone: "line", short: "for", title: "since this node got the lease", cell: (lease) => heldFor([lease]) },
    { name: "Time left", class: "number", phone: "line", short: "· left", title: "until the lease expires, unless it is renewed", cell: (lease) => (lease.holder ? `${left(lease).toFixed(1)}s` : "–") },
    { name: "Token", class: "number", phone: "hide", title: "fencing token; grows with every new holder", cell: (lease) => lease.token },
    { name: "Region", phone: "hide", cell: (lease) => lease.region ?? html`<span class="mute">–</span>` },
    { name: "Late by", class: "number", phone: "hide", cell: (lease) => (late.has(lease.shard) ? html`<span class="tone-warn">${formatDuration(late.get(lease.shard))}</span>` : "0") },
  ];
  return html`<details class="leases" id="leases" open=${Boolean(only) || data.shards.free > 0}><summary><h2>Leases</h2> <span class="mute">${data.leases.length}, one per shard</span></summary>
    <div class="tools"><${Choice} name="node" label="Holder" of=${{ ...names, none: "none" }} /><span class="mute">
      ${rows.length} of ${data.leases.length}</span><span class="gap"></span><${CopyAs} cli="bellringer cluster leases" path="cluster/leases" /></div>
    ${rows.length ? html`<div class="tall"><${Table} caption="Leases by shard" columns=${columns} rows=${rows} id=${(lease) => String(lease.shard)} /></div>`
      : html`<${Empty} title="No matching leases"><p><${Link} to="cluster">Show all leases<//></p><//>`}</details>`;
}

function Lag({ lag }) {
  return html`<${Card} title="Lag" wide=${true} aside=${lag.firing ? html`<span class="tone-warn">${formatDuration(lag.firing)} late</span>`
    : html`<span class="mute">on time</span>`}>
    ${lag.pools.length ? html`<p class="mute">Waiting: for a worker. Sent: on the way to one. Unread: still in the broker.</p>
      <div class="table" role="group" aria-label="Backlog by pool" tabindex="0"><table>
      <caption class="unseen">Backlog by pool</caption>
      <thead><tr><th scope="col">Pool</th>${["Waiting", "Sent", "Unread", "Running",
        "Longest wait"].map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${lag.pools.map((one) => html`<tr key=${one.pool}><th scope="row"><${Link} to="workers" terms=${{ pool: one.pool }}>${one.pool}<//></th>
        <td class="number">${one.ready}</td><td class="number">${one.sent}</td><td class="number">${one.unread ?? "–"}</td><td class="number">
          ${one.running}</td><td class="number">${one.oldest ? formatDuration(one.oldest) : "–"}</td></tr>`)}</tbody></table></div>`
      : html`<p class="mute">No pool has a backlog.</p>`}<//>`;
}

function Versions({ data }) {
  const { schema, version, tz, skew, connections, silent_claims: silent } = data;
  return html`<${Card} title="This server"><${DescriptionList} of=${[
    version && ["Version", `${version.version}, API ${version.api}`],
    ["Schema", schema.current === schema.wanted ? `${schema.current}, up to date`
      : html`<span class="tone-warn">${schema.current}, needs ${schema.wanted}</span> <${Command} text="bellringer migrate" />`],
    ["Clock", `${formatDuration(Math.abs(skew))} ${skew >= 0 ? "ahead of" : "behind"} the database`],
    ["Database connections", `${connections.open} open (${connections.idle} idle), limit ${connections.max} for this server`],
    ["Runs claimed but not executed", silent ? html`<span class="tone-bad">${silent.toLocaleString("en")}</span>` : "none"],
    tz && ["Time zone rules", tz.version],
    tz && ["Shards on these rules", Object.entries(tz.applied).map(([one, shards]) => `${one === tz.version ? "" : `${one}: `}${shards} of ${tz.shards}`).join(", ")
      || "none yet"],
  ]} /><//>`;
}

function ZoneMoves({ tz }) {
  if (!tz?.items.length) return null;
  const columns = [
    { name: "Rules", cell: (move) => move.version },
    { name: "Schedule", cell: (move) => move.description },
    { name: "Jobs", class: "number", cell: (move) => move.jobs.toLocaleString("en") },
    { name: "Next run before", cell: (move) => html`<${Time} at=${move.old_next} short=${false} />` },
    { name: "Next run now", cell: (move) => html`<${Time} at=${move.new_next} short=${false} />` },
    { name: "Moved", cell: (move) => html`<${Time} at=${move.moved_at} />` },
  ];
  return html`<h2 class="section">Runs moved by new time zone rules</h2>
    <${Table} caption="Runs moved by new time zone rules" columns=${columns} rows=${tz.items}
    id=${(move) => `${move.version} ${move.description} ${move.moved_at}`} />`;
}
