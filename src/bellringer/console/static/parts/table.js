// Tables with keyboard navigation: Tab focuses the first row, j and k move, Enter opens, x selects. While the pointer is over a table, new
// rows are held back behind a button, so that rows do not move under the pointer.
import { html, useRef, useState } from "../lib/html.js";
import { useShortcuts } from "../lib/shortcuts.js";

/**
 * columns: [{name, cell(row), class, title, phone, short}]; a class `later` or `latest` drops the column when there is little room. kind: class of the table; id(row); open(row); selected: signal with a Set of ids, if rows can be selected;
 * keys: {letter: [description, action(row)]} for the focused row; detail(row): what is shown below a row, falsy for a closed one.
 * asked: changes when the user asks for other rows, which are then not held back.
 * phone: where a column is on narrow screens: `title` and `side` are the first line (left and right), `line` the second line without labels, `full` a line of
 * its own, `acts` the right end of the first line, `hide` nowhere. Without it, the column is a line with its label. short: what a `line` begins with.
 */
export function Table({ caption, columns, rows, id, open, selected, keys = {}, detail, hidden = true, kind = "", asked }) {
  const body = useRef(null);
  const held = useRef(null);
  const [pointed, setPointed] = useState(false);
  const ids = rows.map(id).join("\n");
  const before = useRef(asked);
  if (!pointed || !held.current || before.current !== asked) held.current = rows;
  before.current = asked;
  const known = new Map(rows.map((row) => [id(row), row]));
  const fresh = pointed ? rows.filter((row) => !held.current.some((old) => id(old) === id(row))).length : 0;
  const shown = pointed ? held.current.map((row) => known.get(id(row)) ?? row) : rows;

  const focused = () => document.activeElement?.closest?.("tr[data-row]");
  const row = () => shown.find((one) => id(one) === focused()?.dataset.row);
  function move(step) {
    const all = [...(body.current?.querySelectorAll("tr[data-row]") ?? [])];
    const at = all.indexOf(focused());
    all[at < 0 ? 0 : Math.min(Math.max(at + step, 0), all.length - 1)]?.focus();
  }
  const on = (act) => () => row() && act(row());
  useShortcuts(
    {
      j: ["next row", () => move(1)],
      k: ["previous row", () => move(-1)],
      ...(open && { Enter: ["open the row", (event) => (event.target.matches("tr[data-row]") && row() ? open(row()) : event.target.click?.())] }),
      ...(selected && { x: ["select the row", on((one) => toggle(selected, id(one)))] }),
      ...Object.fromEntries(Object.entries(keys).map(([name, [what, act]]) => [name, [what, on(act)]])),
    },
    caption,
    [ids, pointed],
  );
  const all = selected && shown.length > 0 && shown.every((one) => selected.value.has(id(one)));
  return html`<div class="table rows ${kind}" onMouseEnter=${() => setPointed(true)} onMouseLeave=${() => setPointed(false)}>
    ${fresh > 0 && html`<button type="button" class="pill" onClick=${() => { held.current = rows; setPointed(false); }}>${fresh} new</button>`}
    <table>
      <caption class=${hidden ? "unseen" : ""}>${caption}</caption>
      <thead><tr>
        ${selected && html`<th scope="col" class="tick"><label><input type="checkbox" aria-label="Select all rows shown" checked=${all} onChange=${() => (selected.value = all ? new Set() : new Set(shown.map(id)))} /></label></th>`}
        ${columns.map((column) => html`<th scope="col" class=${column.class} title=${column.title}>${column.name}</th>`)}
      </tr></thead>
      <tbody ref=${body}>
        ${shown.map((one, n) => [html`<tr key=${id(one)} data-row=${id(one)} tabindex=${n === 0 ? "0" : "-1"} class=${selected?.value.has(id(one)) ? "selected" : ""}>
          ${selected && html`<td class="tick"><label><input type="checkbox" aria-label="Select this row" checked=${selected.value.has(id(one))} onChange=${() => toggle(selected, id(one))} /></label></td>`}
          ${columns.map((column) => html`<td class=${column.class} data-phone=${column.phone} data-short=${column.short} data-label=${typeof column.name === "string" ? column.name : undefined}>${column.cell(one)}</td>`)}
        </tr>`, detail?.(one) && html`<tr key=${`${id(one)} detail`} class="detail"><td colspan=${columns.length + (selected ? 1 : 0)}>${detail(one)}</td></tr>`])}
      </tbody>
    </table>
  </div>`;
}

export function toggle(selected, one) {
  const next = new Set(selected.peek());
  if (!next.delete(one)) next.add(one);
  selected.value = next;
}
