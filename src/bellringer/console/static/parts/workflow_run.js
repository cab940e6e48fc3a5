// The nodes of a workflow run as graph, timeline or list. View and selected node are part of the URL.
import { html, useEffect, useRef } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { formatDuration } from "../lib/time.js";
import { CopyAs, Link, Loading, Time } from "./elements.js";
import { Chips } from "./filters.js";
import { retryNode } from "./node_actions.js";
import { Critical, NodeDuration, NodeState, KINDS, STATES, boxOf, mapProgress, edgesOf, groupBy, nodeLook, reasonOf } from "./node_text.js";
import { Gantt } from "./gantt.js";
import { Graph } from "./graph.js";
import { NodePanel } from "./node_panel.js";
import { usePollingWhile } from "./operations.js";
import { hasEnded } from "./run_text.js";
import { Segments, segment } from "./segmented_control.js";
import { Table } from "./table.js";

const VIEWS = { graph: "Graph", gantt: "Timeline", list: "List" };
const DIRECTIONS = { lr: "→ Across", tb: "↓ Down" };
const NARROW = matchMedia("(max-width: 48rem)");
const USUAL_DIRECTION = NARROW.matches ? "tb" : "lr"; // on a phone the page scrolls down
const MAX_FAILED_ELEMENTS = 10; // per map, in the list of failed nodes
const RECENT_MS = 900; // milliseconds: do not poll if a live update has just reloaded the data
const SMALL_GRAPH = 12; // nodes; below a larger graph there is no room for its timeline
const FAILED = ["dead", "cancelled"];

/** The nodes of a workflow run; no data for other runs. */
export function useGraph(run) {
  const found = useData((stop) => (run.has_nodes ? get(`runs/${part(run.run_id)}/graph`, {}, stop) : null), [run.run_id, run.has_nodes]);
  const at = useRef(0);
  at.current = found.at;
  usePollingWhile(run.has_nodes && !hasEnded(found.data ?? run), () => Date.now() - at.current > RECENT_MS && found.reload(), 1500);
  useEffect(() => void (run.has_nodes && found.reload()), [run.state]);
  return found;
}

/** Nodes of a run that was undone cannot be retried. */
export const canRetryNodes = (graph) => Boolean(graph) && may("operator") && hasEnded(graph) && !graph.undoing && graph.nodes.some((node) => FAILED.includes(node.state));

export function WorkflowRun({ run, found }) {
  return html`<${Loading} of=${found}>${(graph) => graph && html`<${Nodes} graph=${graph} isInner=${Boolean(run.workflow)} reload=${found.reload} />`}<//>`;
}

function Nodes({ graph, isInner, reload }) {
  const view = segment("view", VIEWS, "graph");
  const chosen = query.value.get("node") ?? "";
  const choose = (node) => setQuery({ node, element: "" });
  useShortcuts({ Escape: ["close the node", () => setQuery({ node: "", element: "" })] }, "Workflow run", [graph.run_id]);
  const Shown = { graph: GraphView, gantt: Gantt, list: ListView }[view];
  return html`<${NodeCounts} graph=${graph} isInner=${isInner} />
    <div class="tools flow-tools"><${Segments} name="view" label="View" of=${VIEWS} usual="graph" clear=${["state"]} />
      ${view === "graph" && html`<${Segments} name="dir" label="Direction" of=${DIRECTIONS} usual=${USUAL_DIRECTION} />${!hasEnded(graph) && html`<${FollowCheckbox} />`}`}
      <span class="gap"></span>
      <span class="roomy-only"><${CopyAs} cli=${`bellringer workflows graph ${graph.run_id}`} path=${`runs/${part(graph.run_id)}/graph`} /></span></div>
    <div class="flow ${chosen ? "with-panel" : ""}"><div class="flow-main">
      <${Shown} graph=${graph} chosen=${chosen.replace(/\[\d+\]$/, "")} choose=${choose} /></div>
      ${chosen && html`<${NodePanel} graph=${graph} name=${chosen} reload=${reload} />`}</div>
    ${!chosen && view !== "list" && html`<${FailedNodes} graph=${graph} reload=${reload} />`}
    ${!chosen && view === "graph" && graph.started_at && graph.nodes.length <= SMALL_GRAPH && html`<section class="below"><h2>Timeline</h2>
      <${Gantt} graph=${graph} chosen="" choose=${choose} /></section>`}`;
}

const isFollowing = () => query.value.get("follow") === "1";

function FollowCheckbox() {
  return html`<label><input type="checkbox" checked=${isFollowing()} onChange=${(event) => setQuery({ follow: event.target.checked ? "1" : "" })} />
    Follow running nodes</label>`;
}

/** The number of nodes per state; a map counts as its elements. */
function countStates(nodes) {
  const sums = new Map();
  const add = (state, count) => sums.set(state, (sums.get(state) ?? 0) + count);
  for (const { state, map } of nodes) {
    if (map?.size) STATES.filter((one) => map[one]).forEach((one) => add(one, map[one]));
    else add(state, 1);
  }
  return sums;
}

/** Number of nodes and of their runs per state, and the critical path. */
function NodeCounts({ graph, isInner }) {
  const states = countStates(graph.nodes);
  const path = graph.critical_path;
  const runs = graph.nodes.reduce((sum, { map, run_id: id }) => sum + (map ? map.size - map.skipped - map.blocked : id ? 1 : 0), 0);
  return html`<div class="flow-head"><ul class="sums" aria-label="Nodes by state">
      <li><strong>${graph.nodes.length}</strong> ${graph.nodes.length === 1 ? "node" : "nodes"}${graph.nodes.some((node) => node.map) && `, ${runs.toLocaleString("en")} node ${runs === 1 ? "run" : "runs"}`}</li>
      ${STATES.filter((state) => states.has(state)).map((state) => html`<li class="tone-${nodeLook(state)[1]}">
        <${Icon} name=${nodeLook(state)[0]} /> <strong>${states.get(state).toLocaleString("en")}</strong> ${state}</li>`)}
      ${!isInner && html`<li><${Link} class="tone-mute" to=${`jobs/${part(graph.job_id)}`} terms=${{ tab: "graph", version: graph.version }}>workflow
        ${" "}version ${graph.version}<//></li>`}</ul>
    ${path.nodes.length > 1 && html`<p class="mute path"><i class="sample strong"></i> Critical path, ${formatDuration(path.seconds)}: ${shortened(path.nodes).join(" → ")}</p>`}
    ${graph.stopped && html`<p class="tone-warn"><${Icon} name="ban" /> Stopped: ${graph.stopped}. No further node starts.</p>`}
    ${graph.undoing && html`<p class="tone-warn"><${Icon} name="undo" />${" "}
      ${hasEnded(graph) ? "Completed nodes were undone, so no node can be retried. To try again, start a new run of the workflow." : "Completed nodes are being undone."}</p>`}</div>`;
}

const shortened = (names) => (names.length > 12 ? [...names.slice(0, 6), `… ${names.length - 11} more…`, ...names.slice(-5)] : names);

function GraphView({ graph, chosen, choose }) {
  const running = graph.nodes.filter((node) => ["running", "retrying"].includes(node.state)).map((node) => node.name);
  const hasPath = graph.critical_path.nodes.length > 1;
  const kinds = [...new Set(graph.nodes.map((node) => node.kind))];
  const legend = html`${kinds.length > 1 && kinds.map((kind) => html`<span><${Icon} name=${KINDS[kind]} /> ${kind}</span>`)}
    ${hasPath && html`<span><i class="sample strong"></i> critical path</span>`}${graph.nodes.some((node) => node.undoes) && html`<span><i class="sample undoes"></i> undoes a node</span>`}`;
  return html`<${Graph} nodes=${graph.nodes.map((node) => ({ ...boxOf(node), strong: hasPath && node.critical }))} edges=${edgesOf(graph)} direction=${segment("dir", DIRECTIONS, USUAL_DIRECTION)} chosen=${chosen} choose=${choose}
      follow=${isFollowing() ? running : null} label="Graph of the nodes: arrow keys move between nodes, Enter opens a node; the list view shows the same data" legend=${legend} />`;
}

/** The failed nodes, each map as its failed elements. */
function useFailedNodes(graph) {
  const failed = graph.nodes.filter((node) => FAILED.includes(node.state));
  const path = `runs/${part(graph.run_id)}/nodes`;
  const read = async (node, stop) => {
    if (!node.map) return [{ ...node, node }];
    const { items } = await get(path, { node: node.name, state: "dead", limit: MAX_FAILED_ELEMENTS }, stop);
    return items.length ? items.map((one) => ({ ...one, node })) : [{ ...node, node }];
  };
  return useData(async (stop) => (await Promise.all(failed.map((node) => read(node, stop)))).flat(), [graph.run_id, JSON.stringify(failed)], { once: true }).data ?? [];
}

/** What failed and why, with the logs of each and a retry. */
function FailedNodes({ graph, reload }) {
  const failed = useFailedNodes(graph);
  if (!failed.length) return null;
  const columns = [
    { name: "Node", class: "tight", phone: "title", cell: (one) => html`<button type="button" class="quiet link name" onClick=${() => setQuery({ node: one.name })}>${one.name}</button>` },
    { name: "State", class: "tight", phone: "side", cell: (one) => html`<${NodeState} of=${one.state} />` },
    { name: "Error", class: "known", phone: "full", cell: (one) => html`<span title=${reasonOf(one)}>${reasonOf(one)}</span>` },
    { name: "Attempts", class: "number", phone: "line", short: "attempts", cell: (one) => one.attempt || "–" },
    { name: "Took", class: "number", phone: "line", short: "· took", cell: (one) => html`<${NodeDuration} node=${one} />` },
    { name: html`<span class="unseen">Actions</span>`, class: "tight", phone: "full", cell: (one) => html`<span class="row-actions">
      ${one.run_id && html`<${Link} to=${`runs/${part(one.run_id)}`} class="button" aria-label=${`Logs of ${one.name}`}>Logs<//>`}
      ${canRetryNodes(graph) && html`<button type="button" class="quiet" aria-label=${`Retry ${one.name}`} onClick=${() => retryNode(graph, one.node, one.name, reload)}>Retry</button>`}</span>` },
  ];
  return html`<section class="below"><h2>Failed nodes</h2><${Table} caption="Failed nodes" kind="failed-nodes" columns=${columns} rows=${failed} id=${(one) => one.name}
    open=${(one) => setQuery({ node: one.name })} /></section>`;
}

const COLUMNS = [
  { name: "Node", phone: "title", cell: (node) => html`<button type="button" class="quiet link name" onClick=${() => setQuery({ node: node.name })}><${Icon}
    name=${KINDS[node.kind]} /> ${node.name}${node.critical && html` <${Critical} />`}</button>` },
  { name: "State", class: "tight", phone: "side", cell: (node) => html`<${NodeState} of=${node.state} />${node.map && html` <span class="mute">
    ×${node.map.size.toLocaleString("en")}: ${mapProgress(node.map)}</span>`}` },
  { name: "Task", phone: "line", cell: (node) => html`<code class="clip task" title=${node.task}>${node.task ?? node.kind}</code>` },
  { name: "Attempt", class: "number", phone: "hide", cell: (node) => node.attempt || "–" },
  { name: "Started", class: "tight", phone: "line", short: "·", cell: (node) => html`<${Time} at=${node.started_at} />` },
  { name: "Took", class: "tight number", phone: "line", short: "·", cell: (node) => html`<${NodeDuration} node=${node} />` },
  { name: "Reason", phone: "full", cell: (node) => reasonOf(node) && html`<span class="clip" title=${reasonOf(node)}>${reasonOf(node)}</span>` },
];

function ListView({ graph, choose }) {
  const held = groupBy(graph.nodes, (node) => node.state);
  const asked = (query.value.get("state") ?? "").split(",").filter(Boolean);
  const rows = asked.length ? graph.nodes.filter((node) => asked.includes(node.state)) : graph.nodes;
  const sums = Object.fromEntries([...held].map(([state, nodes]) => [state, nodes.length]));
  return html`<${Chips} name="state" label="Nodes by state" of=${STATES.filter((state) => sums[state] || asked.includes(state))} counts=${sums} />
    <${Table} caption="Nodes" columns=${COLUMNS} rows=${rows} id=${(node) => node.name} open=${(node) => choose(node.name)} />`;
}
