// All shards as a strip, with the letter and color of their holder. The table of leases shows the same data.
import { html } from "../lib/html.js";

const LOOKS = 6; // colors; from the seventh node on they repeat, hatched

export const letter = (place) => (place < 26 ? String.fromCharCode(65 + place)
  : `${String.fromCharCode(64 + Math.floor(place / 26))}${String.fromCharCode(65 + (place % 26))}`);
export const holderLook = (place) => `holder-${place % LOOKS} ${Math.floor(place / LOOKS) % 2 ? "hatched" : ""}`;

export function Badge({ place }) {
  return html`<span class="shard ${holderLook(place)}" aria-hidden="true">${letter(place)}</span>`;
}

/** leases by shard; places: node_id → index of the node. */
export function ShardStrip({ leases, places, label }) {
  return html`<div class="shards" role="img" aria-label=${label}>
    ${leases.map((lease) => (lease.holder
      ? html`<span key=${lease.shard} class="shard ${holderLook(places.get(lease.holder) ?? 0)}"
        title=${`shard ${lease.shard} · ${lease.node} · token ${lease.token}`}>${letter(places.get(lease.holder) ?? 0)}</span>`
      : html`<span key=${lease.shard} class="shard free" title=${`shard ${lease.shard} · no holder`}>✕</span>`))}
  </div>`;
}
