// Where the boxes of a graph stand: in layers by the longest way that leads to them, with few crossings, each near those that it is tied to.
export const BOX = { width: 204, height: 54 };
const BETWEEN = { layers: 64, worded: 120, boxes: 18, threads: 12 };
const SWEEPS = 8; // over all layers, to find an order with fewer crossings
const MOST_THREADS = 6000; // a graph with more goes without: its long edges pass below boxes

/**
 * nodes: [{name}], those before others first; edges: [{from, to, is}]; direction: lr or tb.
 * Answers {boxes: Map of name → {x, y, layer, at}, lines: [{edge, d, tip, end, frame}], width, height}.
 */
export function layout(nodes, edges, direction = "lr") {
  const isAcross = direction === "lr";
  const [length, breadth] = isAcross ? [BOX.width, BOX.height] : [BOX.height, BOX.width];
  const cells = ranked(nodes, edges);
  const layers = [];
  for (const cell of cells.values()) (layers[cell.layer] ??= []).push(cell);
  const ways = threaded(cells, edges, layers);
  untangle(layers);
  for (const layer of layers) for (const cell of layer) cell.size = cell.name === null ? BETWEEN.threads : breadth + BETWEEN.boxes;
  align(layers);
  const gap = isAcross && edges.some((edge) => edge.is !== undefined) ? BETWEEN.worded : BETWEEN.layers; // room for what is written on them
  const along = (cell) => cell.layer * (length + gap);
  const first = Math.min(...layers.flat().map((cell) => cell.across - cell.size / 2), 0);
  const last = Math.max(...layers.flat().map((cell) => cell.across + cell.size / 2), 0);
  const point = (a, c) => (isAcross ? [a, c - first] : [c - first, a]);
  const boxes = new Map();
  for (const cell of cells.values()) {
    const [x, y] = point(along(cell), cell.across);
    boxes.set(cell.name, { x: isAcross ? x : x - BOX.width / 2, y: isAcross ? y - BOX.height / 2 : y, layer: cell.layer, at: cell.at });
  }
  const lines = ways.map(({ edge, way }) => ({ edge, ...drawn(way, along, length, point) }));
  const far = layers.length * (length + gap) - gap;
  const [width, height] = isAcross ? [far, last - first] : [last - first, far];
  return { boxes, lines, width: Math.max(width, BOX.width), height: Math.max(height, BOX.height) };
}

/** Each node with its layer. Two versions laid over each other may go in a circle: then the first that is left goes first. */
function ranked(nodes, edges) {
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

/** Ties the cells to their neighbours; an edge that passes layers gets a thread in each of them, so that it passes between the boxes. */
function threaded(cells, edges, layers) {
  const known = edges.filter(({ from, to }) => cells.has(from) && cells.has(to) && from !== to);
  const threads = known.reduce((sum, { from, to }) => sum + Math.max(cells.get(to).layer - cells.get(from).layer - 1, 0), 0);
  return known.map((edge) => {
    const [start, end] = [cells.get(edge.from), cells.get(edge.to)];
    const way = [start];
    for (let layer = start.layer + 1; layer < end.layer && threads <= MOST_THREADS; layer += 1) {
      const thread = { name: null, layer, before: [], after: [], at: 0, across: 0 };
      layers[layer].push(thread);
      way.push(thread);
    }
    way.push(end);
    for (let n = 1; n < way.length; n += 1) {
      way[n - 1].after.push(way[n]);
      way[n].before.push(way[n - 1]);
    }
    return { edge, way };
  });
}

function mean(of, what) {
  let sum = 0;
  for (const one of of) sum += one[what];
  return sum / of.length;
}

const number = (layer) => layer.forEach((cell, n) => (cell.at = n));

/** Orders each layer by where its neighbours are, there and back; the order with the fewest crossings stays. */
function untangle(layers) {
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

/** Pairs of edges between two layers whose ends are in another order than their starts, counted by a tree of sums. */
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

function align(layers) {
  for (const layer of layers) settle(layer, () => 0);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const side = sweep % 2 ? "after" : "before";
    for (const layer of sweep % 2 ? layers.toReversed() : layers) settle(layer, (cell) => (cell[side].length ? mean(cell[side], "across") : cell.across));
  }
  for (const layer of layers) {
    const drawn = ({ before, after }) => mean(before, "across") * before.length + mean(after, "across") * after.length;
    settle(layer, (cell) => (cell.before.length && cell.after.length ? drawn(cell) / (cell.before.length + cell.after.length) : cell.across));
  }
}

/** As near as can be to where each wishes to be, in their order and with room between them: those that push each other move as one block. */
function settle(layer, wish) {
  const blocks = []; // [the first of it, how many, the sum of their wishes], wishes less the room that those before take
  const offsets = [];
  let offset = 0;
  layer.forEach((cell, n) => {
    if (n) offset += (layer[n - 1].size + cell.size) / 2;
    offsets.push(offset);
    let [start, count, sum] = [n, 1, wish(cell) - offset];
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

/** A line through its way: a curve from layer to layer, straight where it passes one; and the tip of its arrow. */
function drawn(way, along, length, point) {
  const write = (a, c) => point(a, c).map(round).join(" ");
  let a = along(way[0]) + length;
  let c = way[0].across;
  const places = [point(a, c)];
  let d = `M${write(a, c)}`;
  way.slice(1).forEach((cell, n) => {
    const to = along(cell);
    const half = Math.max((to - a) / 2, 24);
    d += `C${write(a + half, c)} ${write(to - half, cell.across)} ${write(to, cell.across)}`;
    [a, c] = [to, cell.across];
    places.push(point(a, c));
    if (n < way.length - 2) {
      a += length;
      d += `L${write(a, c)}`;
      places.push(point(a, c));
    }
  });
  const tip = `M${write(a, c)}L${write(a - 8, c - 4)}L${write(a - 8, c + 4)}Z`;
  const [xs, ys] = [places.map(([x]) => x), places.map(([, y]) => y)];
  return { d, tip, end: point(a, c), frame: { x: Math.min(...xs), y: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) } };
}
