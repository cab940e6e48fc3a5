// The graph of a workflow: each version, and the difference between two versions as drawing and text.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get } from "../lib/api.js";
import { write } from "../lib/json.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { formatTime } from "../lib/time.js";
import { CopyAs, DescriptionList, Json, Loading } from "../parts/elements.js";
import { Changes } from "../parts/diff.js";
import { KINDS, RULES, edgesOf, shellQuote } from "../parts/node_text.js";
import { Graph } from "../parts/graph.js";
import { pathOf } from "../parts/job_actions.js";
import { Segments, segment } from "../parts/segmented_control.js";

const DIRECTIONS = { lr: html`<${Icon} name="arrow-right" /> Across`, tb: html`<${Icon} name="arrow-down" /> Down` };
const MARKS = { added: ["plus", "good", "+"], removed: ["minus", "bad", "−"], changed: ["edit", "warn", "~"], same: ["", "mute", ""] };

export function GraphTab({ job }) {
  const known = useData((stop) => get(`${pathOf(job)}/graph/versions`, {}, stop), [job.job_id, job.revision], { once: true });
  const version = query.value.get("version") ?? String(job.workflow.version);
  const against = query.value.get("against") ?? "";
  const found = useData((stop) => read(job, version, against, stop), [job.job_id, job.revision, version, against], { once: true });
  return html`<div class="tools">
      <${Versions} label="Version" of=${known.data?.items ?? []} chosen=${version} choose=${(one) => setQuery({ version: one, node: "" })} />
      <${Versions} label="Compare with" of=${(known.data?.items ?? []).filter((one) => String(one.version) !== version)} chosen=${against} none="none"
        choose=${(one) => setQuery({ against: one, node: "" })} />
      <${Segments} name="dir" label="Direction" of=${DIRECTIONS} usual="lr" />
      <span class="gap"></span><${Copies} job=${job} version=${version} against=${against} /></div>
    <${Loading} of=${found}>${(data) => html`<${GraphWithPanel} ...${data} />`}<//>`;
}

async function read(job, version, against, stop) {
  const path = `${pathOf(job)}/graph`;
  if (!against) return { graph: await get(path, { version }, stop), before: null, difference: null };
  const [graph, before, difference] = await Promise.all([
    get(path, { version }, stop), get(path, { version: against }, stop), get(`${path}/difference`, { from: against, to: version }, stop),
  ]);
  return { graph, before, difference };
}

function Versions({ label, of, chosen, choose, none }) {
  const title = (one) => `${one.version} · ${formatTime(one.effective_at).slice(0, 16)} · ${one.who}`;
  return html`<label class="choice version"><span>${label}</span><select value=${chosen} onChange=${(event) => choose(event.target.value)}>
    ${none && html`<option value="" selected=${!chosen}>${none}</option>`}
    ${!none && !of.some((one) => String(one.version) === chosen) && html`<option value=${chosen} selected=${true}>${chosen}</option>`}
    ${of.map((one) => html`<option value=${String(one.version)} selected=${String(one.version) === chosen}>${title(one)}</option>`)}</select></label>`;
}

function Copies({ job, version, against }) {
  if (!against) return html`<${CopyAs} cli=${`bellringer workflows graph ${shellQuote(job.name)} --version ${version}`}
    path=${`${pathOf(job)}/graph?version=${version}`} />`;
  return html`<${CopyAs} cli=${`bellringer workflows diff ${shellQuote(job.name)} ${against} ${version}`}
    path=${`${pathOf(job)}/graph/difference?from=${against}&to=${version}`} />`;
}

const lineOf = (edge) => `${edge.from}\n${edge.to}`;

/** Difference per node and edge: name → mark. */
function diffMarks(difference) {
  const nodes = new Map();
  const edges = new Map();
  if (difference) {
    for (const name of difference.added) nodes.set(name, "added");
    for (const name of difference.removed) nodes.set(name, "removed");
    for (const { name } of difference.changed) nodes.set(name, "changed");
    for (const edge of difference.edges_removed) edges.set(lineOf(edge), "removed");
    for (const edge of difference.edges_added) edges.set(lineOf(edge), "added");
  }
  return { nodes, edges };
}

function boxOf(node, mark) {
  const [icon, tone] = mark ? MARKS[mark] : ["", "calm"];
  const about = node.kind === "task" ? node.task : (node.task ?? node.kind);
  return {
    name: node.name, kind: KINDS[node.kind], icon, tone, stack: node.map, mark, count: node.map ? "×n" : "",
    word: mark ? (mark === "same" ? "unchanged" : mark) : about, more: "",
    say: [`${node.name}: ${mark ? `${mark}, ` : ""}${about}`, node.map && "per element", node.undoes && `undoes ${node.undoes}`].filter(Boolean).join(", "),
  };
}

function GraphWithPanel({ graph, before, difference }) {
  const marks = diffMarks(difference);
  const gone = before?.nodes.filter((node) => marks.nodes.get(node.name) === "removed") ?? [];
  const nodes = [...graph.nodes, ...gone];
  const lost = difference?.edges_removed.filter((edge) => marks.edges.get(lineOf(edge)) === "removed") ?? [];
  const edges = [...edgesOf({ ...graph, nodes }), ...lost].map((edge) => {
    const mark = marks.edges.get(lineOf(edge));
    return mark ? { ...edge, look: mark, sign: MARKS[mark][2] } : edge;
  });
  const chosen = query.value.get("node") ?? "";
  const shown = nodes.find((node) => node.name === chosen);
  return html`${difference && html`<${Differences} of=${difference} />`}
    <div class="flow ${shown ? "with-panel" : ""}"><div class="flow-main">
      <${Graph} nodes=${nodes.map((node) => boxOf(node, difference && (marks.nodes.get(node.name) ?? "same")))} edges=${edges}
        direction=${segment("dir", DIRECTIONS, "lr")} chosen=${chosen} choose=${(node) => setQuery({ node })}
        label="Graph of the nodes: arrow keys move between nodes, Enter opens a node" />
      <p class="legend mute">${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}${graph.max_parallel ? `, at most ${graph.max_parallel} in parallel` : ""}${
        graph.output ? `, result of ${graph.output}` : ""}${Object.keys(graph.params).length ? `, parameters ${Object.keys(graph.params).join(", ")}` : ""}</p></div>
      ${shown && html`<${Panel} node=${shown} graph=${graph} before=${before} mark=${marks.nodes.get(chosen)} />`}</div>`;
}

/** The difference as text. */
function Differences({ of }) {
  const line = (edge) => `${edge.from} → ${edge.to}${edge.is === undefined ? "" : ` (= ${typeof edge.is === "string" ? edge.is : write(edge.is)})`}`;
  const rows = [
    ["added", "Nodes added", of.added], ["removed", "Nodes removed", of.removed],
    ["changed", "Nodes changed", of.changed.map((one) => `${one.name} (${one.fields.join(", ")})`)],
    ["added", "Edges added", of.edges_added.map(line)], ["removed", "Edges removed", of.edges_removed.map(line)],
    ["changed", "Workflow options changed", of.fields],
  ].filter(([, , list]) => list.length);
  if (!rows.length) return html`<p role="status">Versions ${of.from} and ${of.to} are the same.</p>`;
  return html`<section class="differs" aria-label=${`Differences between versions ${of.from} and ${of.to}`}><ul>
    ${rows.map(([mark, title, list]) => html`<li class="tone-${MARKS[mark][1]}"><${Icon} name=${MARKS[mark][0]} /> <strong>${title}:</strong>${" "}
      <span class="names">${list.slice(0, 50).join(", ")}${list.length > 50 ? `, and ${list.length - 50} more` : ""}</span></li>`)}</ul></section>`;
}

const declaredNode = (graph, name) => graph?.document.nodes.find((node) => node.name === name);

function Panel({ node, graph, before, mark }) {
  const [now, then] = [declaredNode(graph, node.name), declaredNode(before, node.name)];
  const fields = [...new Set([...Object.keys(then ?? {}), ...Object.keys(now ?? {})])].filter((name) => write(now?.[name]) !== write(then?.[name]));
  return html`<aside class="card panel" aria-label=${`node ${node.name}`}>
    <header><h2>${node.name}</h2><button type="button" class="quiet icon" aria-label="Close the node" onClick=${() => setQuery({ node: "" })}><${Icon} name="close" /></button></header>
    ${mark && html`<p class="tone-${MARKS[mark][1]}"><span aria-hidden="true">${MARKS[mark][0]}</span> ${mark}</p>`}
    <${DescriptionList} of=${[
      ["Kind", node.map ? `${node.kind}, one per element` : node.kind], node.task && ["Task", html`<code>${node.task}</code>`],
      node.undoes ? ["Undoes", node.undoes] : ["Runs when", RULES[node.when] ?? node.when], node.pool && ["Pool", node.pool],
      node.max_items && ["Max. elements", node.max_items.toLocaleString("en")], node.max_parallel && ["Max. parallel", node.max_parallel],
    ]} />
    ${mark === "changed" && html`<${Changes} of=${fields.map((field) => ({ field, before: then?.[field], after: now?.[field] }))} />`}
    <h3>Declaration</h3><${Json} value=${now ?? then ?? null} label="Declaration of the node" /></aside>`;
}
