// Renders a graph as SVG. Only the visible part is rendered, with less detail at low zoom, so the cost does not depend on the size of the graph.
// Pages also offer the nodes as a list.
import { html, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { Icon, shapeOf } from "../lib/icons.js";
import { Canvas } from "../lib/canvas.js";
import { write } from "../lib/json.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { BOX, SMALL_BOX, layout } from "../lib/layout.js";

const ZOOM_STEP = 1.25;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const NARROW = matchMedia("(max-width: 48rem)");
const PHONE_MARGIN = 72; // pixels beside the boxes of a graph on a phone
const LABEL_PIXELS = 100; // pixels for an edge label
const PAN_PIXELS = 120; // pixels that Shift and an arrow key pan

const FONT = "600 13px Inter, system-ui, 'DejaVu Sans', sans-serif";
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** Truncates a text to a width; SVG has no ellipsis. */
function truncate(text, room) {
  const key = `${room} ${text}`;
  if (!widths.has(key)) {
    pen.font = FONT;
    const signs = [...text].slice(0, 60);
    const fits = signs.join("") === text && pen.measureText(text).width <= room;
    while (!fits && signs.length && pen.measureText(`${signs.join("")}…`).width > room) signs.pop();
    if (widths.size > 20_000) widths.clear();
    widths.set(key, fits ? text : `${signs.join("")}…`);
  }
  return widths.get(key);
}

function widthOf(text) {
  pen.font = FONT;
  return pen.measureText(text).width;
}

/** The canvas and its visible area. `first()` returns the name of the box to show initially. */
function useCanvas(plan, first) {
  const frame = useRef(null);
  const stage = useRef(null);
  const [seen, setSeen] = useState(null);
  const canvas = useMemo(() => new Canvas(frame, stage, setSeen), []);
  canvas.plan = plan;
  useEffect(() => void canvas.begin(first()), [plan]);
  useEffect(() => canvas.listen(), []);
  return [canvas, seen];
}

/**
 * nodes: [{name, kind, icon, tone, word, more, count, stack, strong, mark, say}], in topological order; edges: [{from, to, is, look, sign, strong}].
 * chosen: name of the selected node; choose(name); follow: names to keep visible, or null; legend: what is shown below.
 */
export function Graph({ nodes, edges, direction, chosen, choose, label, legend, follow = null }) {
  const shape = JSON.stringify([direction, NARROW.matches, nodes.map(({ name }) => name), edges.map(({ from, to }) => [from, to])]);
  const plan = useMemo(() => layoutForScreen(nodes, edges, direction), [shape]);
  const [canvas, seen] = useCanvas(plan, () => firstOf(nodes, chosen));
  const [at, setAt] = useState(chosen);
  const rover = plan.boxes.has(at) ? at : plan.boxes.has(chosen) ? chosen : nodes[0]?.name; // the box that Tab focuses
  useEffect(() => void (follow?.length && !canvas.isHeld && canvas.show(follow)), [JSON.stringify(follow)]);
  useEffect(() => void (plan.boxes.has(chosen) && canvas.reveal(chosen)), [chosen, plan]);
  useShortcuts(
    {
      "+": ["zoom in", () => canvas.zoom(ZOOM_STEP)],
      "-": ["zoom out", () => canvas.zoom(1 / ZOOM_STEP)],
      0: ["fit the graph", () => canvas.fit()],
    },
    "Graph",
  );
  function walk(from, step) {
    const next = neighbor(plan, from, step);
    if (!next) return;
    setAt(next);
    canvas.reveal(next);
    const focus = () => canvas.frame.current?.querySelector("[data-rover]")?.focus();
    requestAnimationFrame(() => requestAnimationFrame(focus)); // after it has been rendered
  }
  function pressed(event) {
    const step = STEPS[event.key];
    const from = event.target.closest("[data-node]")?.dataset.node ?? rover;
    if (step && event.shiftKey) canvas.pan(-step[0] * PAN_PIXELS, -step[1] * PAN_PIXELS);
    else if (step) walk(from, step);
    else if (event.key === "Enter" || event.key === " ") choose(from);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  function press(name) {
    if (canvas.isDragged) return;
    setAt(name);
    choose(name);
  }
  const shown = seen ? nodes.filter(({ name }) => name === rover || inside(plan.boxes.get(name), plan.box, seen)) : [];
  return html`<div class="dag">
    <svg ref=${canvas.frame} class=${seen?.near ? "" : "afar"} role="group" aria-label=${label} onKeyDown=${pressed}
      style=${{ height: `${plan.height + 2 * plan.box.margin}px` }}><g ref=${canvas.stage}>
      ${seen && html`<${Lines} lines=${plan.lines} seen=${seen} edges=${edges} direction=${direction} />`}
      ${shown.map((node) => html`<${Box} key=${node.name} node=${node} place=${plan.boxes.get(node.name)} size=${plan.box} near=${seen.near} chosen=${node.name === chosen}
        rover=${node.name === rover} choose=${() => press(node.name)} />`)}
    </g></svg><${Tools} canvas=${canvas} legend=${legend} /></div>`;
}

/** On a phone, a graph that is too wide has small boxes. */
function layoutForScreen(nodes, edges, direction) {
  const plan = layout(nodes, edges, direction);
  return NARROW.matches && plan.width > window.innerWidth - PHONE_MARGIN ? layout(nodes, edges, direction, SMALL_BOX) : plan;
}

/** Below the drawing, so that the buttons never cover a box. */
function Tools({ canvas, legend }) {
  return html`<div class="dag-tools"><div class="dag-legend mute" aria-hidden="true">${legend}<span class="roomy-only">Drag to pan, Ctrl + scroll to zoom</span></div><div role="group" aria-label="Zoom">
    <button type="button" class="icon" aria-label="Zoom in" title="Zoom in (+)" onClick=${() => canvas.zoom(ZOOM_STEP)}><${Icon} name="plus" /></button>
    <button type="button" class="icon" aria-label="Zoom out" title="Zoom out (-)" onClick=${() => canvas.zoom(1 / ZOOM_STEP)}><${Icon} name="minus" /></button>
    <button type="button" class="icon" aria-label="Fit the graph" title="Fit the graph (0)" onClick=${() => canvas.fit()}><${Icon} name="fit" /></button></div></div>`;
}

const inside = (box, size, seen) =>
  box && box.x < seen.right && box.x + size.width > seen.x && box.y < seen.bottom && box.y + size.height > seen.y;

/** The nearest box in a direction: in the next layer, or in the same layer. */
function neighbor({ boxes, box: size }, name, [dx, dy]) {
  const from = boxes.get(name);
  let best = null;
  let least = Infinity;
  for (const [other, box] of boxes) {
    const [x, y] = [(box.x - from.x) * (dx || 1), (box.y - from.y) * (dy || 1)];
    const [ahead, sideways] = dx ? [x, Math.abs(y)] : [y, Math.abs(x)];
    if (other === name || ahead < 1 || (dx ? ahead < size.width / 2 : ahead < size.height / 2)) continue;
    const far = ahead + sideways * 3;
    if (far < least) [least, best] = [far, other];
  }
  return best;
}

/** The node to show initially: the selected one, a failed or running one, the first of the critical path, or the first. */
function firstOf(nodes, chosen) {
  const found = nodes.find((node) => node.name === chosen) ?? nodes.find((node) => node.tone === "bad") ?? nodes.find((node) => node.tone === "busy") ?? nodes.find((node) => node.strong);
  return (found ?? nodes[0])?.name;
}

const valueOf = (value) => (typeof value === "string" ? value : write(value));
const classOf = (edge) => [edge.look, edge.strong && "strong"].filter(Boolean).join(" ");

/** Renders all edges of one style as one path, and their labels. */
function Lines({ lines, seen, edges, direction }) {
  const now = new Map(edges.map((edge) => [`${edge.from}\n${edge.to}`, edge]));
  const groups = new Map();
  const words = [];
  for (const line of lines) {
    const { x, y, right, bottom } = line.frame;
    if (x > seen.right || right < seen.x || y > seen.bottom || bottom < seen.y) continue;
    const edge = now.get(`${line.edge.from}\n${line.edge.to}`) ?? line.edge;
    const look = classOf(edge);
    if (!groups.has(look)) groups.set(look, [[], []]);
    groups.get(look)[0].push(line.d);
    groups.get(look)[1].push(line.tip);
    if (seen.near && (edge.is !== undefined || edge.sign)) words.push([line, edge]);
  }
  return html`<g aria-hidden="true">${[...groups].toSorted(([a], [b]) => a.length - b.length).map(([look, [ways, tips]]) => html`
      <path key=${`way ${look}`} class="line ${look}" d=${ways.join("")} /><path key=${`tip ${look}`} class="tip ${look}" d=${tips.join("")} />`)}
    ${words.map(([{ end: [x, y], edge: { from, to } }, edge]) => {
      const text = truncate([edge.sign, edge.is !== undefined && `= ${valueOf(edge.is)}`].filter(Boolean).join(" "), LABEL_PIXELS);
      const place = direction === "lr" ? { x: x - 12, y: y - 7, class: "at-end" } : { x: x + 9, y: y - 12, class: "" };
      return html`<text key=${`${from}\n${to}`} x=${place.x} y=${place.y} class="on-line ${place.class} ${classOf(edge)}">${text}</text>`;
    })}</g>`;
}

/** A small box has no room for the kind of the node, and shows either its duration or its state, which the icon shows as well. */
function Box({ node, place, size, near, chosen, rover, choose }) {
  const { width, height } = size;
  const isSmall = size === SMALL_BOX;
  const left = isSmall ? 14 : 34;
  const look = ["box", `tone-${node.tone}`, chosen && "chosen", node.strong && "strong", node.mark && `mark-${node.mark}`].filter(Boolean).join(" ");
  return html`<g class=${look} transform=${`translate(${place.x} ${place.y})`} role="button" tabindex=${rover ? 0 : -1} aria-pressed=${chosen}
      aria-label=${node.say} data-node=${node.name} data-rover=${rover ? "" : undefined} onClick=${choose}>
    <title>${node.say}</title>
    ${node.stack && near && html`<rect class="paper" x="8" y="-8" width=${width - 8} height=${height} rx="7" /><rect class="paper" x="4" y="-4"
      width=${width - 4} height=${height} rx="7" />`}
    <rect class="paper" width=${width} height=${height} rx="7" />
    <rect class="side" width="6" height=${height} rx="3" />
    ${near
      ? html`${node.kind && !isSmall && html`<path class="sign kind" transform="translate(14 10)" d=${shapeOf(node.kind)} />`}<text class="title" x=${left} y="22">${truncate(node.name, width - left - (isSmall ? 5 : 12) - (node.count ? widthOf(node.count) + 8 : 0))}</text>
        ${node.count && html`<text class="count" x=${width - 10} y="22">${node.count}</text>`}
        ${node.icon && html`<path class="sign" transform="translate(14 31) scale(.85)" d=${shapeOf(node.icon)} />`}
        ${isSmall && node.more ? "" : html`<text class="word" x=${node.icon ? 34 : 16} y="42">${truncate(node.word, width - 46)}</text>`}<text class="more" x=${width - 10} y="42">${node.more}</text>`
      : node.icon && html`<path class="sign far" transform=${`translate(${width / 2 - 18} ${height / 2 - 18}) scale(2.25)`} d=${shapeOf(node.icon)} />`}
  </g>`;
}
