// The icon set: 16 × 16 shapes that take the color of the text. Icons replace font glyphs, which differ between platforms.
import { html } from "./html.js";

const CIRCLE = "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z";
const SHAPES = {
  // Pages
  overview: "M2 9.5a6 6 0 0 1 12 0M8 9.5 11 6M2 13h12",
  jobs: "M2.5 3.5h11v9h-11zM2.5 6.5h11M5 9.5h6",
  workflows: "M3 3h4v3H3zM9 10h4v3H9zM5 6v5.5h4",
  runs: "M4.5 3v10l8-5z",
  "dead-letters": "M2.5 4.5h11v8h-11zM2.5 5l5.5 4 5.5-4M10.5 2l2 2m0-2-2 2",
  calendar: "M2.5 4h11v9.5h-11zM2.5 7h11M5.5 2v3M10.5 2v3",
  workers: "M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM8 1.5v2M8 12.5v2M1.5 8h2M12.5 8h2M3.4 3.4l1.4 1.4M11.2 11.2l1.4 1.4M12.6 3.4l-1.4 1.4M4.8 11.2l-1.4 1.4",
  cluster: "M8 1.8 13.4 5v6L8 14.2 2.6 11V5zM8 8l5-3M8 8v6M8 8 3 5",
  tenants: "M2.5 14V6L8 2l5.5 4v8zM6.5 14v-4h3v4",
  audit: "M3.5 2h7l2 2v10h-9zM5.5 7h5M5.5 9.5h5M5.5 12h3",
  settings: "M2 4.5h7M12 4.5h2M2 11.5h2M7 11.5h7M9 3v3h3V3zM4 10v3h3v-3z",
  // States
  check: "M3 8.5l3.3 3.3L13 4.7",
  cross: "M4 4l8 8M12 4l-8 8",
  warning: "M8 2.2 14.5 13.5h-13zM8 6.5v3M8 11.6v.1",
  dot: "M8 4.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z",
  circle: "M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z",
  half: `${CIRCLE}M8 2v12M10 2.4v11.2M12 3.6v8.8`,
  play: "M4.5 3v10l8-5z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  resume: "M3 3.5v9M6.5 3.5v9l7-4.5z",
  sent: "M4 12 12 4M6 4h6v6",
  clock: `${CIRCLE}M8 4.8V8l2.2 1.6`,
  alarm: "M8 4a5 5 0 1 0 0 10A5 5 0 0 0 8 4zM8 6.5V9l1.8 1M2 4.5 4.5 2M14 4.5 11.5 2",
  retry: "M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3",
  hourglass: "M4 2h8M4 14h8M5 2v2.5L8 8l3-3.5V2M5 14v-2.5L8 8l3 3.5V14",
  bolt: "M9 1.8 4 9h3.5L7 14.2 12 7H8.5z",
  ban: `${CIRCLE}M3.8 3.8l8.4 8.4`,
  "circle-minus": `${CIRCLE}M5 8h6`,
  "circle-dashed": "M6.4 2.2a6 6 0 0 1 3.2 0M12.4 3.9a6 6 0 0 1 1.4 2.4M13.8 9.7a6 6 0 0 1-1.4 2.4M9.6 13.8a6 6 0 0 1-3.2 0M3.6 12.1a6 6 0 0 1-1.4-2.4M2.2 6.3a6 6 0 0 1 1.4-2.4",
  // Actions
  menu: "M2 4h12M2 8h12M2 12h12",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  "fold-in": "M9.5 4 5.5 8l4 4",
  "fold-out": "M6.5 4l4 4-4 4",
  more: "M2.5 8a1 1 0 1 0 2 0 1 1 0 1 0-2 0M7 8a1 1 0 1 0 2 0 1 1 0 1 0-2 0M11.5 8a1 1 0 1 0 2 0 1 1 0 1 0-2 0",
  edit: "M3 13l.6-2.8L10.8 3A1.5 1.5 0 0 1 13 5.2L5.8 12.4zM9.6 4.2l2.2 2.2",
  copy: "M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1",
  share: "M12 2.5a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6zM4 6.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6zM12 9.9a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6zM5.6 7.2l4.8-2.1M5.6 8.8l4.8 2.1",
  link: "M6.5 9.5l3-3M7 4.8l1.4-1.4a2.6 2.6 0 0 1 3.7 3.7L10.7 8.5M9 11.2l-1.4 1.4a2.6 2.6 0 0 1-3.7-3.7L5.3 7.5",
  external: "M6.5 3.5h-4v10h10v-4M9 2.5h4.5V7M13 3 7.5 8.5",
  download: "M8 2.5V10M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
  upload: "M8 10.5V3M4.8 6 8 2.8 11.2 6M2.5 13.5h11",
  trash: "M2.5 4h11M6 4V2.5h4V4M4 4l.7 9.5h6.6L12 4M6.8 6.5v4.5M9.2 6.5v4.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  undo: "M3 6h6.5a3.5 3.5 0 0 1 0 7H6M3 6l3-3M3 6l3 3",
  skip: "M3.5 3.5v9l6-4.5zM12.5 3.5v9",
  history: "M3 8a5 5 0 1 0 1.5-3.6M3 2.5v3h3M8 5.2V8l2 1.4",
  filter: "M2 3h12L9.5 8.5V13l-3-1.5v-3z",
  bookmark: "M4 2h8v12L8 11l-4 3z",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  "zoom-in": "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14M5 7h4M7 5v4",
  "zoom-out": "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14M5 7h4",
  help: `${CIRCLE}M6.2 6.4a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.8.6-.8 1.2M8 11.4v.1`,
  info: `${CIRCLE}M8 7.4v4M8 4.8v.1`,
  // Directions
  "arrow-right": "M2.5 8h11M9.5 4l4 4-4 4",
  "arrow-down": "M8 2.5v11M4 9.5l4 4 4-4",
  "arrow-up": "M8 13.5v-11M4 6.5l4-4 4 4",
  "chevron-left": "M9.5 4 5.5 8l4 4",
  "chevron-right": "M6.5 4l4 4-4 4",
  "chevron-down": "M4 6.5l4 4 4-4",
  "chevron-up": "M4 9.5l4-4 4 4",
  // Kinds of things
  task: "M9.5 2.5c-1.6 0-2 1-2.2 2.4L6 11.5c-.2 1.4-.8 2.2-2.2 2.2M4.5 7h6",
  branch: "M4.5 2.5v11M4.5 9c4 0 7-1 7-5M11.5 2.5v2M9.5 4.5l2-2 2 2",
  flag: "M4 14V2.5M4 3h8l-2 2.8 2 2.7H4",
  star: "M8 2l1.8 3.8 4.2.6-3 2.9.7 4.2L8 11.5l-3.7 2 .7-4.2-3-2.9 4.2-.6z",
  tag: "M2.5 2.5h5.3l5.7 5.7-5.3 5.3-5.7-5.7zM5.5 5.5v.1",
  key: "M10.5 2.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8.4 7.6 2.5 13.5M4.5 11.5l1.8 1.8",
  lock: "M3.5 7h9v6.5h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  user: "M8 2.5a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM2.8 13.8c.4-2.6 2.4-4 5.2-4s4.8 1.4 5.2 4",
  bell: "M4 11V7a4 4 0 0 1 8 0v4l1.2 1.5H2.8zM6.8 14.2h2.4M8 1.5V3",
  globe: `${CIRCLE}M2 8h12M8 2c2.2 2 2.2 10 0 12M8 2c-2.2 2-2.2 10 0 12`,
  snow: "M8 2v12M2.8 5l10.4 6M13.2 5 2.8 11M6.5 3 8 4.4 9.5 3M6.5 13 8 11.6 9.5 13",
  "dst-gap": "M2 10h3.5M10.5 10H14M5.5 10c0-6 5-6 5 0M9 8.5l1.5 1.5L12 8.5",
  "dst-fold": "M12.5 8a4.5 4.5 0 1 1-1.4-3.2M12.5 2.5v3h-3M8 6v2l1.5 1",
  database: "M8 2c3 0 5 .9 5 2v8c0 1.1-2 2-5 2s-5-.9-5-2V4c0-1.1 2-2 5-2zM3 4c0 1.1 2 2 5 2s5-.9 5-2M3 8c0 1.1 2 2 5 2s5-.9 5-2",
  // Preferences
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.5V3M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  moon: "M13 9.8A5.5 5.5 0 0 1 6.2 3 5.5 5.5 0 1 0 13 9.8z",
  screen: "M2 3h12v8H2zM6 14h4M8 11v3",
};
const SOLID = new Set(["dot", "more", "play", "resume"]);

/** The outline of an icon, for drawings that are SVG themselves. */
export const shapeOf = (name) => SHAPES[name] ?? SHAPES.circle;

/** An icon without a meaning of its own: the text beside it, or the label of the button, names it. */
export function Icon({ name }) {
  return html`<svg class=${SOLID.has(name) ? "glyph solid" : "glyph"} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false" data-icon=${name}><path d=${shapeOf(name)} /></svg>`;
}
