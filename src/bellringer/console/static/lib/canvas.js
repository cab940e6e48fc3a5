// Panning and zooming of a drawing that is larger than its frame, by pointer, wheel and keyboard. Moving sets one attribute; the drawing is
// rendered again only when other tiles become visible.

const ZOOMS = [0.02, 2];
const MIN_TEXT_ZOOM = 0.45; // below this zoom text is not readable
const MIN_FIT_ZOOM = 0.6; // initially, the whole drawing is shown only at this zoom or above
const START_ZOOM = 0.8; // initial zoom of a drawing that does not fit
const TILE_PIXELS = 400; // pixels: granularity of the visible area

const bounded = (k) => Math.min(Math.max(k, ZOOMS[0]), ZOOMS[1]);

/** frame, stage: refs to the svg and to the group in it that moves. see(area): called with the visible area {x, y, right, bottom, near} when it changes. */
export class Canvas {
  plan = null; // the result of `layout`
  isDragged = false; // a press that moved the drawing is not a click
  #view = { x: 0, y: 0, k: 1 };
  #pointers = new Map();
  #isOver = false;
  #due = 0;
  #seen = null;

  constructor(frame, stage, see) {
    Object.assign(this, { frame, stage, see });
  }

  /** The user is pointing at the drawing, so it must not move on its own. */
  get isHeld() {
    return this.#isOver || this.#pointers.size > 0;
  }

  get #size() {
    return this.frame.current.getBoundingClientRect();
  }

  #move(x, y, k) {
    this.#view = { x, y, k };
    this.stage.current?.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    this.#due ||= requestAnimationFrame(() => this.#reportView());
  }

  #reportView() {
    this.#due = 0;
    if (!this.frame.current) return;
    const { width, height } = this.#size;
    const { x, y, k } = this.#view;
    const tile = TILE_PIXELS / k;
    const from = (value) => (Math.floor(value / tile) - 1) * tile;
    const to = (value) => (Math.ceil(value / tile) + 1) * tile;
    const next = { x: from(-x / k), y: from(-y / k), right: to((width - x) / k), bottom: to((height - y) / k), near: k >= MIN_TEXT_ZOOM };
    if (this.#seen && Object.keys(next).every((name) => this.#seen[name] === next[name])) return;
    this.#seen = next;
    this.see(next);
  }

  pan(dx, dy) {
    const { x, y, k } = this.#view;
    this.#move(x + dx, y + dy, k);
  }

  /** at: the point of the frame that keeps its position; default: the center. */
  zoom(by, at = { x: this.#size.width / 2, y: this.#size.height / 2 }) {
    const { x, y, k } = this.#view;
    const to = bounded(k * by);
    this.#move(at.x - ((at.x - x) * to) / k, at.y - ((at.y - y) * to) / k, to);
  }

  /** The zooms at which the drawing is as wide and as high as its frame. */
  get #ratios() {
    const [{ width, height }, { margin }] = [this.#size, this.plan.box];
    return [(width - 2 * margin) / this.plan.width, (height - 2 * margin) / this.plan.height];
  }

  get #whole() {
    return bounded(Math.min(...this.#ratios, 1));
  }

  fit() {
    const { width, height } = this.#size;
    const k = this.#whole;
    this.#move((width - this.plan.width * k) / 2, (height - this.plan.height * k) / 2, k);
  }

  /** Initial view: the whole drawing if it is readable then, otherwise the part around the box `name`, with the whole width or height if that is readable. */
  begin(name) {
    const box = this.plan.boxes.get(name);
    if (!box || this.#whole >= MIN_FIT_ZOOM) return this.fit();
    const [{ width, height }, size] = [this.#size, this.plan.box];
    const side = Math.max(...this.#ratios);
    const k = side >= MIN_FIT_ZOOM ? Math.min(side, START_ZOOM) : START_ZOOM;
    const centred = (frame, whole, middle) => (whole * k <= frame - 2 * size.margin + 1 ? (frame - whole * k) / 2 : Math.min(size.margin, frame / 2 - middle * k));
    return this.#move(centred(width, this.plan.width, box.x + size.width / 2), centred(height, this.plan.height, box.y + size.height / 2), k);
  }

  /** Centers these boxes at a readable zoom. */
  show(names, k = Math.max(this.#view.k, MIN_FIT_ZOOM)) {
    const boxes = names.map((name) => this.plan.boxes.get(name)).filter(Boolean);
    if (!boxes.length) return;
    const { width, height } = this.#size;
    const middle = (side, length) => (Math.min(...boxes.map((box) => box[side])) + Math.max(...boxes.map((box) => box[side])) + length) / 2;
    this.#move(width / 2 - middle("x", this.plan.box.width) * k, height / 2 - middle("y", this.plan.box.height) * k, k);
  }

  /** Centers the box if it is not visible. */
  reveal(name) {
    const box = this.plan.boxes.get(name);
    const { width, height } = this.#size;
    const { x, y, k } = this.#view;
    const [left, top] = [box.x * k + x, box.y * k + y];
    if (left < 0 || top < 0 || left + this.plan.box.width * k > width || top + this.plan.box.height * k > height) this.show([name], k);
  }

  /** One pointer pans, two pointers zoom. The wheel zooms with Ctrl or when the drawing has the focus; otherwise it scrolls the page. */
  listen() {
    const svg = this.frame.current;
    const handlers = {
      wheel: (event) => this.#wheel(svg, event),
      pointerdown: (event) => this.#press(event),
      pointermove: (event) => this.#drag(svg, event),
      pointerup: (event) => this.#release(event),
      pointercancel: (event) => this.#release(event),
      pointerenter: () => (this.#isOver = true),
      pointerleave: () => (this.#isOver = false),
    };
    for (const [name, handler] of Object.entries(handlers)) svg.addEventListener(name, handler, { passive: false });
    const resized = new ResizeObserver(() => this.#reportView());
    resized.observe(svg);
    return () => {
      resized.disconnect();
      cancelAnimationFrame(this.#due);
      for (const [name, handler] of Object.entries(handlers)) svg.removeEventListener(name, handler);
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
    setTimeout(() => (this.isDragged = false)); // after the click event that follows
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
