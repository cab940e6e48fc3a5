// A button that opens a popup menu. The popup is in the browser's top layer, so that tables and sticky cells do not cut or cover it.
import { html, useId, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { address } from "../lib/router.js";

const GAP = 4; // pixels between the button and the popup
const CLICK_MS = 400; // the longest time from a press to its click
const NARROW = matchMedia("(max-width: 48rem)"); // the popup is a sheet at the lower edge

/**
 * items: [{text, act} or {text, to, terms}], with `icon`, `tone`, `title` and `hint`; falsy items are left out, and "-" is a separator.
 * label: accessible name of the button; `text`: its visible text, if it has more than an icon.
 */
export function Menu({ label, items, icon = "more", text, kind = "quiet icon" }) {
  const id = useId();
  const button = useRef(null);
  const [start, setStart] = useState(null); // null: closed; 0 or -1: the item that gets the focus
  return html`<span class="menu-of"><button type="button" ref=${button} class=${kind} aria-haspopup="menu" aria-expanded=${start !== null}
      aria-controls=${start === null ? undefined : id} aria-label=${label} title=${text ? undefined : label.split(":")[0]}
      onClick=${() => setStart(start === null ? 0 : null)} onKeyDown=${(event) => openByKey(event, setStart)}>
      ${icon && html`<${Icon} name=${icon} />`}${text && html` <span>${text}</span>`}</button>
    ${start !== null && html`<${Popup} id=${id} label=${label} items=${items.filter(Boolean)} button=${button} start=${start} close=${() => setStart(null)} />`}</span>`;
}

function openByKey(event, setStart) {
  const start = { ArrowDown: 0, ArrowUp: -1 }[event.key];
  if (start === undefined) return;
  event.preventDefault();
  setStart(start);
}

function Popup({ id, label, items, button, start, close }) {
  const list = useRef(null);
  const typed = useRef({ text: "", at: 0 });
  const all = () => [...list.current.querySelectorAll("[role=menuitem]")];
  const focus = (n) => all().at(n % all().length)?.focus();
  function leave() {
    close();
    button.current?.focus();
  }
  useLayoutEffect(() => {
    // The focus moves before the next key arrives, which would otherwise be a shortcut of the page.
    list.current.showPopover();
    place(list.current, button.current);
    focus(start);
    const outside = (event) => {
      if (list.current?.contains(event.target) || button.current?.contains(event.target)) return;
      if (NARROW.matches) swallowClick(); // the page behind the sheet is dimmed: the press only closes the sheet
      close();
    };
    const moved = () => list.current && button.current && place(list.current, button.current);
    addEventListener("pointerdown", outside, true);
    addEventListener("scroll", moved, true);
    addEventListener("resize", moved);
    return () => {
      removeEventListener("pointerdown", outside, true);
      removeEventListener("scroll", moved, true);
      removeEventListener("resize", moved);
    };
  }, []);
  function pressed(event) {
    const at = all().indexOf(document.activeElement);
    event.stopPropagation(); // shortcuts of the page do not apply
    if (event.key === "Tab") return void leave();
    if (event.key === "Escape") leave();
    else if (event.key === "ArrowDown") focus(at + 1);
    else if (event.key === "ArrowUp") focus(at - 1);
    else if (event.key === "Home") focus(0);
    else if (event.key === "End") focus(-1);
    else if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) search(event.key, at);
    else return;
    event.preventDefault();
  }
  function search(letter, at) {
    const text = (Date.now() - typed.current.at < 700 ? typed.current.text : "") + letter.toLowerCase();
    typed.current = { text, at: Date.now() };
    const found = all();
    const isOneLetter = text === letter.toLowerCase().repeat(text.length); // repeated, it goes to the next item with that letter
    [...found.slice(at + (isOneLetter ? 1 : 0)), ...found].find((one) => one.textContent.trim().toLowerCase().startsWith(isOneLetter ? letter.toLowerCase() : text))?.focus();
  }
  function choose(item) {
    leave();
    item.act?.();
  }
  return html`<ul ref=${list} id=${id} class="popup" role="menu" aria-label=${label} popover="manual" onKeyDown=${pressed}>
    ${items.map((item, n) => (item === "-" ? html`<li key=${n} role="separator"></li>` : html`<li key=${n} role="none"><${Item} item=${item} choose=${choose} /></li>`))}</ul>`;
}

function swallowClick() {
  const swallow = (event) => {
    event.preventDefault();
    event.stopPropagation();
  };
  addEventListener("click", swallow, { capture: true, once: true });
  setTimeout(() => removeEventListener("click", swallow, true), CLICK_MS);
}

function Item({ item, choose }) {
  const shown = html`${item.icon && html`<${Icon} name=${item.icon} />`}<span>${item.text}</span>${item.hint && html`<kbd>${item.hint}</kbd>`}`;
  const look = item.tone ? `tone-${item.tone}` : undefined;
  if (item.to !== undefined) return html`<a role="menuitem" tabindex="-1" class=${look} href=${address(item.to, item.terms)} onClick=${() => choose({})}>${shown}</a>`;
  return html`<button type="button" role="menuitem" tabindex="-1" class=${look} title=${item.title} onClick=${() => choose(item)}>${shown}</button>`;
}

/** Below the button, or above it if there is no room; never outside of the window. */
function place(popup, button) {
  popup.style.top = "";
  popup.style.left = "";
  if (NARROW.matches) return;
  const from = button.getBoundingClientRect();
  const { width, height } = popup.getBoundingClientRect();
  const below = from.bottom + GAP + height <= innerHeight || from.top < height;
  popup.style.top = `${Math.max(GAP, below ? from.bottom + GAP : from.top - GAP - height)}px`;
  popup.style.left = `${Math.min(Math.max(GAP, from.right - width), innerWidth - width - GAP)}px`;
}
