// Timeline of a workflow run, one row per node: waiting time is hatched, running time is solid. A map expands to its elements.
import { html, useState } from "../lib/html.js";
import { part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { formatClock, formatTime, now, formatDuration } from "../lib/time.js";
import { ErrorMessage } from "./elements.js";
import { END_STATES, NodeDuration, mapProgress, nodeLook, describeNode, reasonOf } from "./node_text.js";

const TICKS = [0, 0.25, 0.5, 0.75, 1];
const ELEMENTS = 50; // elements of a map that are loaded at once
const LEGEND = [["wait tone-calm", "waited"], ["run tone-good", "succeeded"], ["run tone-bad", "failed"], ["run tone-busy", "running"]];
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
  const [opened, setOpened] = useState(() => new Set());
  const moment = graph.finished_at ? ms(graph.finished_at) : now.value;
  const from = ms(graph.started_at ?? graph.nodes.find((node) => node.started_at)?.started_at);
  if (Number.isNaN(from)) return html`<p class="mute">No node has started yet.</p>`;
  const rows = nodeTimes({ ...graph, started_at: new Date(from).toISOString() }, moment);
  const to = Math.max(moment, from + 1, ...rows.map((row) => (row.start === null ? 0 : row.end)));
  const scale = { at: (time) => ((time - from) / (to - from)) * 0.99, now: graph.finished_at ? null : moment, moment };
  const isMapped = graph.nodes.some((node) => node.map);
  function toggle(name) {
    const next = new Set(opened);
    if (!next.delete(name)) next.add(name);
    setOpened(next);
  }
  return html`<div class="timeline gantt ${isMapped ? "mapped" : ""}">
    <div class="axis" aria-hidden="true"><span></span><div class="scale">${TICKS.map((share) => html`<span class="tick" style=${{ left: percent(share) }}
      title=${formatTime(new Date(from + share * (to - from)))}>${share ? `+${formatDuration((share * (to - from)) / 1000)}` : formatClock(new Date(from))}</span>`)}</div></div>
    <ul>${rows.map((row) => {
      const { name, map } = row.node;
      const isOpen = opened.has(name);
      return html`<${Row} key=${name} row=${row} scale=${scale} chosen=${name === chosen} choose=${choose} open=${isOpen} toggle=${map ? () => toggle(name) : null} />
        ${map && isOpen && html`<${Elements} key=${`${name} elements`} graph=${graph} row=${row} scale=${scale} choose=${choose} />`}`;
    })}</ul>
    <p class="legend mute" aria-hidden="true">${LEGEND.map(([look, word]) => html`<span><span class="key ${look}"></span> ${word}</span>`)}
      ${graph.nodes.some((node) => node.critical) && html`<span><span class="key run critical tone-good"></span> on the critical path</span>`}</p>
  </div>`;
}

/** Position of a bar's label: right of it, left of it, or on it. */
function labelPosition(start, end) {
  if (end <= 0.7) return { left: percent(end) };
  return start >= 0.25 ? { right: percent(1 - start) } : { left: percent(start) };
}

function Lane({ row: { ready, start, end, waited }, tone, scale: { at, now: current }, children }) {
  return html`<div class="lane">
    ${waited !== null && html`<span class="wait tone-calm" style=${{ left: percent(at(ready)), width: percent(at(waited) - at(ready)) }}></span>`}
    ${start !== null && html`<span class="run tone-${tone}" style=${{ left: percent(at(start)), width: percent(at(end) - at(start)) }}></span>
      <span class="at-bar" style=${labelPosition(at(waited === null ? start : ready), at(end))}>${children}</span>`}
    ${current !== null && html`<span class="now" style=${{ left: percent(at(current)) }}></span>`}
  </div>`;
}

function Row({ row, scale, chosen, choose, open, toggle }) {
  const { node } = row;
  const [icon, tone] = nodeLook(node.state);
  const many = toggle && `${node.map.size.toLocaleString("en")} ${node.map.size === 1 ? "element" : "elements"} of ${node.name}`;
  return html`<li class=${[chosen && "chosen", node.critical && "strong"].filter(Boolean).join(" ")}><div class="lane-head">
      ${toggle && html`<button type="button" class="quiet icon" aria-expanded=${open} aria-label=${`${open ? "Hide" : "Show"} ${many}`} title=${`${open ? "Hide" : "Show"} the elements`}
        onClick=${toggle}><${Icon} name=${open ? "chevron-down" : "chevron-right"} /></button>`}
      <button type="button" class="quiet lane-name" aria-pressed=${chosen} title=${describeNode(node)} onClick=${() => choose(node.name)}>
        <span class="tone-${tone}"><${Icon} name=${icon} /><span class="unseen">${node.state}: </span></span>
        <span class="what">${node.name}</span>${node.critical && html`<span class="unseen"> on the critical path</span>`}</button></div>
    <${Lane} row=${row} tone=${tone} scale=${scale}>${node.map ? `×${node.map.size.toLocaleString("en")}: ${mapProgress(node.map)} · ` : ""}<${NodeDuration} node=${node} /><//></li>`;
}

/** The rows of a map's elements. They are loaded when the map is expanded, because the graph contains only counts. */
function Elements({ graph, row: { node, start: mapStart }, scale, choose }) {
  const [wanted, setWanted] = useState(ELEMENTS);
  const path = `runs/${part(graph.run_id)}/nodes`;
  const found = useData((stop) => fetchPages(path, { node: node.name }, wanted, stop), [node.name, wanted, JSON.stringify(node.map)], { once: true });
  if (found.error && !found.data) return html`<li class="element whole"><${ErrorMessage} error=${found.error} reload=${found.reload} /></li>`;
  if (!found.data) return html`<li class="element whole" aria-busy="true"><span class="mute">Loading…</span></li>`;
  const { items, next_cursor: cursor } = found.data;
  return html`${items.map((one) => {
      const start = one.started_at ? ms(one.started_at) : null;
      const end = one.finished_at ? ms(one.finished_at) : scale.moment;
      const waited = start !== null && mapStart !== null && start > mapStart ? start : null;
      const [icon, tone] = nodeLook(one.state);
      const about = [one.item, reasonOf(one)].filter(Boolean).join(" · ");
      return html`<li key=${one.name} class="element"><button type="button" class="quiet lane-name" title=${`${one.name}: ${one.state}${about && `, ${about}`}`} onClick=${() => choose(one.name)}>
          <span class="tone-${tone}"><${Icon} name=${icon} /><span class="unseen">${one.state}: </span></span>
          <span class="what">[${one.index}]${one.item !== null && html` <code class="mute">${one.item}</code>`}</span></button>
        <${Lane} row=${{ ready: mapStart, start, end, waited }} tone=${tone} scale=${scale}><${NodeDuration} node=${one} /><//></li>`;
    })}
    ${cursor && html`<li class="element whole"><button type="button" class="quiet" disabled=${found.busy} onClick=${() => setWanted(wanted + ELEMENTS)}>
      Show more elements of ${node.name}: ${(node.map.size - items.length).toLocaleString("en")} left</button></li>`}`;
}
