// Words about nodes of workflow runs, for every view of them.
import { html } from "../lib/html.js";
import { fromNow, now, seconds, span } from "../lib/time.js";
import { look } from "./state.js";

export const STATES = ["running", "retrying", "queued", "waiting", "blocked", "dead", "cancelled", "skipped", "succeeded"];
export const KINDS = { task: "ƒ", workflow: "⎇", wait: "◴", signal: "⚑" };
export const RULES = {
  all_success: "all before it succeeded", none_failed: "none before it failed", all_done: "all before it have ended", one_failed: "one before it failed",
};
export const ENDED = ["succeeded", "dead", "cancelled", "skipped"];
const REASONS = {
  upstream: "something before it failed", condition: "its branch was not taken", stopped: "the workflow run was stopped",
  "not needed": "there was nothing to undo",
};
const COUNTED = ["dead", "cancelled", "running", "succeeded"];

/** Of a node, to wait for others is no trouble. */
export const lookOf = (state) => (state === "blocked" ? ["◌", "mute"] : look(state));

export function NodeState({ of }) {
  const [icon, tone] = lookOf(of);
  return html`<span class="state tone-${tone}"><span aria-hidden="true">${icon}</span> ${of}</span>`;
}

export const reasonOf = (node) => REASONS[node.reason] ?? node.reason ?? "";

/** How long it has taken, or takes until now; of what waits, when that is over. */
export function Lasts({ node }) {
  if (node.state === "waiting" && node.due_at) return fromNow(node.due_at);
  if (!node.started_at) return "";
  if (node.finished_at) return span(seconds(node.started_at, node.finished_at));
  return node.state === "blocked" ? "" : span(Math.max(0, (now.value - new Date(node.started_at)) / 1000));
}

/** How far the elements of a map are: 4 ✕ 236 ✓. */
export const counts = (map) =>
  COUNTED.filter((state) => map[state]).map((state) => `${map[state].toLocaleString("en")} ${lookOf(state)[0]}`).join("  ");

function told(map) {
  const held = [...COUNTED, "skipped", "blocked"].filter((state) => map[state]);
  return [`${map.size.toLocaleString("en")} elements`, ...held.map((state) => `${map[state]} ${state}`)].join(", ");
}

/** A node in one sentence. */
export function say(node) {
  const took = node.started_at && node.finished_at && `took ${span(seconds(node.started_at, node.finished_at))}`;
  return [
    `${node.name}: ${node.state}`, reasonOf(node), node.map && told(node.map), node.kind === "task" ? `task ${node.task}` : node.kind,
    node.attempt > 1 && `attempt ${node.attempt}`, took, node.undoes && `undoes ${node.undoes}`, node.critical && "on the critical path",
  ].filter(Boolean).join(", ");
}

/** A node of a run as a box. */
export function boxOf(node) {
  const [icon, tone] = lookOf(node.state);
  return {
    name: node.name, kind: KINDS[node.kind] ?? "•", icon, tone, word: node.state, stack: Boolean(node.map), strong: node.critical, say: say(node),
    count: node.map && `×${node.map.size.toLocaleString("en")}`,
    more: node.map ? counts(node.map) : html`<${Lasts} node=${node} />`,
  };
}

/** The edges as they are drawn: those of the critical path are strong, and what undoes a node hangs on it by a dashed line. */
export function edgesOf(graph) {
  const critical = graph.critical_path?.nodes ?? [];
  const ways = new Set(critical.slice(1).map((name, n) => `${critical[n]}\n${name}`));
  const undone = graph.nodes.filter((node) => node.undoes).map((node) => ({ from: node.undoes, to: node.name, look: "undoes" }));
  return [...graph.edges.map((edge) => ({ ...edge, strong: ways.has(`${edge.from}\n${edge.to}`) })), ...undone];
}

/** Things by what `key(thing)` says of them. */
export function grouped(things, key) {
  const found = new Map();
  for (const one of things) {
    if (!found.has(key(one))) found.set(key(one), []);
    found.get(key(one)).push(one);
  }
  return found;
}

/** All that comes after a node. */
export function after(graph, name) {
  const next = grouped(graph.edges, (edge) => edge.from);
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

/** `transform[3]` is an element of the map `transform`. */
export function placeOf(graph, text) {
  const found = /^(.+)\[(\d+)\]$/s.exec(text);
  const node = graph.nodes.find((one) => one.name === text) ?? graph.nodes.find((one) => one.name === found?.[1]);
  return node && { node, element: node.name === text ? null : text };
}

/** A name as a word of a shell. */
export const word = (text) => (/^[\w.@%+=:,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
