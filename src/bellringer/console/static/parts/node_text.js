// Texts about nodes of workflow runs, shared by all views.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { fromNow, now, secondsBetween, formatDuration } from "../lib/time.js";
import { look } from "./state_badge.js";

export const STATES = ["running", "retrying", "queued", "waiting", "blocked", "dead", "cancelled", "skipped", "succeeded"];
export const KINDS = { task: "task", workflow: "branch", wait: "clock", signal: "flag" }; // their icons
export const RULES = {
  all_success: "all parents succeeded", none_failed: "no parent failed", all_done: "all parents have ended", one_failed: "a parent failed",
};
export const END_STATES = ["succeeded", "dead", "cancelled", "skipped"];
const REASONS = {
  upstream: "an earlier node failed", condition: "its branch was not taken", stopped: "the workflow run was stopped",
  "not needed": "nothing to undo",
};
const COUNTED = ["dead", "cancelled", "running", "succeeded"];

/** Icon and tone of a state. A blocked node only waits for its parents, so it is not shown as a warning. */
export function nodeLook(state) {
  return state === "blocked" ? ["circle-dashed", "mute"] : look(state);
}

export function NodeState({ of }) {
  const [icon, tone] = nodeLook(of);
  return html`<span class="state tone-${tone}"><${Icon} name=${icon} /> ${of}</span>`;
}

export const Critical = () => html`<span class="critical" title="on the critical path"><${Icon} name="star" /><span class="unseen"> on the critical path</span></span>`;

export const reasonOf = (node) => REASONS[node.reason] ?? node.reason ?? "";

/** Duration so far; for a waiting node, the time until it is due. */
export function NodeDuration({ node }) {
  if (node.state === "waiting" && node.due_at) return fromNow(node.due_at);
  if (!node.started_at) return "";
  if (node.finished_at) return formatDuration(secondsBetween(node.started_at, node.finished_at));
  return node.state === "blocked" ? "" : formatDuration(Math.max(0, (now.value - new Date(node.started_at)) / 1000));
}

/** Progress of a map: 4 dead, 236 succeeded. */
export const mapProgress = (map) => COUNTED.filter((state) => map[state]).map((state) => `${map[state].toLocaleString("en")} ${state}`).join(", ");

function describeMap(map) {
  const held = [...COUNTED, "skipped", "blocked"].filter((state) => map[state]);
  return [`${map.size.toLocaleString("en")} elements`, ...held.map((state) => `${map[state]} ${state}`)].join(", ");
}

/** Describes a node in one sentence. */
export function describeNode(node) {
  const took = node.started_at && node.finished_at && `took ${formatDuration(secondsBetween(node.started_at, node.finished_at))}`;
  return [
    `${node.name}: ${node.state}`, reasonOf(node), node.map && describeMap(node.map), node.kind === "task" ? `task ${node.task}` : node.kind,
    node.attempt > 1 && `attempt ${node.attempt}`, took, node.undoes && `undoes ${node.undoes}`, node.critical && "on the critical path",
  ].filter(Boolean).join(", ");
}

/** Properties of a node's box in the graph. */
export function boxOf(node) {
  const [icon, tone] = nodeLook(node.state);
  return {
    name: node.name, kind: KINDS[node.kind], icon, tone, word: (node.map && mapProgress(node.map)) || node.state, stack: Boolean(node.map), strong: node.critical, say: describeNode(node),
    count: node.map && `×${node.map.size.toLocaleString("en")}`,
    more: node.map ? "" : html`<${NodeDuration} node=${node} />`,
  };
}

/** Edges to draw: the critical path is strong, and undo nodes are linked by a dashed line. */
export function edgesOf(graph) {
  const critical = graph.critical_path?.nodes ?? [];
  const ways = new Set(critical.slice(1).map((name, n) => `${critical[n]}\n${name}`));
  const undone = graph.nodes.filter((node) => node.undoes).map((node) => ({ from: node.undoes, to: node.name, look: "undoes" }));
  return [...graph.edges.map((edge) => ({ ...edge, strong: ways.has(`${edge.from}\n${edge.to}`) })), ...undone];
}

/** Groups items by `key(item)`. */
export function groupBy(things, key) {
  const found = new Map();
  for (const one of things) {
    if (!found.has(key(one))) found.set(key(one), []);
    found.get(key(one)).push(one);
  }
  return found;
}

/** All nodes downstream of a node. */
export function nodesAfter(graph, name) {
  const next = groupBy(graph.edges, (edge) => edge.from);
  const found = new Set();
  const open = [name];
  while (open.length) {
    for (const { to } of next.get(open.pop()) ?? []) {
      if (found.has(to)) continue;
      found.add(to);
      open.push(to);
    }
  }
  return graph.nodes.filter((node) => found.has(node.name));
}

/** Finds a node by name; `transform[3]` is an element of the map `transform`. */
export function findNode(graph, text) {
  const found = /^(.+)\[(\d+)\]$/s.exec(text);
  const node = graph.nodes.find((one) => one.name === text) ?? graph.nodes.find((one) => one.name === found?.[1]);
  return node && { node, element: node.name === text ? null : text };
}

/** Quotes a word for a shell. */
export const shellQuote = (text) => (/^[\w.@%+=:,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
