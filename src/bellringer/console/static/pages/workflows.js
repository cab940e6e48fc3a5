// The list of workflows with their latest and next runs.
import { html, useState } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, query } from "../lib/router.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { Snippet } from "../parts/copyable_command.js";
import { Chips, Search } from "../parts/filters.js";
import { shellQuote } from "../parts/node_text.js";
import { RunDuration } from "../parts/run_text.js";
import { State, Strip } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";

const PAGE = 50;
const STATES = ["running", "retrying", "queued", "waiting", "blocked", "dead", "cancelled", "skipped", "succeeded", "none"];
const WORDS = { none: "no runs yet" };
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
async function read(q, state, wanted, stop) {
  const page = await fetchPages("workflows", { q, state, count: "bounded" }, wanted, stop);
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
  const state = query.value.get("state") ?? "";
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(q, state, wanted, stop), [q, state, wanted]);
  const flags = [q && `--q ${shellQuote(q)}`, state && `--state ${shellQuote(state)}`].filter(Boolean).map((flag) => ` ${flag}`).join("");
  const search = new URLSearchParams(Object.entries({ q, state }).filter(([, value]) => value)).toString();
  return html`<header class="head"><h1>Workflows</h1><span class="gap"></span>
      <${CopyAs} cli=${`bellringer workflows list${flags}`} path=${`workflows${search && `?${search}`}`} /></header>
    <${Loading} of=${found} shape="table">${(data) => html`
      <div class="tools"><${Search} label="Search by name" placeholder="Search by name" /><${States} sums=${data.states ?? {}} chosen=${state} /></div>
      ${data.items.length === 0
        ? html`<${Nothing} filtered=${Boolean(q || state)} more=${data.next_cursor} />`
        : html`<${Table} caption="Workflows" columns=${COLUMNS(data.strips)} rows=${data.items} id=${(one) => one.job_id}
          open=${(one) => navigate(`jobs/${part(one.job_id)}`)} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

/** Chips for the states of the last runs. A state without workflows is shown only while it is chosen. */
function States({ sums, chosen }) {
  const asked = chosen.split(",");
  const shown = STATES.filter((one) => sums[one] || asked.includes(one));
  const counts = Object.fromEntries(shown.map((one) => [one, sums[one] ? `${sums[one].value.toLocaleString("en")}${sums[one].relation === "gte" ? "+" : ""}` : "0"]));
  return html`<${Chips} name="state" label="State of the last run" of=${shown} counts=${counts} draw=${(one) => WORDS[one] ?? one} />`;
}

function Nothing({ filtered, more }) {
  if (filtered) {
    return html`<${Empty} title=${more ? "No match among the workflows examined" : "No matching workflows"}><p>Change the filters, or${" "}
      <${Link} to="workflows">show all workflows<//>.</p><//>`;
  }
  return html`<${Empty} title="No workflows yet"><p>A workflow is a job with several nodes: the result of one node is the argument of the next. Write one in Python:</p>
    <div class="snippets"><${Snippet} title="etl.py" text=${EXAMPLE} /><${Snippet} title="Run it" text=${COMMANDS} /></div><//>`;
}
