// The nodes of a workflow run as graph, Gantt chart or list. View and selected node are part of the URL.
import { html, useEffect, useRef } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { formatDuration } from "../lib/time.js";
import { CopyAs, Link, Loading, Time } from "./elements.js";
import { Chips } from "./filters.js";
import { retryAll } from "./node_actions.js";
import { Critical, NodeDuration, NodeState, KINDS, STATES, boxOf, mapProgress, edgesOf, groupBy, nodeLook, reasonOf } from "./node_text.js";
import { Gantt } from "./gantt.js";
import { Graph } from "./graph.js";
import { NodePanel } from "./node_panel.js";
import { usePollingWhile } from "./operations.js";
import { hasEnded } from "./run_text.js";
import { Segments, segment } from "./segmented_control.js";
import { Table } from "./table.js";

const VIEWS = { graph: "Graph", gantt: "Gantt", list: "List" };
const DIRECTIONS = { lr: "→ Across", tb: "↓ Down" };
const RECENT_MS = 900; // milliseconds: do not poll if a live update has just reloaded the data
const FAILED = ["dead", "cancelled"];

export function WorkflowRun({ run }) {
  const found = useData((stop) => get(`runs/${part(run.run_id)}/graph`, {}, stop), [run.run_id]);
  const at = useRef(0);
  at.current = found.at;
  usePollingWhile(!hasEnded(found.data ?? run), () => Date.now() - at.current > RECENT_MS && found.reload(), 1500);
  useEffect(() => void found.reload(), [run.state]);
  return html`<${Loading} of=${found}>${(graph) => html`<${Nodes} graph=${graph} isInner=${Boolean(run.workflow)} reload=${found.reload} />`}<//>`;
}

function Nodes({ graph, isInner, reload }) {
  const view = segment("view", VIEWS, "graph");
  const chosen = query.value.get("node") ?? "";
  const choose = (node) => setQuery({ node, element: "" });
  useShortcuts({ Escape: ["close the node", () => setQuery({ node: "", element: "" })] }, "Workflow run", [graph.run_id]);
  const Shown = { graph: GraphView, gantt: Gantt, list: ListView }[view];
  return html`<${NodeCounts} graph=${graph} isInner=${isInner} />
    <div class="tools"><${Segments} name="view" label="View" of=${VIEWS} usual="graph" clear=${["state"]} />
      ${view === "graph" && html`<${Segments} name="dir" label="Direction" of=${DIRECTIONS} usual="lr" /><${FollowCheckbox} />`}
      <span class="gap"></span>
      ${may("operator") && hasEnded(graph) && !graph.undoing && graph.nodes.some((node) => FAILED.includes(node.state)) && html`<button type="button" class="main"
        onClick=${() => retryAll(graph, reload)}>Retry all failed</button>`}
      <${CopyAs} cli=${`bellringer workflows graph ${graph.run_id}`} path=${`runs/${part(graph.run_id)}/graph`} /></div>
    <div class="flow ${chosen ? "with-panel" : ""}"><div class="flow-main">
      <${Shown} graph=${graph} chosen=${chosen.replace(/\[\d+\]$/, "")} choose=${choose} /></div>
      ${chosen && html`<${NodePanel} graph=${graph} name=${chosen} reload=${reload} />`}</div>`;
}

const isFollowing = () => query.value.get("follow") === "1";

function FollowCheckbox() {
  return html`<label><input type="checkbox" checked=${isFollowing()} onChange=${(event) => setQuery({ follow: event.target.checked ? "1" : "" })} />
    Follow running nodes</label>`;
}

/** Number of nodes per state, and the critical path. */
function NodeCounts({ graph, isInner }) {
  const states = groupBy(graph.nodes, (node) => node.state);
  const path = graph.critical_path;
  return html`<div class="flow-head"><ul class="sums" aria-label="Nodes by state">
      <li><strong>${graph.nodes.length}</strong> ${graph.nodes.length === 1 ? "node" : "nodes"}</li>
      ${STATES.filter((state) => states.has(state)).map((state) => html`<li class="tone-${nodeLook(state)[1]}">
        <${Icon} name=${nodeLook(state)[0]} /> <strong>${states.get(state).length}</strong> ${state}</li>`)}
      ${!isInner && html`<li><${Link} class="tone-mute" to=${`jobs/${part(graph.job_id)}`} terms=${{ tab: "graph", version: graph.version }}>version
        ${" "}${graph.version}<//></li>`}</ul>
    ${path.nodes.length > 1 && html`<p class="mute path"><${Icon} name="star" /> Critical path, ${formatDuration(path.seconds)}: ${shortened(path.nodes).join(" → ")}</p>`}
    ${graph.stopped && html`<p class="tone-warn"><${Icon} name="ban" /> Stopped: ${graph.stopped}. No further node starts.</p>`}
    ${graph.undoing && html`<p class="tone-warn"><${Icon} name="undo" />${" "}
      ${hasEnded(graph) ? "Completed nodes were undone, so no node can be retried. To try again, start a new run of the workflow." : "Completed nodes are being undone."}</p>`}</div>`;
}

const shortened = (names) => (names.length > 12 ? [...names.slice(0, 6), `… ${names.length - 11} more …`, ...names.slice(-5)] : names);

function GraphView({ graph, chosen, choose }) {
  const running = graph.nodes.filter((node) => ["running", "retrying"].includes(node.state)).map((node) => node.name);
  return html`<${Graph} nodes=${graph.nodes.map(boxOf)} edges=${edgesOf(graph)} direction=${segment("dir", DIRECTIONS, "lr")} chosen=${chosen} choose=${choose}
      follow=${isFollowing() ? running : null} label="Graph of the nodes: arrow keys move between nodes, Enter opens a node; the list view shows the same data" />
    <p class="legend mute" aria-hidden="true">${Object.entries(KINDS).map(([kind, icon]) => html`<span><${Icon} name=${icon} /> ${kind}</span>`)}
      <span>thick: critical path</span><span>dashed: undoes</span><span>drag to pan, Ctrl and wheel to zoom, arrow keys to move between nodes</span></p>`;
}

const COLUMNS = [
  { name: "Node", cell: (node) => html`<button type="button" class="quiet link name" onClick=${() => setQuery({ node: node.name })}><${Icon}
    name=${KINDS[node.kind]} /> ${node.name}${node.critical && html` <${Critical} />`}</button>` },
  { name: "State", class: "tight", cell: (node) => html`<${NodeState} of=${node.state} />${node.map && html` <span class="mute">
    ×${node.map.size.toLocaleString("en")}: ${mapProgress(node.map)}</span>`}` },
  { name: "Task", cell: (node) => html`<code class="clip task" title=${node.task}>${node.task ?? node.kind}</code>` },
  { name: "Attempt", class: "number", cell: (node) => node.attempt || "–" },
  { name: "Started", class: "tight", cell: (node) => html`<${Time} at=${node.started_at} />` },
  { name: "Took", class: "tight number", cell: (node) => html`<${NodeDuration} node=${node} />` },
  { name: "Reason", cell: (node) => html`<span class="clip" title=${reasonOf(node)}>${reasonOf(node)}</span>` },
];

function ListView({ graph, choose }) {
  const held = groupBy(graph.nodes, (node) => node.state);
  const asked = (query.value.get("state") ?? "").split(",").filter(Boolean);
  const rows = asked.length ? graph.nodes.filter((node) => asked.includes(node.state)) : graph.nodes;
  const sums = Object.fromEntries([...held].map(([state, nodes]) => [state, nodes.length]));
  return html`<${Chips} name="state" label="Nodes by state" of=${STATES.filter((state) => sums[state] || asked.includes(state))} counts=${sums} />
    <${Table} caption="Nodes" columns=${COLUMNS} rows=${rows} id=${(node) => node.name} open=${(node) => choose(node.name)} />`;
}
