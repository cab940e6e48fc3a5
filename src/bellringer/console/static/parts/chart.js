// Charts over time in the colors of the theme. All charts of a page share the crosshair and the zoom, and the zoom is part of the URL.
// Pages also show the data as a table.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useId, useMemo, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { theme } from "../lib/preferences.js";
import { query, setQuery } from "../lib/router.js";
import { formatClock, formatTime } from "../lib/time.js";
import { COUNT } from "./chart_scales.js";

const DAY_SECONDS = 86_400;
const MIN_POINTS = 2; // points that a zoom shows at least
const FEW_POINTS = 24;
const KEY_ZOOM = 0.5; // share of the range that one press of + leaves
const AXIS_FONT = "11px Inter, system-ui, sans-serif";
const HINT = "Arrow keys move the crosshair, + and - zoom, 0 shows everything.";

/** A color of the theme as canvases understand it: the browser resolves `light-dark()` only in properties such as `color`. */
function themeColor(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const faded = (color, share) => color.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

const secondsOf = (instant) => Date.parse(instant) / 1000;
const instantOf = (seconds) => new Date(Math.round(seconds) * 1000).toISOString().replace(".000Z", "Z");

/** The zoom of the page as [from, to] in seconds since 1970; null shows everything. */
export function zoomRange() {
  const [from, to] = (query.value.get("zoom") ?? "").split("..").map(secondsOf);
  return from < to ? [from, to] : null;
}

export const zoomText = (from, to) => `${instantOf(from)}..${instantOf(to)}`;
const zoomTo = (from, to) => setQuery({ zoom: zoomText(from, to) });
const resetZoom = () => setQuery({ zoom: "" });

/** The chosen range, or, if the zoom begins before it, the shortest range that has all of the zoom. lengths: {range: seconds}. */
export function rangeOfZoom(chosen, lengths) {
  const zoom = zoomRange();
  const age = zoom ? Date.now() / 1000 - zoom[0] : 0;
  if (age <= lengths[chosen]) return chosen;
  return Object.keys(lengths).find((range) => age <= lengths[range]) ?? Object.keys(lengths).at(-1);
}

/** Shows that the charts are zoomed, and offers to show everything again. */
export function ZoomReset({ hint = true }) {
  const zoom = zoomRange();
  if (!zoom) return hint && html`<span class="mute zoom-hint">Drag across a chart to zoom.</span>`;
  return html`<span class="zoomed"><span class="mute">${formatTime(zoom[0] * 1000).slice(0, 16)} to ${clock(zoom[1])}</span>
    <button type="button" onClick=${resetZoom}><${Icon} name="zoom-out" /> Reset zoom</button></span>`;
}

const clock = (seconds) => formatClock(seconds * 1000).slice(0, 5);
const day = (seconds) => formatTime(seconds * 1000).slice(5, 10);

/** Points are drawn only where there are few of them: a line needs two. */
const sparse = (color) => ({
  size: 4, fill: color,
  show: (plot, series, from, to) => plot.data[series].slice(from, to + 1).filter((value) => value !== null).length <= FEW_POINTS,
});

/** The room that the longest label of the axis needs. */
const axisWidth = (labels) => 12 + 6.2 * Math.max(1, ...(labels ?? []).map((label) => label.length));

const KINDS = {
  line: (color) => ({ width: 1.75, points: sparse(color) }),
  area: (color) => ({ width: 1.75, fill: faded(color, 0.16), points: sparse(color) }),
  edge: (color) => ({ width: 1, stroke: faded(color, 0.55), points: sparse(color) }),
  dotted: (color) => ({ width: 1.25, dash: [2, 3], points: sparse(color) }),
  limit: () => ({ width: 1.5, dash: [5, 4] }),
  bars: (color) => ({ width: 0, fill: faded(color, 0.75), paths: uPlot.paths.bars({ size: [0.8, 24], align: 0 }) }),
  dots: (color) => ({ width: 0, points: { show: true, size: 6, fill: color } }),
};

function seriesOptions({ name, tone, kind = "line" }) {
  const color = themeColor(`--${tone}`);
  return { label: name, stroke: color, points: { show: false }, spanGaps: true, ...KINDS[kind](color) };
}

/**
 * times: seconds since 1970; series: [{name, tone, values, kind}], kind: line, area, edge, dotted, limit, bars or dots; bands: [[upper, lower, tone]],
 * positions of series with a filled area between them; scale: how values are written, see `chart_scales.js`.
 */
export function Chart({ times, series, bands = [], height = 120, label, scale = COUNT }) {
  const place = useRef(null);
  const plot = useRef(null);
  const id = useId();
  const [at, setAt] = useState(null);
  const zoom = zoomRange();
  const shape = JSON.stringify([series.map(({ name, tone, kind }) => [name, tone, kind]), bands]);
  const step = times.length > 1 ? times[1] - times[0] : 60;
  const whole = [times[0] - step / 2, times.at(-1) + step / 2];
  const [from, to] = zoom ?? whole;
  const now = useRef({});
  now.current = { times, from, to };

  useEffect(() => {
    const axis = { stroke: themeColor("--mute"), font: AXIS_FONT, grid: { stroke: themeColor("--line"), width: 1 }, ticks: { show: false } };
    const isLong = () => now.current.to - now.current.from > 2 * DAY_SECONDS;
    const options = {
      width: Math.max(place.current.clientWidth, 160),
      height,
      padding: [8, 14, 0, 0],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 }, sync: { key: "time" }, y: false, bind: { dblclick: () => () => resetZoom() } },
      legend: { show: false },
      scales: { x: { time: true }, y: { range: (_plot, _min, max) => [0, Math.max(max * 1.12, scale.least ?? 0) || 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 22, gap: 4, space: 56, values: (_plot, ticks) => ticks.map(isLong() ? day : clock) },
        { ...axis, size: (_plot, values) => axisWidth(values), gap: 4, space: 22, incrs: scale.increments,
          values: (_plot, ticks, _axis, _space, increment) => scale.labels(ticks, increment) },
      ],
      series: [{}, ...series.map(seriesOptions)],
      bands: bands.map(([upper, lower, tone]) => ({ series: [upper + 1, lower + 1], fill: faded(themeColor(`--${tone}`), 0.16) })),
      hooks: {
        setCursor: [(self) => setAt(self.cursor.idx ?? null)],
        setSelect: [(self) => {
          const [left, right] = [self.select.left, self.select.left + self.select.width].map((pixel) => self.posToVal(pixel, "x"));
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (right - left >= step * MIN_POINTS) zoomTo(left, right);
        }],
      },
    };
    plot.current = new uPlot(options, [times, ...series.map((one) => one.values)], place.current);
    const fit = new ResizeObserver(() => place.current?.clientWidth && plot.current.setSize({ width: place.current.clientWidth, height }));
    fit.observe(place.current);
    document.fonts.ready.then(() => plot.current?.redraw(false, true)); // canvases do not wait for fonts
    return () => {
      fit.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, theme.value, height, step]);
  useEffect(() => {
    plot.current.setData([times, ...series.map((one) => one.values)], false);
    plot.current.setScale("x", { min: from, max: to });
  }, [times, series, from, to, theme.value]);

  const visible = times.flatMap((time, n) => (time >= from && time <= to ? [n] : []));
  function pressed(event) {
    const last = visible.length - 1;
    const index = visible.indexOf(at);
    const move = { ArrowLeft: index < 0 ? last : index - 1, ArrowRight: index < 0 ? 0 : index + 1, Home: 0, End: last }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (move !== undefined) point(plot.current, times[visible[Math.min(Math.max(move, 0), last)]]);
    else if (event.key === "+" || event.key === "=") zoomAround(at === null ? (from + to) / 2 : times[at], (to - from) * KEY_ZOOM);
    else if (event.key === "-") zoomAround(at === null ? (from + to) / 2 : times[at], (to - from) / KEY_ZOOM);
    else if ((event.key === "0" || event.key === "Escape") && zoom) resetZoom();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  function zoomAround(middle, length) {
    if (length < step * MIN_POINTS) return;
    const start = Math.min(Math.max(middle - length / 2, whole[0]), Math.max(whole[1] - length, whole[0]));
    if (length >= whole[1] - whole[0]) resetZoom();
    else zoomTo(start, start + length);
  }
  const read = (one) => (at === null || one.values[at] === null || one.values[at] === undefined ? "" : scale.value(one.values[at]));
  const said = at === null ? "no point selected" : [formatTime(times[at] * 1000), ...series.map((one) => `${one.name} ${read(one) || "unknown"}`)].join(", ");
  return html`<div class="chart" role="slider" tabindex="0" aria-label=${label} aria-describedby=${id} aria-valuemin="0" aria-valuemax=${Math.max(times.length - 1, 0)}
      aria-valuenow=${at ?? 0} aria-valuetext=${said} data-zoomed=${Boolean(zoom)} onKeyDown=${pressed}>
    <ul class="keys">${series.map((one) => html`<li key=${one.name}><span class="key-mark ${one.kind ?? "line"} tone-${one.tone}"></span>${one.name} <strong>${read(one)}</strong></li>`)}
      <li class="at">${at === null ? "" : formatTime(times[at] * 1000).slice(to - from > DAY_SECONDS + step ? 5 : 11, 16)}</li></ul>
    <div class="plot" ref=${place}></div><span class="unseen" id=${id}>${HINT}</span></div>`;
}

/** Puts the crosshair of all charts on this time. */
function point(plot, time) {
  if (!plot || time === undefined) return;
  plot.setCursor({ left: plot.valToPos(time, "x"), top: 0 }, true, true);
}

/** Whether a small chart has nothing to draw. */
export const isEmptyChart = ({ draw }, points) => !draw.some(([, , read, kind]) => kind !== "limit" && points.some((one) => read(one) > 0));

/** A small chart with a title and a summary; `none`: the text if there is nothing to draw. */
export function SmallChart({ title, summary, none, points, draw, label, scale, height, bands }) {
  const id = useId();
  const key = JSON.stringify(points);
  const times = useMemo(() => points.map((one) => secondsOf(one.at)), [key]);
  const series = useMemo(() => draw.map(([name, tone, read, kind]) => ({ name, tone, kind, values: points.map((one) => read(one) ?? null) })), [key]);
  return html`<section class="card small-chart" aria-labelledby=${id}><header><h3 id=${id}>${title}</h3><span class="mute">${summary}</span></header>
    ${isEmptyChart({ draw }, points) ? html`<p class="mute nothing">${none}</p>`
      : html`<${Chart} times=${times} series=${series} bands=${bands} scale=${scale} height=${height} label=${label} />`}</section>`;
}
