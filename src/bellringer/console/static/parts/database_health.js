// The health of the database server: what fills up, what is slow, and what is missing.
import { html } from "../lib/html.js";
import { formatDuration } from "../lib/time.js";
import { Card, CopyAs, DescriptionList } from "./elements.js";
import { Gauge } from "./gauge.js";

const SLOW_ROUND_TRIP_SECONDS = 0.05; // each step of a run makes several round trips
const MAX_CONNECTION_SHARE = 0.9;
const MIN_FREE_DISK_SHARE = 0.1;
const OLD_TRANSACTION_SECONDS = 600; // older ones keep vacuum from cleaning up the queue

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Formats a size: 512 B, 3.4 MB. */
export function formatBytes(bytes) {
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), UNITS.length - 1);
  const size = bytes / 1024 ** power;
  return `${power && size < 100 ? size.toFixed(1) : Math.round(size).toLocaleString("en")} ${UNITS[power]}`;
}

const oldest = (health) => health.long_transactions[0]?.seconds ?? 0;
const fullDisk = (health) => health.disk_bytes !== null && health.disk_free_bytes / health.disk_bytes < MIN_FREE_DISK_SHARE;
const manyConnections = (health) => health.connections.used / health.connections.max > MAX_CONNECTION_SHARE;

/** The problems of the database, each with its tone. */
export function databaseProblems(health) {
  if (!health) return [];
  const { connections, missing_partitions: missing, round_trip_seconds: trip } = health;
  return [
    ...(missing ? [["bad", `the database lacks ${missing} ${missing === 1 ? "partition" : "partitions"} of today and tomorrow`]] : []),
    ...(fullDisk(health) ? [["bad", `the disk of the database has only ${formatBytes(health.disk_free_bytes)} left`]] : []),
    ...(manyConnections(health) ? [["warn", `the database server has ${connections.used} of ${connections.max} connections in use`]] : []),
    ...(trip > SLOW_ROUND_TRIP_SECONDS ? [["warn", `a round trip to the database takes ${formatDuration(trip)}`]] : []),
    ...(oldest(health) > OLD_TRANSACTION_SECONDS ? [["warn", `a transaction has been open for ${formatDuration(oldest(health))}`]] : []),
  ];
}

function LongTransactions({ of }) {
  const hidden = of.hidden_sessions ? html` <span class="mute">${of.hidden_sessions} ${of.hidden_sessions === 1 ? "session is" : "sessions are"} hidden from the role of this server</span>` : "";
  if (!of.long_transactions.length) return html`none${hidden}`;
  return html`<ul class="plain">${of.long_transactions.map((one) => html`<li class=${one.seconds > OLD_TRANSACTION_SECONDS ? "tone-warn" : ""}>
    ${formatDuration(one.seconds)} <span class="mute">${one.application ?? "a client"}${one.pid === null ? "" : `, pid ${one.pid}`}${one.state ? `, ${one.state}` : ""}</span></li>`)}</ul>${hidden}`;
}

export function DatabaseHealth({ health }) {
  const { connections, disk_bytes: disk, disk_free_bytes: free, wal_bytes: wal, missing_partitions: missing, round_trip_seconds: trip } = health;
  const tone = (isBad, bad = "warn") => (isBad ? `tone-${bad}` : "");
  return html`<${Card} title="Database" aside=${html`<span class="card-tools"><span class="mute">PostgreSQL ${health.version}</span><${CopyAs} cli="bellringer cluster database" path="cluster/database" /></span>`}><${DescriptionList} of=${[
    ["Connections", html`<${Gauge} value=${connections.used} most=${connections.max} label="connections of the database server" waits=${manyConnections(health)} />`],
    ["Round trip", html`<span class=${tone(trip > SLOW_ROUND_TRIP_SECONDS)}>${trip < 0.0001 ? "<0.1ms" : trip < 0.01 ? `${(trip * 1000).toFixed(1)}ms` : formatDuration(trip)}</span>`],
    ["Database", formatBytes(health.database_bytes)],
    ["WAL", wal === null ? html`<span class="mute" title="The role of this server lacks pg_monitor.">not visible to this server</span>` : formatBytes(wal)],
    ["Disk", disk === null ? html`<span class="mute">on another machine</span>` : html`<span class=${tone(fullDisk(health), "bad")}>${formatBytes(free)} of ${formatBytes(disk)} free</span>`],
    ["Partitions", missing ? html`<span class="tone-bad">${missing} missing for today and tomorrow</span>` : "complete for today and tomorrow"],
    ["Transactions longer than 1 min", html`<${LongTransactions} of=${health} />`],
  ]} /><//>`;
}
