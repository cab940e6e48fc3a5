// Line chart over time, in the colors of the theme, with a crosshair. Drag to zoom, double-click to reset. Charts with the same time axis
// share the crosshair. Pages also show the data as a table.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef } from "../lib/html.js";
import { theme } from "../lib/preferences.js";

/** A color of the theme as canvases understand it: the browser resolves `light-dark()` only in properties such as `color`. */
function themeColor(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** series: [{name, tone, values, dots}]; dots: draw points instead of a line; times: seconds since 1970; `tick(seconds)`: label of the time axis. */
export function Chart({ times, series, height = 140, label, unit = "", tick }) {
  const place = useRef(null);
  const chosen = theme.value;
  useEffect(() => {
    const options = {
      width: Math.max(place.current.clientWidth, 200),
      height,
      cursor: { drag: { x: true, y: false }, points: { size: 6 }, sync: { key: "time" } },
      legend: { live: true },
      axes: [
        { stroke: themeColor("--mute"), grid: { stroke: themeColor("--line") }, ticks: { stroke: themeColor("--line") }, ...(tick && { size: 30, values: (_plot, ticks) => ticks.map(tick) }) },
        { stroke: themeColor("--mute"), grid: { stroke: themeColor("--line") }, ticks: { stroke: themeColor("--line") }, size: 60, values: (_plot, ticks) => ticks.map((tick) => `${tick}${unit}`) },
      ],
      series: [{}, ...series.map((one) => ({ label: one.name, stroke: themeColor(`--${one.tone}`), width: one.dots ? 0 : 2, points: { show: Boolean(one.dots), size: 6 } }))],
    };
    const plot = new uPlot(options, [times, ...series.map((one) => one.values)], place.current);
    const fit = new ResizeObserver(() => plot.setSize({ width: Math.max(place.current?.clientWidth ?? 0, 200), height }));
    fit.observe(place.current);
    return () => {
      fit.disconnect();
      plot.destroy();
    };
  }, [times, series, chosen]);
  return html`<div class="chart" ref=${place} role="img" aria-label=${label}></div>`;
}
