// Moves of shards between nodes: the number of shards that each node held over time, and the latest moves as a list.
import { html } from "../lib/html.js";
import { formatClock, formatTime } from "../lib/time.js";
import { Card, CopyAs, Time } from "./elements.js";
import { Segments } from "./segmented_control.js";
import { Badge, holderLook } from "./shards.js";

export const HOURS = { 1: "1 h", 6: "6 h", 24: "24 h", 48: "48 h" };
export const USUAL_HOURS = "6";
export const MOVES_READ = 2000; // moves that one look reads; older ones of the same period are left out
const STEPS = 240; // columns of the time line
const TICKS = [0, 0.25, 0.5, 0.75, 1];
const TOGETHER_MS = 3000; // moves of the same kind within this time are one line of the list
const SHOWN = 12; // lines of the list
const FREE = "free"; // in place of a node id
const NEW = "new"; // the same before the first grant of a shard, when the installation did not exist yet
const ms = (instant) => Date.parse(instant);
const percent = (share) => `${share * 100}%`;

/** Indices of the present nodes, followed by those of nodes that are gone but appear in the moves. */
export function placesOf(nodes, moves) {
  const places = new Map(nodes.map((node, place) => [node.node_id, place]));
  for (const move of moves) for (const node of [move.holder, move.previous]) if (node && !places.has(node)) places.set(node, places.size);
  return places;
}

/** The columns of the time line, oldest first: {from, to, counts: Map of node id → shards}. Walks back from the present holders. */
export function columnsOf({ since, until, items }, leases) {
  const [start, end] = [ms(since), ms(until)];
  const counts = new Map();
  const add = (holder, by) => counts.set(holder, (counts.get(holder) ?? 0) + by);
  for (const lease of leases) add(lease.holder ?? FREE, 1);
  const columns = [];
  let next = 0;
  for (let step = STEPS - 1; step >= 0; step -= 1) {
    const from = start + ((end - start) * step) / STEPS;
    const shown = new Map([...counts].filter(([, count]) => count > 0));
    const same = columns[0] && columns[0].counts.size === shown.size && [...shown].every(([node, count]) => columns[0].counts.get(node) === count);
    if (same) columns[0].from = step / STEPS;
    else columns.unshift({ from: step / STEPS, to: (columns[0]?.from ?? 1), counts: shown });
    for (; next < items.length && ms(items[next].at) >= from; next += 1) {
      const { holder, previous, token } = items[next];
      add(holder ?? FREE, -1);
      add(previous ?? (token === 1 ? NEW : FREE), 1);
    }
  }
  return columns;
}

/** Moves of the same kind at the same time as one: [{at, cause, from, to, shards}], latest first. */
export function groupMoves(items) {
  const groups = [];
  for (const move of items) {
    const last = groups.find((one) => one.move.cause === move.cause && one.move.holder === move.holder && one.move.previous === move.previous
      && ms(one.move.at) - ms(move.at) < TOGETHER_MS);
    if (last) last.shards.push(move.shard);
    else groups.push({ move, shards: [move.shard] });
  }
  return groups;
}

export function ShardMoves({ moves, leases, places, hours }) {
  const name = new Map(moves.items.flatMap((move) => [[move.holder, move.node], [move.previous, move.previous_node]]));
  for (const lease of leases) if (lease.holder) name.set(lease.holder, lease.node);
  const groups = groupMoves(moves.items);
  const aside = html`<${Segments} name="hours" label="Period" of=${HOURS} usual=${USUAL_HOURS} />`;
  return html`<${Card} title="Shard moves" aside=${html`<span class="card-tools">${aside}<${CopyAs} cli=${`bellringer cluster moves --hours ${hours}`} path=${`cluster/moves?hours=${hours}`} /></span>`} wide=${true}>
    <${TimeLine} moves=${moves} leases=${leases} places=${places} name=${name} groups=${groups} />
    ${groups.length === 0 ? html`<p class="mute">No shard changed hands in the last ${hours === "1" ? "hour" : `${hours} hours`}.</p>`
      : html`<ul class="moves">${groups.slice(0, SHOWN).map((group) => html`<${Move} key=${`${group.move.at} ${group.move.shard}`} of=${group} places=${places} name=${name} />`)}</ul>
        ${groups.length > SHOWN && html`<p class="mute">and ${(groups.length - SHOWN).toLocaleString("en")} earlier ${groups.length - SHOWN === 1 ? "change" : "changes"}</p>`}`}<//>`;
}

function TimeLine({ moves, leases, places, name, groups }) {
  const [start, end] = [ms(moves.since), ms(moves.until)];
  const order = (node) => ({ [FREE]: -1, [NEW]: -2 })[node] ?? places.get(node) ?? 0;
  const look = (node) => (node === FREE || node === NEW ? node : holderLook(order(node)));
  const said = (node) => ({ [FREE]: "no holder", [NEW]: "not granted yet" })[node] ?? name.get(node) ?? "a node that is gone";
  const label = `Shards by holder over time; ${groups.length || "no"} ${groups.length === 1 ? "change" : "changes"}, listed below`;
  const clock = end - start > 86_400_000 ? (at) => formatTime(at).slice(5, 16) : (at) => formatClock(at).slice(0, 5);
  return html`<div class="moves-chart"><div class="moves-area" role="img" aria-label=${label}>
      ${columnsOf(moves, leases).map(({ from, to, counts }) => html`<div key=${from} class="moves-column" style=${{ left: percent(from), width: percent(to - from) }}>
        ${[...counts].toSorted(([a], [b]) => order(a) - order(b)).map(([node, count]) => html`<span key=${node} class=${look(node)}
          style=${{ height: percent(count / leases.length) }} title=${`${said(node)}: ${count} of ${leases.length}, from ${formatTime(new Date(start + from * (end - start)))}`}></span>`)}</div>`)}
    </div><div class="moves-axis" aria-hidden="true">${TICKS.map((share) => html`<span style=${{ left: percent(share) }}>${share === 1 ? "now" : clock(new Date(start + share * (end - start)))}</span>`)}</div></div>`;
}

/** Formats shard numbers as ranges: 0–15, 20. */
export function rangesOf(shards) {
  const parts = [];
  for (const shard of shards.toSorted((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === shard - 1) last[1] = shard;
    else parts.push([shard, shard]);
  }
  const texts = parts.map(([first, last]) => (first === last ? String(first) : `${first}–${last}`));
  return texts.length > 6 ? `${texts.slice(0, 5).join(", ")}…` : texts.join(", ");
}

/** One sentence for moves of the same kind: who took, lost or released how many shards, and from whom. */
function Move({ of: { move, shards }, places, name }) {
  const node = (id) => html`<${Badge} place=${places.get(id) ?? 0} /> <strong>${name.get(id) ?? "a node that is gone"}</strong>`;
  const ranges = shards.length > 1 && html` <span class="mute">(${rangesOf(shards)})</span>`;
  const what = (word = "") => html`${shards.length === 1 ? `${word ? `${word} ` : ""}shard ${shards[0]}` : `${shards.length} ${word ? `${word} ` : ""}shards`}${ranges}`;
  const { cause, holder, previous } = move;
  const lapsed = html`<span class="tone-warn">lease expired</span>`;
  const text = cause === "expired" && holder !== previous ? (holder ? html`${node(holder)} took ${what()} from ${node(previous)}: ${lapsed}` : html`${node(previous)} lost ${what()}: ${lapsed}`)
    : !holder ? html`${node(previous)} released ${what()}`
    : holder === previous ? html`${node(holder)} took ${what()} again`
    : previous ? html`${node(holder)} took ${what()} from ${node(previous)}${cause === "replaced" ? html` <span class="mute">assigned by the lease service</span>` : ""}`
    : html`${node(holder)} took ${what("free")}`;
  return html`<li><span class="when"><${Time} at=${move.at} /></span><span>${text}</span></li>`;
}
