// Layered graph layout: nodes are placed in layers by their longest path, ordered to reduce crossings, and aligned with their neighbors.
export const BOX = { width: 204, height: 54, margin: 24, layers: 64, worded: 120, gap: 18 }; // worded: distance of layers with labels between them
export const SMALL_BOX = { width: 114, height: 54, margin: 10, layers: 40, worded: 96, gap: 8 }; // three of them fit beside each other on a phone
const THREAD = 12; // room for an edge that passes a layer
const SWEEPS = 8; // passes over all layers to reduce crossings
const MAX_DUMMY_CELLS = 6000; // above this number, long edges are drawn straight and may pass below boxes

/**
 * nodes: [{name}] in topological order; edges: [{from, to, is}]; direction: lr or tb; box: the size of the boxes.
 * Returns {boxes: Map of name → {x, y, layer, at}, lines: [{edge, d, tip, end, frame}], width, height, box}.
 */
export function layout(nodes, edges, direction = "lr", box = BOX) {
  const isAcross = direction === "lr";
  const [length, breadth] = isAcross ? [box.width, box.height] : [box.height, box.width];
  const cells = assignLayers(nodes, edges);
  const layers = [];
  for (const cell of cells.values()) (layers[cell.layer] ??= []).push(cell);
  const paths = addDummyCells(cells, edges, layers);
  reduceCrossings(layers);
  for (const layer of layers) for (const cell of layer) cell.size = cell.name === null ? THREAD : breadth + box.gap;
  alignLayers(layers);
  const gap = isAcross && edges.some((edge) => edge.is !== undefined) ? box.worded : box.layers; // room for edge labels
  const along = (cell) => cell.layer * (length + gap);
  const first = Math.min(...layers.flat().map((cell) => cell.across - cell.size / 2), 0);
  const last = Math.max(...layers.flat().map((cell) => cell.across + cell.size / 2), 0);
  const point = (a, c) => (isAcross ? [a, c - first] : [c - first, a]);
  const boxes = new Map();
  for (const cell of cells.values()) {
    const [x, y] = point(along(cell), cell.across);
    boxes.set(cell.name, { x: isAcross ? x : x - box.width / 2, y: isAcross ? y - box.height / 2 : y, layer: cell.layer, at: cell.at });
  }
  const lines = paths.map(({ edge, way: path }) => ({ edge, ...drawEdge(path, along, length, point) }));
  const far = layers.length * (length + gap) - gap;
  const [width, height] = isAcross ? [far, last - first] : [last - first, far];
  return { boxes, lines, width: Math.max(width, box.width), height: Math.max(height, box.height), box };
}

/** Assigns each node to a layer. The union of two graph versions may contain a cycle; it is broken at the first remaining node. */
function assignLayers(nodes, edges) {
  const cells = new Map(nodes.map(({ name }) => [name, { name, layer: 0, before: [], after: [], at: 0, across: 0 }]));
  const next = new Map(nodes.map(({ name }) => [name, []]));
  const open = new Map(nodes.map(({ name }) => [name, 0]));
  for (const { from, to } of edges) {
    if (!cells.has(from) || !cells.has(to) || from === to) continue;
    next.get(from).push(to);
    open.set(to, open.get(to) + 1);
  }
  const ready = nodes.map(({ name }) => name).filter((name) => open.get(name) === 0);
  const done = new Set();
  for (let at = 0; done.size < cells.size; at += 1) {
    const name = ready[at] ?? nodes.find((one) => !done.has(one.name)).name;
    if (done.has(name)) continue;
    done.add(name);
    for (const child of next.get(name)) {
      if (done.has(child)) continue;
      cells.get(child).layer = Math.max(cells.get(child).layer, cells.get(name).layer + 1);
      open.set(child, open.get(child) - 1);
      if (open.get(child) === 0) ready.push(child);
    }
  }
  return cells;
}

/** Links cells with their neighbors. An edge across several layers gets a dummy cell in each of them, so that it is routed between the boxes. */
function addDummyCells(cells, edges, layers) {
  const known = edges.filter(({ from, to }) => cells.has(from) && cells.has(to) && from !== to);
  const dummies = known.reduce((sum, { from, to }) => sum + Math.max(cells.get(to).layer - cells.get(from).layer - 1, 0), 0);
  return known.map((edge) => {
    const [start, end] = [cells.get(edge.from), cells.get(edge.to)];
    const path = [start];
    for (let layer = start.layer + 1; layer < end.layer && dummies <= MAX_DUMMY_CELLS; layer += 1) {
      const dummy = { name: null, layer, before: [], after: [], at: 0, across: 0 };
      layers[layer].push(dummy);
      path.push(dummy);
    }
    path.push(end);
    for (let n = 1; n < path.length; n += 1) {
      path[n - 1].after.push(path[n]);
      path[n].before.push(path[n - 1]);
    }
    return { edge, way: path };
  });
}

function mean(of, what) {
  let sum = 0;
  for (const one of of) sum += one[what];
  return sum / of.length;
}

const number = (layer) => layer.forEach((cell, n) => (cell.at = n));

/** Orders each layer by the mean position of its neighbors, alternating direction, and keeps the order with the fewest crossings. */
function reduceCrossings(layers) {
  layers.forEach(number);
  let best = layers.map((layer) => [...layer]);
  let fewest = crossings(layers);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
    const side = sweep % 2 ? "after" : "before";
    for (const layer of sweep % 2 ? layers.toReversed() : layers) {
      for (const cell of layer) cell.wish = cell[side].length ? mean(cell[side], "at") : cell.at;
      layer.sort((a, b) => a.wish - b.wish);
      number(layer);
    }
    const now = crossings(layers);
    if (now < fewest) [fewest, best] = [now, layers.map((layer) => [...layer])];
  }
  best.forEach((layer, n) => {
    layers[n] = layer;
    number(layer);
  });
}

/** Counts edge crossings between adjacent layers with a Fenwick tree. */
function crossings(layers) {
  let found = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((cell) => cell.after.map((one) => one.at).sort((a, b) => a - b));
    const sums = new Int32Array(Math.max(0, ...ends) + 2);
    ends.forEach((end, n) => {
      let passed = 0;
      for (let at = end + 1; at > 0; at -= at & -at) passed += sums[at];
      found += n - passed;
      for (let at = end + 1; at < sums.length; at += at & -at) sums[at] += 1;
    });
  }
  return found;
}

function alignLayers(layers) {
  for (const layer of layers) placeCells(layer, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const side = sweep % 2 ? "after" : "before";
    for (const layer of sweep % 2 ? layers.toReversed() : layers) placeCells(layer, (cell) => (cell[side].length ? mean(cell[side], "across") : cell.across));
  }
  for (const layer of layers) {
    const drawEdge = ({ before, after }) => mean(before, "across") * before.length + mean(after, "across") * after.length;
    placeCells(layer, (cell) => (cell.before.length && cell.after.length ? drawEdge(cell) / (cell.before.length + cell.after.length) : cell.across));
  }
}

/** Places the cells of a layer as close as possible to their desired positions, keeping order and spacing. Cells that push each other move as one block. */
function placeCells(layer, desired) {
  const blocks = []; // [first index, number of cells, sum of desired positions minus offsets]
  const offsets = [];
  let offset = 0;
  layer.forEach((cell, n) => {
    if (n) offset += (layer[n - 1].size + cell.size) / 2;
    offsets.push(offset);
    let [start, count, sum] = [n, 1, desired(cell) - offset];
    for (let last = blocks.at(-1); last && last[2] / last[1] > sum / count; last = blocks.at(-1)) {
      [start, count, sum] = [last[0], last[1] + count, last[2] + sum];
      blocks.pop();
    }
    blocks.push([start, count, sum]);
  });
  for (const [start, count, sum] of blocks) {
    for (let n = start; n < start + count; n += 1) layer[n].across = sum / count + offsets[n];
  }
}

const round = (value) => Math.round(value * 10) / 10;

/** Draws an edge: curves between layers, straight lines across them, and the arrow head. */
function drawEdge(path, along, length, point) {
  const write = (a, c) => point(a, c).map(round).join(" ");
  let a = along(path[0]) + length;
  let c = path[0].across;
  const places = [point(a, c)];
  let d = `M${write(a, c)}`;
  path.slice(1).forEach((cell, n) => {
    const to = along(cell);
    const half = Math.max((to - a) / 2, 24);
    d += `C${write(a + half, c)} ${write(to - half, cell.across)} ${write(to, cell.across)}`;
    [a, c] = [to, cell.across];
    places.push(point(a, c));
    if (n < path.length - 2) {
      a += length;
      d += `L${write(a, c)}`;
      places.push(point(a, c));
    }
  });
  const tip = `M${write(a, c)}L${write(a - 8, c - 4)}L${write(a - 8, c + 4)}Z`;
  const [xs, ys] = [places.map(([x]) => x), places.map(([, y]) => y)];
  return { d, tip, end: point(a, c), frame: { x: Math.min(...xs), y: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) } };
}
