// A picture larger than its frame: moved and zoomed by pointer, wheel and keys. To move it touches one attribute; what is drawn is asked for anew
// only when other parts of it come in sight.
import { BOX } from "./layout.js";

const ZOOMS = [0.02, 2];
const NEAR = 0.45; // below this zoom no text could be read
const WHOLE = 0.6; // what would be smaller is not shown whole at first
const BEGIN = 0.8; // the zoom of what is not
const TILE = 400; // pixels: steps in which what is in sight is told
export const MARGIN = 24;

const bounded = (k) => Math.min(Math.max(k, ZOOMS[0]), ZOOMS[1]);

/** frame, stage: refs of the svg, and of the group in it that moves; see(next): hears what is in sight, {x, y, right, bottom, near}. */
export class Canvas {
  plan = null; // what `layout` answered
  isDragged = false; // a press that moved the picture is no click
  #view = { x: 0, y: 0, k: 1 };
  #pointers = new Map();
  #isOver = false;
  #due = 0;
  #seen = null;

  constructor(frame, stage, see) {
    Object.assign(this, { frame, stage, see });
  }

  /** Somebody points at it: it must not move by itself. */
  get isHeld() {
    return this.#isOver || this.#pointers.size > 0;
  }

  get #size() {
    return this.frame.current.getBoundingClientRect();
  }

  #move(x, y, k) {
    this.#view = { x, y, k };
    this.stage.current?.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    this.#due ||= requestAnimationFrame(() => this.#tell());
  }

  #tell() {
    this.#due = 0;
    if (!this.frame.current) return;
    const { width, height } = this.#size;
    const { x, y, k } = this.#view;
    const tile = TILE / k;
    const from = (value) => (Math.floor(value / tile) - 1) * tile;
    const to = (value) => (Math.ceil(value / tile) + 1) * tile;
    const next = { x: from(-x / k), y: from(-y / k), right: to((width - x) / k), bottom: to((height - y) / k), near: k >= NEAR };
    if (this.#seen && Object.keys(next).every((name) => this.#seen[name] === next[name])) return;
    this.#seen = next;
    this.see(next);
  }

  pan(dx, dy) {
    const { x, y, k } = this.#view;
    this.#move(x + dx, y + dy, k);
  }

  /** at: the place in the frame that stays where it is; without one, its middle. */
  zoom(by, at = { x: this.#size.width / 2, y: this.#size.height / 2 }) {
    const { x, y, k } = this.#view;
    const to = bounded(k * by);
    this.#move(at.x - ((at.x - x) * to) / k, at.y - ((at.y - y) * to) / k, to);
  }

  get #whole() {
    const { width, height } = this.#size;
    return bounded(Math.min((width - 2 * MARGIN) / this.plan.width, (height - 2 * MARGIN) / this.plan.height, 1));
  }

  fit() {
    const { width, height } = this.#size;
    const k = this.#whole;
    this.#move((width - this.plan.width * k) / 2, (height - this.plan.height * k) / 2, k);
  }

  /** The first look: all of it, if it can be read then; else where the box `name` is, and from the start if that is in sight too. */
  begin(name) {
    const box = this.plan.boxes.get(name);
    if (!box || this.#whole >= WHOLE) return this.fit();
    const { width, height } = this.#size;
    const centred = (frame, whole, middle) => (whole * BEGIN <= frame - 2 * MARGIN ? (frame - whole * BEGIN) / 2 : Math.min(MARGIN, frame / 2 - middle * BEGIN));
    return this.#move(centred(width, this.plan.width, box.x + BOX.width / 2), centred(height, this.plan.height, box.y + BOX.height / 2), BEGIN);
  }

  /** Boxes in the middle, near enough to be read. */
  show(names, k = Math.max(this.#view.k, WHOLE)) {
    const boxes = names.map((name) => this.plan.boxes.get(name)).filter(Boolean);
    if (!boxes.length) return;
    const { width, height } = this.#size;
    const middle = (side, length) => (Math.min(...boxes.map((box) => box[side])) + Math.max(...boxes.map((box) => box[side])) + length) / 2;
    this.#move(width / 2 - middle("x", BOX.width) * k, height / 2 - middle("y", BOX.height) * k, k);
  }

  /** Moves only if the box is out of sight. */
  reveal(name) {
    const box = this.plan.boxes.get(name);
    const { width, height } = this.#size;
    const { x, y, k } = this.#view;
    const [left, top] = [box.x * k + x, box.y * k + y];
    if (left < 0 || top < 0 || left + BOX.width * k > width || top + BOX.height * k > height) this.show([name], k);
  }

  /** Pointers move it, two of them zoom it. The wheel zooms it with Ctrl, or once it has the focus; else the page scrolls as ever. */
  listen() {
    const svg = this.frame.current;
    const acts = {
      wheel: (event) => this.#wheel(svg, event),
      pointerdown: (event) => this.#press(event),
      pointermove: (event) => this.#drag(svg, event),
      pointerup: (event) => this.#release(event),
      pointercancel: (event) => this.#release(event),
      pointerenter: () => (this.#isOver = true),
      pointerleave: () => (this.#isOver = false),
    };
    for (const [name, act] of Object.entries(acts)) svg.addEventListener(name, act, { passive: false });
    const resized = new ResizeObserver(() => this.#tell());
    resized.observe(svg);
    return () => {
      resized.disconnect();
      cancelAnimationFrame(this.#due);
      for (const [name, act] of Object.entries(acts)) svg.removeEventListener(name, act);
    };
  }

  #place(event) {
    const { left, top } = this.#size;
    return { x: event.clientX - left, y: event.clientY - top };
  }

  #wheel(svg, event) {
    if (!event.ctrlKey && !event.metaKey && !svg.contains(document.activeElement)) return;
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), this.#place(event));
  }

  #press(event) {
    if (event.button) return;
    this.#pointers.set(event.pointerId, this.#place(event));
    this.isDragged = false;
  }

  #release(event) {
    this.#pointers.delete(event.pointerId);
    setTimeout(() => (this.isDragged = false)); // after the click that follows
  }

  get #spread() {
    const [a, b] = this.#pointers.values();
    return Math.hypot(a.x - b.x, a.y - b.y);
  }

  #drag(svg, event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const now = this.#place(event);
    if (!this.isDragged && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
    if (!this.isDragged) svg.setPointerCapture(event.pointerId);
    this.isDragged = true;
    const isPinched = this.#pointers.size === 2;
    const wide = isPinched && this.#spread;
    this.#pointers.set(event.pointerId, now);
    if (isPinched) this.zoom(this.#spread / (wide || 1), now);
    else this.pan(now.x - before.x, now.y - before.y);
  }
}
