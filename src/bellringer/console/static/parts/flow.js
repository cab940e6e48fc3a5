// A workflow run from inside, as a graph, in time, or as a list; the view and the chosen node are in the address.
import { html, useEffect, useRef } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { useData } from "../lib/load.js";
import { narrow, query } from "../lib/place.js";
import { span } from "../lib/time.js";
import { CopyAs, Link, Loading, When } from "./basics.js";
import { Chips } from "./filters.js";
import { retryAll } from "./flow_actions.js";
import { Lasts, NodeState, KINDS, STATES, boxOf, counts, edgesOf, grouped, lookOf, reasonOf } from "./flow_words.js";
import { Gantt } from "./gantt.js";
import { Graph } from "./graph.js";
import { NodePanel } from "./node_panel.js";
import { useWhile } from "./operations.js";
import { isOver } from "./run_words.js";
import { Segments, segment } from "./segments.js";
import { Table } from "./table.js";

const VIEWS = { graph: "Graph", gantt: "Gantt", list: "List" };
const WAYS = { lr: "→ Across", tb: "↓ Down" };
const SOON = 900; // milliseconds: what was told by the pulse just now need not be asked for
const FAILED = ["dead", "cancelled"];

export function Flow({ run }) {
  const found = useData((stop) => get(`runs/${part(run.run_id)}/graph`, {}, stop), [run.run_id]);
  const at = useRef(0);
  at.current = found.at;
  useWhile(!isOver(found.data ?? run), () => Date.now() - at.current > SOON && found.again(), 1500);
  useEffect(() => void found.again(), [run.state]);
  return html`<${Loading} of=${found}>${(graph) => html`<${Inside} graph=${graph} isInner=${Boolean(run.workflow)} again=${found.again} />`}<//>`;
}

function Inside({ graph, isInner, again }) {
  const view = segment("view", VIEWS, "graph");
  const chosen = query.value.get("node") ?? "";
  const choose = (node) => narrow({ node, element: "" });
  useKeys({ Escape: ["close the node", () => narrow({ node: "", element: "" })] }, "Workflow run", [graph.run_id]);
  const Shown = { graph: Drawn, gantt: Gantt, list: List }[view];
  return html`<${Sums} graph=${graph} isInner=${isInner} />
    <div class="tools"><${Segments} name="view" label="how the nodes are shown" of=${VIEWS} usual="graph" clear=${["state"]} />
      ${view === "graph" && html`<${Segments} name="dir" label="which way the graph goes" of=${WAYS} usual="lr" /><${Following} />`}
      <span class="gap"></span>
      ${may("operator") && isOver(graph) && !graph.undoing && graph.nodes.some((node) => FAILED.includes(node.state)) && html`<button type="button" class="main"
        onClick=${() => retryAll(graph, again)}>Retry all failed</button>`}
      <${CopyAs} cli=${`bellringer workflows graph ${graph.run_id}`} path=${`runs/${part(graph.run_id)}/graph`} /></div>
    <div class="flow ${chosen ? "with-panel" : ""}"><div class="flow-main">
      <${Shown} graph=${graph} chosen=${chosen.replace(/\[\d+\]$/, "")} choose=${choose} /></div>
      ${chosen && html`<${NodePanel} graph=${graph} name=${chosen} again=${again} />`}</div>`;
}

const follows = () => query.value.get("follow") === "1";

function Following() {
  return html`<label><input type="checkbox" checked=${follows()} onChange=${(event) => narrow({ follow: event.target.checked ? "1" : "" })} />
    Follow what runs</label>`;
}

/** How many are where, and which way took the time. */
function Sums({ graph, isInner }) {
  const states = grouped(graph.nodes, (node) => node.state);
  const path = graph.critical_path;
  return html`<div class="flow-head"><ul class="sums" aria-label="nodes by state">
      <li><strong>${graph.nodes.length}</strong> ${graph.nodes.length === 1 ? "node" : "nodes"}</li>
      ${STATES.filter((state) => states.has(state)).map((state) => html`<li class="tone-${lookOf(state)[1]}">
        <span aria-hidden="true">${lookOf(state)[0]}</span> <strong>${states.get(state).length}</strong> ${state}</li>`)}
      ${!isInner && html`<li><${Link} class="tone-mute" to=${`jobs/${part(graph.job_id)}`} terms=${{ tab: "graph", version: graph.version }}>version
        ${" "}${graph.version}<//></li>`}</ul>
    ${path.nodes.length > 1 && html`<p class="mute path">★ Critical path, ${span(path.seconds)}: ${shortened(path.nodes).join(" → ")}</p>`}
    ${graph.stopped && html`<p class="tone-warn"><span aria-hidden="true">⊘</span> Stopped: ${graph.stopped}. No further node starts.</p>`}
    ${graph.undoing && html`<p class="tone-warn"><span aria-hidden="true">↺</span>${" "}
      ${isOver(graph) ? "What it had done was taken back: to try again, run the workflow anew." : "What it has done is being taken back."}</p>`}</div>`;
}

const shortened = (names) => (names.length > 12 ? [...names.slice(0, 6), `… ${names.length - 11} more …`, ...names.slice(-5)] : names);

function Drawn({ graph, chosen, choose }) {
  const running = graph.nodes.filter((node) => ["running", "retrying"].includes(node.state)).map((node) => node.name);
  return html`<${Graph} nodes=${graph.nodes.map(boxOf)} edges=${edgesOf(graph)} direction=${segment("dir", WAYS, "lr")} chosen=${chosen} choose=${choose}
      follow=${follows() ? running : null} label="the nodes as a graph: arrows go from one to the next, Enter opens it; List says the same in words" />
    <p class="legend mute" aria-hidden="true"><span>ƒ task</span><span>⎇ workflow</span><span>◴ wait</span><span>⚑ signal</span>
      <span>★ thick: critical path</span><span>dashed: undoes</span><span>drag to move, Ctrl and wheel to zoom, arrows to walk</span></p>`;
}

const COLUMNS = [
  { name: "Node", cell: (node) => html`<button type="button" class="quiet link name" onClick=${() => narrow({ node: node.name })}><span
    aria-hidden="true">${KINDS[node.kind]}</span> ${node.name}${node.critical && html` <span title="on the critical path">★<span class="unseen">
    on the critical path</span></span>`}</button>` },
  { name: "State", class: "tight", cell: (node) => html`<${NodeState} of=${node.state} />${node.map && html` <span class="mute">
    ×${node.map.size.toLocaleString("en")}: ${counts(node.map)}</span>`}` },
  { name: "Task", cell: (node) => html`<code class="clip task" title=${node.task}>${node.task ?? node.kind}</code>` },
  { name: "Attempt", class: "number", cell: (node) => node.attempt || "–" },
  { name: "Started", class: "tight", cell: (node) => html`<${When} at=${node.started_at} />` },
  { name: "Took", class: "tight number", cell: (node) => html`<${Lasts} node=${node} />` },
  { name: "Reason", cell: (node) => html`<span class="clip" title=${reasonOf(node)}>${reasonOf(node)}</span>` },
];

function List({ graph, choose }) {
  const held = grouped(graph.nodes, (node) => node.state);
  const asked = (query.value.get("state") ?? "").split(",").filter(Boolean);
  const rows = asked.length ? graph.nodes.filter((node) => asked.includes(node.state)) : graph.nodes;
  const sums = Object.fromEntries([...held].map(([state, nodes]) => [state, nodes.length]));
  return html`<${Chips} name="state" label="nodes by state" of=${STATES.filter((state) => sums[state] || asked.includes(state))} counts=${sums} />
    <${Table} caption="Nodes" columns=${COLUMNS} rows=${rows} id=${(node) => node.name} open=${(node) => choose(node.name)} />`;
}
