// Heatmap: rows of cells, colored by count. Arrow keys move the focus, Enter selects a cell.
import { html, useId, useMemo, useState } from "../lib/html.js";

const STRENGTHS = 5;
const MIDDLE = 3;
const SIMILAR_SHARE = 0.1; // counts that differ by less than this share of the maximum get the same color

/**
 * Color level of a cell: 0 for no fires, otherwise 1 to 5; the middle level if all counts are similar. On the log scale the level follows the
 * logarithm of what exceeds the steady load, so that neither jobs that fire in every cell nor one herd hide the differences between the others.
 * On the quantile scale each level has about as many cells. If no cell has more counts than there are levels, the log scale is linear:
 * each count has its share of the strongest level.
 */
function strengths(rows, scale) {
  const counts = rows.flatMap((row) => row.cells).filter((cell) => cell?.count).map((cell) => cell.count).sort((a, b) => a - b);
  const [least, most] = [counts[0] ?? 0, counts.at(-1) ?? 0];
  const steady = counts[Math.floor(counts.length / 10)] ?? 0; // nine of ten cells have at least this many
  const isEven = most - steady < most * SIMILAR_SHARE;
  const excess = (count) => Math.log1p(Math.max(count - steady, 0)) / Math.log1p(most - steady);
  const bounds = Array.from({ length: STRENGTHS - 1 }, (_, n) => counts[Math.floor((counts.length * (n + 1)) / STRENGTHS)]);
  const byRank = (count) => 1 + bounds.filter((bound) => count >= bound && count > least).length;
  const isLinear = scale === "log" && most <= STRENGTHS;
  const byLog = (count) => Math.max(1, Math.ceil(excess(count) * STRENGTHS));
  const of = (count) => (!count ? 0 : isEven ? MIDDLE : isLinear ? Math.ceil((count / most) * STRENGTHS) : scale === "quantile" ? byRank(count) : byLog(count));
  const levels = isEven ? [MIDDLE] : isLinear ? [...new Set(counts.map(of))] : Array.from({ length: STRENGTHS }, (_, n) => n + 1);
  return { of, levels, least: isEven ? steady : least, most };
}

/**
 * rows: [{name, cells: [{at, count, title, hot} or null]}], all of the same length; ticks: [{at: column, text}];
 * picked: `at` (and `row`) of the selected cell; pick(cell, row); scale: log or quantile.
 */
export function Heatmap({ label, rows, ticks, picked, pick, scale = "log" }) {
  const id = useId();
  const [focus, setFocus] = useState({ row: 0, column: 0 });
  const columns = rows[0]?.cells.length ?? 0;
  const strength = useMemo(() => strengths(rows, scale), [rows, scale]);
  const place = (row, column) => `${id}-${row}-${column}`;
  function press(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns] }[event.key]
      ?? [0, 0];
    if (down || right) setFocus({ row: bound(focus.row + down, rows.length), column: bound(focus.column + right, columns) });
    else if (event.key !== "Enter" && event.key !== " ") return;
    else choose(focus);
    event.preventDefault();
  }
  function choose({ row, column }) {
    setFocus({ row, column });
    const cell = rows[row].cells[column];
    if (cell) pick(cell, rows[row]);
  }
  function point(event) {
    const { row, column } = event.target.closest("[data-column]")?.dataset ?? {};
    if (column !== undefined) choose({ row: Number(row), column: Number(column) });
  }
  const shown = (row, cell) => cell && picked && cell.at === picked.at && (picked.row === undefined || picked.row === row.name);
  return html`<div class="heat" role="grid" tabindex="0" aria-label=${label} aria-rowcount=${rows.length} aria-colcount=${columns}
    aria-activedescendant=${place(focus.row, focus.column)}
    onKeyDown=${press} onClick=${point} style=${{ "--columns": String(columns) }}>
    <div class="ticks" aria-hidden="true"><span></span><div class="cells">
      ${ticks.map((tick) => html`<span style=${{ gridColumn: `${tick.at + 1} / span 1` }}>${tick.text}</span>`)}</div></div>
    ${rows.map((row, n) => html`<div role="row" class="heat-row" key=${row.name}>
      <span role="rowheader" class="heat-name" title=${row.name}>${row.name}</span>
      <div class="cells" role="presentation">${row.cells.map((cell,
        column) => html`<span role="gridcell" id=${place(n, column)} data-row=${n} data-column=${column}
        class="cell heat-${cell ? strength.of(cell.count) : "none"} ${cell?.hot ? "hot" : ""} ${focus.row === n && focus.column === column ? "at" : ""}"
          aria-selected=${Boolean(shown(row, cell))}
        aria-label=${cell?.title ?? "in the past"} title=${cell?.title}></span>`)}</div></div>`)}
  </div>
  <p class="legend mute" aria-hidden="true">none <span class="swatch heat-0">
    </span> ${strength.most > 0 && html`${strength.least.toLocaleString("en")} ${strength.levels.map((one) => html`<span class="swatch heat-${one}">
    </span>`)} ${strength.most.toLocaleString("en")}`}${rows.some((row) => row.cells.some((cell) => cell?.hot))
    && html` <span class="swatch hot"></span> peak`}</p>`;
}

const bound = (number, size) => Math.min(Math.max(number, 0), size - 1);
