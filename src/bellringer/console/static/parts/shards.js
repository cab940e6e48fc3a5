// All shards as one strip, sorted by holder, with the share of each holder below. The table of leases shows the same data.
import { html } from "../lib/html.js";
import { formatDuration } from "../lib/time.js";

const LOOKS = 6; // colors; from the seventh node on they repeat, hatched

export const letter = (place) => (place < 26 ? String.fromCharCode(65 + place)
  : `${String.fromCharCode(64 + Math.floor(place / 26))}${String.fromCharCode(65 + (place % 26))}`);
export const holderLook = (place) => `holder-${place % LOOKS} ${Math.floor(place / LOOKS) % 2 ? "hatched" : ""}`;

export function Badge({ place }) {
  return html`<span class="shard ${holderLook(place)}" aria-hidden="true">${letter(place)}</span>`;
}

/** How long a node has held its shards: one duration, or the shortest and the longest. */
export function heldFor(leases) {
  const known = leases.map((lease) => lease.held_seconds).filter((seconds) => seconds !== null);
  if (!known.length) return "–";
  const [least, most] = [Math.min(...known), Math.max(...known)].map((seconds) => formatDuration(Math.max(Math.round(seconds), 1)));
  return least === most ? least : `${least} – ${most}`;
}

/** leases by shard; places: node_id → index of the node. */
export function ShardStrip({ leases, places, label }) {
  const placeOf = (lease) => (lease.holder ? places.get(lease.holder) ?? 0 : -1);
  const groups = new Map();
  for (const lease of leases.toSorted((a, b) => placeOf(a) - placeOf(b) || a.shard - b.shard)) {
    groups.set(lease.holder, [...(groups.get(lease.holder) ?? []), lease]);
  }
  return html`<div class="shards" role="img" aria-label=${label}>
      ${[...groups].map(([holder, held]) => html`<span key=${holder} class="shard-group" style=${{ flexGrow: held.length }}>${held.map((lease) => (holder
        ? html`<span key=${lease.shard} class="shard ${holderLook(placeOf(lease))}"
          title=${`Shard ${lease.shard} · ${lease.node} · held for ${heldFor([lease])} · token ${lease.token}`}>${lease.shard}</span>`
        : html`<span key=${lease.shard} class="shard free" title=${`Shard ${lease.shard} · no holder`}>${lease.shard}</span>`))}</span>`)}
    </div>
    <ul class="holders">${[...groups].map(([holder, held]) => html`<li key=${holder}>${holder
      ? html`<${Badge} place=${placeOf(held[0])} /> <strong>${held[0].node}</strong> <span class="mute">${held.length} of ${leases.length}, held for ${heldFor(held)}</span>`
      : html`<span class="shard free" aria-hidden="true">✕</span> <strong class="tone-bad">No holder</strong> <span class="mute">${held.length} of ${leases.length}</span>`}</li>`)}</ul>`;
}
