// Workflows: which there are, how their last runs went, and when they run next.
import { html, useState } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { go, query } from "../lib/place.js";
import { CopyAs, Empty, Link, Loading, More, When } from "../parts/basics.js";
import { Snippet } from "../parts/command.js";
import { Search } from "../parts/filters.js";
import { word } from "../parts/flow_words.js";
import { Took } from "../parts/run_words.js";
import { State, Strip } from "../parts/state.js";
import { Table } from "../parts/table.js";

const PAGE = 50;
const EXAMPLE = `from bellringer import App, Workflow, every
app = App()

@app.task
def extract() -> list[str]: return ["a.csv", "b.csv"]
@app.task
def transform(path: str) -> int: return len(path)

@app.schedule(every("1h"))
@app.workflow
def etl(wf: Workflow):
    return wf.map(transform, wf.add(extract))`;

const COMMANDS = "bellringer dev etl.py\nbellringer jobs trigger etl.etl\nbellringer workflows list";

/** The workflows, then their last runs: a list without strips is better than none. */
async function read(q, wanted, stop) {
  const page = await gather("workflows", { q }, wanted, stop);
  const strips = {};
  try {
    for (let at = 0; at < page.items.length; at += 100) {
      const ids = page.items.slice(at, at + 100).map((one) => one.job_id).join(",");
      for (const one of (await get("jobs/strips", { ids, limit: 30 }, stop)).items) strips[one.job_id] = one.runs;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  return { ...page, strips };
}

const COLUMNS = (strips) => [
  { name: "Name", cell: (one) => html`<${Link} to=${`jobs/${part(one.job_id)}`} class="name">${one.name}<//>${one.paused && html` <${State} of="paused" />`}` },
  { name: "Nodes", class: "number tight", cell: (one) => one.nodes.toLocaleString("en") },
  { name: "Version", class: "number tight", cell: (one) => html`<${Link} to=${`jobs/${part(one.job_id)}`} terms=${{ tab: "graph" }}
    aria-label=${`version ${one.version}: its graph`}>${one.version}<//>` },
  { name: "Last 30 runs", class: "tight", cell: (one) => html`<${Strip} runs=${strips[one.job_id]} />` },
  { name: "Last run", class: "tight", cell: (one) => one.last ? html`<${Link} to=${`runs/${part(one.last.run_id)}`} aria-label=${`the last run: ${one.last.state}`}>
    <${State} of=${one.last.state} /><//>` : html`<span class="mute">–</span>` },
  { name: "Took", class: "number tight", cell: (one) => (one.last ? html`<${Took} run=${one.last} />` : "–") },
  { name: "Ended", class: "tight", cell: (one) => html`<${When} at=${one.last?.finished_at} />` },
  { name: "Next", class: "tight", cell: (one) => (one.paused ? html`<span class="mute">–</span>` : html`<${When} at=${one.next_at} />`) },
];

export default function Workflows() {
  const q = query.value.get("q") ?? "";
  const [wanted, want] = useState(PAGE);
  const found = useData((stop) => read(q, wanted, stop), [q, wanted]);
  return html`<header class="head"><h1>Workflows</h1><span class="gap"></span></header>
    <div class="tools"><${Search} label="search by name" placeholder="Search by name" /><span class="gap"></span>
      <${CopyAs} cli=${`bellringer workflows list${q && ` --q ${word(q)}`}`} path=${`workflows${q && `?q=${encodeURIComponent(q)}`}`} /></div>
    <${Loading} of=${found}>${(data) => html`
      ${data.items.length === 0
        ? html`<${Nothing} q=${q} />`
        : html`<${Table} caption="Workflows" columns=${COLUMNS(data.strips)} rows=${data.items} id=${(one) => one.job_id}
          open=${(one) => go(`jobs/${part(one.job_id)}`)} />`}
      <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//>`;
}

function Nothing({ q }) {
  if (q) return html`<${Empty} title="No workflow fits"><p>Search for less, or <${Link} to="workflows">see all workflows<//>.</p><//>`;
  return html`<${Empty} title="No workflows yet"><p>A workflow is a job whose tasks run after each other: what one returns, the next takes. Write one in Python:</p>
    <div class="snippets"><${Snippet} title="etl.py" text=${EXAMPLE} /><${Snippet} title="Run it" text=${COMMANDS} /></div><//>`;
}
