// Command palette: jump to any page, job or run.
import { html, signal, useEffect, useRef, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { PAGES } from "../lib/shortcuts.js";
import { navigate } from "../lib/router.js";

const opened = signal(false);
export const openPalette = () => (opened.value = true);

export function Palette() {
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  useEffect(() => {
    if (opened.value && !dialog.current.open) {
      setText("");
      dialog.current.showModal();
    }
    if (!opened.value) dialog.current?.close();
  }, [opened.value]);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => setFound(await search(text.trim(), stop.signal)), text ? 150 : 0);
    setAt(0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [text, opened.value]);
  function choose(one) {
    opened.value = false;
    if (one) navigate(one.path, one.terms);
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt(Math.min(Math.max(at + step, 0), Math.max(found.length - 1, 0)));
    }
    if (event.key === "Enter") {
      event.preventDefault();
      choose(found[at]);
    }
    if (event.key === "Escape") {
      event.preventDefault(); // a search field would only clear its text
      choose();
    }
  }
  return html`<dialog ref=${dialog} class="palette" aria-label="Search or jump to" onClose=${() => (opened.value = false)}
    onClick=${(event) => event.target === dialog.current && choose()}>
    <input type="search" role="combobox" aria-expanded="true" aria-controls="palette-found"
      aria-activedescendant=${found[at] ? `found-${at}` : undefined}
      aria-label="Page, job name or run id" placeholder="Page, job name or run id …" value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${pressed} autofocus />
    <ul id="palette-found" role="listbox" aria-label="Results">
      ${found.map((one, n) => html`<li id=${`found-${n}`} role="option" aria-selected=${n === at} onClick=${() => choose(one)}><span
        class="mute">${one.kind}</span> ${one.name}</li>`)}
    </ul>
  </dialog>`;
}

async function search(text, stop) {
  const fits = ([, name]) => name.toLowerCase().includes(text.toLowerCase());
  const pages = Object.values(PAGES).filter(fits).map(([path, name]) => ({ kind: "page", name, path }));
  if (!text) return [...pages, { kind: "action", name: "Create a job", path: "jobs/new" }];
  if (text.startsWith("run_")) return [{ kind: "run", name: text, path: `runs/${encodeURIComponent(text)}` }, ...pages];
  try {
    const { items } = await get("jobs", { q: text, limit: 10 }, stop);
    const jobs = items.map((job) => ({ kind: "job", name: job.name, path: `jobs/${encodeURIComponent(job.job_id)}` }));
    return [...jobs, { kind: "runs", name: `runs of task ${text}`, path: "runs", terms: { task: text } }, ...pages];
  } catch {
    return pages;
  }
}
