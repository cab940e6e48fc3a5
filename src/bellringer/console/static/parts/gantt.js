// Gantt chart of a workflow run, one row per node: waiting time is hatched, running time is solid.
import { html } from "../lib/html.js";
import { formatClock, formatTime, now, formatDuration } from "../lib/time.js";
import { END_STATES, NodeDuration, mapProgress, nodeLook, describeNode } from "./node_text.js";

const TICKS = [0, 0.25, 0.5, 0.75, 1];
const percent = (share) => `${Math.min(Math.max(share, 0), 1) * 100}%`;
const ms = (instant) => Date.parse(instant);

/** Waiting and running times of each node; for a map, from its first element to its last. */
function nodeTimes(graph, moment) {
  const known = new Map(graph.nodes.map((node) => [node.name, node]));
  return graph.nodes.map((node) => {
    const ready = Math.max(ms(graph.started_at), ...node.parents.map((name) => ms(known.get(name)?.finished_at)).filter((at) => !Number.isNaN(at)));
    const isTied = !node.undoes; // undo nodes wait for the end of the run, not for parents
    const isOpen = !END_STATES.includes(node.state);
    const isReady = node.parents.every((name) => END_STATES.includes(known.get(name)?.state));
    const start = node.started_at ? ms(node.started_at) : null;
    const end = node.finished_at ? ms(node.finished_at) : moment;
    const waited = start ?? (isOpen && isReady && node.state !== "blocked" ? moment : null);
    return { node, ready, start, end, waited: isTied && waited !== null && waited > ready ? waited : null };
  });
}

export function Gantt({ graph, chosen, choose }) {
  const moment = graph.finished_at ? ms(graph.finished_at) : now.value;
  const from = ms(graph.started_at ?? graph.nodes.find((node) => node.started_at)?.started_at);
  if (Number.isNaN(from)) return html`<p class="mute">No node has started yet.</p>`;
  const rows = nodeTimes({ ...graph, started_at: new Date(from).toISOString() }, moment);
  const to = Math.max(moment, from + 1, ...rows.map((row) => (row.start === null ? 0 : row.end)));
  const scale = { at: (time) => ((time - from) / (to - from)) * 0.99, now: graph.finished_at ? null : moment };
  return html`<div class="timeline gantt">
    <div class="axis" aria-hidden="true"><span></span><div class="scale">${TICKS.map((share) => html`<span class="tick" style=${{ left: percent(share) }}
      title=${formatTime(new Date(from + share * (to - from)))}>${share ? `+${formatDuration((share * (to - from)) / 1000)}` : formatClock(new Date(from))}</span>`)}</div></div>
    <ul>${rows.map((row) => html`<${Row} key=${row.node.name} row=${row} scale=${scale} chosen=${row.node.name === chosen} choose=${choose} />`)}</ul>
    <p class="legend mute" aria-hidden="true"><span class="key wait tone-calm"></span> waited <span class="key run tone-good"></span> succeeded
      <span class="key run tone-bad"></span> failed <span class="key run tone-busy"></span> running <strong>★</strong> on the critical path</p>
  </div>`;
}

/** Position of a bar's label: right of it, left of it, or on it. */
function labelPosition(start, end) {
  if (end <= 0.7) return { left: percent(end) };
  return start >= 0.25 ? { right: percent(1 - start) } : { left: percent(start) };
}

function Row({ row: { node, ready, start, end, waited }, scale, chosen, choose }) {
  const [icon, tone] = nodeLook(node.state);
  const { at } = scale;
  return html`<li class=${[chosen && "chosen", node.critical && "strong"].filter(Boolean).join(" ")}>
    <button type="button" class="quiet lane-name" aria-pressed=${chosen} title=${describeNode(node)} onClick=${() => choose(node.name)}>
      <span class="tone-${tone}"><span aria-hidden="true">${icon}</span><span class="unseen">${node.state}: </span></span>
      <span class="what">${node.name}</span>${node.critical && html`<span aria-hidden="true">★</span><span class="unseen"> on the critical path</span>`}</button>
    <div class="lane">
      ${waited !== null && html`<span class="wait tone-calm" style=${{ left: percent(at(ready)), width: percent(at(waited) - at(ready)) }}></span>`}
      ${start !== null && html`<span class="run tone-${tone}" style=${{ left: percent(at(start)), width: percent(at(end) - at(start)) }}></span>
        <span class="at-bar" style=${labelPosition(at(waited === null ? start : ready), at(end))}>
          ${node.map ? `×${node.map.size.toLocaleString("en")}: ${mapProgress(node.map)} · ` : ""}<${NodeDuration} node=${node} /></span>`}
      ${scale.now !== null && html`<span class="now" style=${{ left: percent(at(scale.now)) }}></span>`}
    </div></li>`;
}
