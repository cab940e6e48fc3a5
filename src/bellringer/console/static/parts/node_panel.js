// Panel for one node of a workflow run: state with reasons, result, elements of a map, actions.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { setQuery, query } from "../lib/router.js";
import { RunTimeBar } from "./attempts.js";
import { CopyAs, DescriptionList, Json, Link, Loading, MoreButton, Time } from "./elements.js";
import { askCancelNode, askMark, askSignal, retryNode } from "./node_actions.js";
import { END_STATES, NodeDuration, NodeState, RULES, STATES, findNode, reasonOf, shellQuote } from "./node_text.js";
import { CANCELLABLE, RunId, errorSummary } from "./run_text.js";
import { Why } from "./why.js";

const PAGE = 50;
const CLOSED = { node: "", element: "" };

/** name: a node, or an element of a map. */
export function NodePanel({ graph, name, reload }) {
  const place = findNode(graph, name);
  return html`<aside class="card panel" aria-label=${`node ${name}`}>
    <header><h2>${name}</h2><button type="button" class="quiet icon" aria-label="Close the node" title="Close (Escape)"
      onClick=${() => setQuery(CLOSED)}><${Icon} name="close" /></button></header>
    ${!place
      ? html`<p class="mute">This workflow run has no such node.</p>`
      : place.element
        ? html`<${Element} key=${name} graph=${graph} node=${place.node} name=${name} reload=${reload} />`
        : html`<${Node} key=${name} graph=${graph} node=${place.node} reload=${reload} />`}
  </aside>`;
}

function Node({ graph, node, reload }) {
  return html`<${Head} node=${node} />
    <${Buttons} graph=${graph} node=${node} of=${node} name=${node.name} reload=${reload} />
    <${NodeFacts} node=${node} of=${node} />
    ${node.map && html`<${Elements} graph=${graph} node=${node} />`}
    <${NodeDetails} graph=${graph} of=${node} name=${node.name} />`;
}

/** An element of a map. It is loaded by name, because the graph contains only counts. */
function Element({ graph, node, name, reload }) {
  const found = useData((stop) => get(`runs/${part(graph.run_id)}/nodes`, { node: name }, stop), [name, JSON.stringify(node.map)]);
  const both = () => (reload(), found.reload());
  return html`<p><button type="button" class="quiet back" onClick=${() => setQuery({ node: node.name })}><${Icon} name="chevron-left" /> ${node.name}</button></p>
    <${Loading} of=${found}>${({ items: [one] }) => one && html`<${Head} node=${{ ...one, kind: node.kind }} />
      <${Buttons} graph=${graph} node=${node} of=${one} name=${name} reload=${both} />
      ${one.item !== null && html`<h3>Element</h3><pre class="json" tabindex="0" aria-label="Element">${one.item}</pre>`}
      <${NodeFacts} node=${node} of=${one} /><${NodeDetails} graph=${graph} of=${one} name=${name} />`}<//>`;
}

function Head({ node }) {
  return html`<p class="lead"><${NodeState} of=${node.state} /> <span class="mute"><${NodeDuration} node=${node} /></span>${node.reason && html`<br />
    <span>${reasonOf(node)}</span>`}</p>`;
}

/** node: the node of the graph; of: the same node, or one of its elements. */
function Buttons({ graph, node, of, name, reload }) {
  if (!may("operator")) return null;
  const isBegun = of.run_id !== null && CANCELLABLE.includes(of.state) && !node.map;
  const isElement = of !== node;
  const canMark = !graph.undoing && of.state !== "running" && !(node.map && !isElement);
  return html`<div class="tools" role="group" aria-label="Actions on the node">
    ${node.signal && !END_STATES.includes(of.state) && html`<button type="button" class="main" onClick=${() => askSignal(graph, node.signal, reload)}>
      Send signal…</button>`}
    ${END_STATES.includes(of.state) && !graph.undoing && html`<button type="button" class=${of.state === "dead" ? "main" : ""}
      onClick=${() => retryNode(graph, node, name, reload)}>Retry with downstream</button>`}
    ${canMark && html`<button type="button" onClick=${() => askMark(graph, name, reload)}>Mark…</button>`}
    ${(isBegun || (isElement && of.run_id && CANCELLABLE.includes(of.state))) && html`<button type="button" class="danger"
      onClick=${() => askCancelNode(of.run_id, name, reload)}>Cancel…</button>`}
  </div>`;
}

function NodeFacts({ node, of }) {
  const is = (one) => html`<button type="button" class="quiet link" onClick=${() => setQuery({ node: one })}>${one}</button> `;
  const at = (instant) => instant && html`<${Time} at=${instant} short=${false} />`;
  return html`<${DescriptionList} of=${[
      of.run_id && ["Run", html`<${RunId} id=${of.run_id} /> <${Link} to=${`runs/${part(of.run_id)}`}>attempts and logs<//>`],
      node.task && [node.kind === "workflow" ? "Workflow" : "Task", html`<code>${node.task}</code>`],
      of.attempt > 0 && ["Attempt", of.attempt], ["Started", at(of.started_at)], ["Ended", at(of.finished_at)],
      node.due_at && ["Until", at(node.due_at)], node.signal && ["Signal", html`<code>${node.signal}</code>`],
      node.undoes ? ["Undoes", is(node.undoes)] : ["Runs when", RULES[node.when] ?? node.when],
      node.parents.length > 0 && ["After", node.parents.slice(0, 20).map(is)], node.critical && ["Critical path", "yes"],
    ]} />`;
}

/** Reasons, run, and CLI and curl commands. Nodes of a run that was undone cannot be retried, so that is not offered. */
function NodeDetails({ graph, of, name }) {
  return html`${of.state !== "succeeded" && html`<h3>Why</h3><${Why} path=${`runs/${part(graph.run_id)}/nodes/why`} terms=${{ node: name }}
      offers=${(fix) => !graph.undoing || !fix.startsWith("bellringer workflows retry")} />`}
    ${of.run_id && html`<${NodeRunSummary} of=${of} />`}
    <p class="panel-copy"><${CopyAs} cli=${`bellringer workflows nodes ${graph.run_id} ${shellQuote(name)}`}
      path=${`runs/${part(graph.run_id)}/nodes?node=${encodeURIComponent(name)}`} /></p>`;
}

/** Summary of the node's run: time bar and outcome. */
function NodeRunSummary({ of }) {
  const found = useData((stop) => get(`runs/${part(of.run_id)}`, {}, stop), [of.run_id, of.state, of.attempt], { once: true });
  return html`<${Loading} of=${found}>${(run) => html`<${RunTimeBar} run=${run} />
    ${run.error && !of.reason && html`<h3>Error</h3><p class="run-error">${errorSummary(run)}</p>`}
    ${run.state === "succeeded" && html`<h3>Result</h3><${Json} value=${run.result} label="Result" />`}`}<//>`;
}

function Elements({ graph, node }) {
  const [wanted, setWanted] = useState(PAGE);
  const state = query.value.get("element") ?? "";
  const terms = { node: node.name, state };
  const found = useData((stop) => fetchPages(`runs/${part(graph.run_id)}/nodes`, terms, wanted, stop), [node.name, state, wanted, JSON.stringify(node.map)]);
  const held = STATES.filter((one) => one === state || node.map[one]);
  return html`<h3>Elements</h3>
    <div class="chips" role="group" aria-label="Elements by state">${held.map((one) => html`<button type="button" class="chip" aria-pressed=${one === state}
      onClick=${() => setQuery({ element: one === state ? "" : one })}>${one} <span class="count">${node.map[one]?.toLocaleString("en") ?? 0}</span></button>`)}</div>
    <${Loading} of=${found}>${({ items, next_cursor: cursor }) => html`
      ${items.length === 0 && html`<p class="mute">No elements${state && ` are ${state}`}.</p>`}
      <ul class="elements">${items.map((one) => html`<li key=${one.name}><button type="button" class="quiet" onClick=${() => setQuery({ node: one.name })}>
        <span class="number">[${one.index}]</span> <${NodeState} of=${one.state} /> <span class="mute"><${NodeDuration} node=${one} /></span>
        <code class="clip">${one.item}</code></button></li>`)}</ul>
      <${MoreButton} cursor=${cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}
