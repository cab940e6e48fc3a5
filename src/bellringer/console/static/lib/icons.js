// The icon set: 16 × 16 outlines that take the color of the text.
import { html } from "./html.js";

const SHAPES = {
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
  menu: "M2 4h12M2 8h12M2 12h12",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  "fold-in": "M9.5 4 5.5 8l4 4",
  "fold-out": "M6.5 4l4 4-4 4",
};

/** An icon without a meaning of its own: the text beside it, or the label of the button, names it. */
export function Icon({ name }) {
  return html`<svg class="glyph" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false"><path d=${SHAPES[name]} /></svg>`;
}
