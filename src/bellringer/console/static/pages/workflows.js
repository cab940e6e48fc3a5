// The list of workflows with their latest and next runs.
import { html, useState } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query } from "../lib/router.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { Snippet } from "../parts/copyable_command.js";
import { Search } from "../parts/filters.js";
import { shellQuote } from "../parts/node_text.js";
import { RunDuration } from "../parts/run_text.js";
import { State, Strip } from "../parts/state_badge.js";
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

/** Reads the workflows, then their latest runs. If the latter fails, the list is shown without them. */
async function read(q, wanted, stop) {
  const page = await fetchPages("workflows", { q }, wanted, stop);
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
    aria-label=${`Graph of version ${one.version}`}>${one.version}<//>` },
  { name: "Last 30 runs", class: "tight", cell: (one) => html`<${Strip} runs=${strips[one.job_id]} />` },
  { name: "Last run", class: "tight", cell: (one) => one.last ? html`<${Link} to=${`runs/${part(one.last.run_id)}`} aria-label=${`Last run: ${one.last.state}`}>
    <${State} of=${one.last.state} /><//>` : html`<span class="mute">–</span>` },
  { name: "Took", class: "number tight", cell: (one) => (one.last ? html`<${RunDuration} run=${one.last} />` : "–") },
  { name: "Ended", class: "tight", cell: (one) => html`<${Time} at=${one.last?.finished_at} />` },
  { name: "Next", class: "tight", cell: (one) => (one.paused ? html`<span class="mute">–</span>` : html`<${Time} at=${one.next_at} />`) },
];

export default function Workflows() {
  const q = query.value.get("q") ?? "";
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(q, wanted, stop), [q, wanted]);
  return html`<header class="head"><h1>Workflows</h1><span class="gap"></span></header>
    <div class="tools"><${Search} label="Search by name" placeholder="Search by name" /><span class="gap"></span>
      <${CopyAs} cli=${`bellringer workflows list${q && ` --q ${shellQuote(q)}`}`} path=${`workflows${q && `?q=${encodeURIComponent(q)}`}`} /></div>
    <${Loading} of=${found}>${(data) => html`
      ${data.items.length === 0
        ? html`<${Nothing} q=${q} />`
        : html`<${Table} caption="Workflows" columns=${COLUMNS(data.strips)} rows=${data.items} id=${(one) => one.job_id}
          open=${(one) => navigate(`jobs/${part(one.job_id)}`)} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

function Nothing({ q }) {
  if (q) return html`<${Empty} title="No matching workflows"><p>Change the search, or <${Link} to="workflows">show all workflows<//>.</p><//>`;
  return html`<${Empty} title="No workflows yet"><p>A workflow is a job with several nodes: the result of one node is the argument of the next. Write one in Python:</p>
    <div class="snippets"><${Snippet} title="etl.py" text=${EXAMPLE} /><${Snippet} title="Run it" text=${COMMANDS} /></div><//>`;
}
