// A utilization bar with its two numbers.
import { html } from "../lib/html.js";
import { Link } from "./elements.js";

/** `waits`: work is waiting, so a full gauge is shown as a warning. runs: the filters of the runs that the value counts, to which the reading links. */
export function Gauge({ value, most, label, waits = false, runs }) {
  const share = most > 0 ? Math.min(value / most, 1) : 0;
  const tone = most === 0 && waits ? "bad" : share >= 1 && waits ? "warn" : "busy";
  const reading = `${value.toLocaleString("en")}/${most.toLocaleString("en")}`;
  return html`<span class="gauge tone-${tone}">
    <span class="track" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${Math.max(most, value, 1)} aria-valuenow=${value}
      aria-valuetext=${`${value} of ${most}`}>
      <span class="fill" style=${{ width: `${share * 100}%` }}></span></span>
    <span class="reading">${runs && value > 0 ? html`<${Link} to="runs" terms=${runs} title="Show the running runs">${reading}<//>` : reading}</span></span>`;
}
