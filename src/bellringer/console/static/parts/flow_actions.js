// What can be done to the nodes of a workflow run. What takes nothing away is done at once; the rest asks, and names what it concerns.
import { html, useState } from "../lib/html.js";
import { part, post } from "../lib/api.js";
import { JsonField } from "./arguments.js";
import { Ask } from "./ask.js";
import { attempt, confirm, show, tell } from "./dialog.js";
import { Select, Text, faultsAt } from "./field.js";
import { after } from "./flow_words.js";

const pathOf = (graph) => `runs/${part(graph.run_id)}`;

export function retryAll(graph, again) {
  return attempt(() => post(`${pathOf(graph)}/nodes/retry`, {}).then(again), "what did not go well runs again");
}

/** name: of the node, or of an element of it. Results that would be made anew are named first. */
export function retryNode(graph, node, name, again) {
  const act = () => post(`${pathOf(graph)}/nodes/retry`, { nodes: [name] }).then((answer) => (again(), answer));
  const later = after(graph, node.name);
  const made = [...(node.state === "succeeded" ? [node] : []), ...later.filter((one) => one.state === "succeeded")];
  if (!made.length) return attempt(act, `${name} runs again, and what comes after it`);
  return confirm({
    title: `Run ${name} again?`,
    verb: "Run again",
    note: `With all that comes after it. ${made.length === 1 ? "This one has succeeded, and is" : `These ${made.length} have succeeded, and are`} done once more:`,
    samples: made.map((one) => html`<code>${one.name}</code>`),
    act,
    done: `${name} runs again`,
  });
}

const ENDS = { succeeded: "has succeeded", dead: "has failed" };

export function askMark(graph, name, again) {
  show(`Say how ${name} ended`, function Mark({ close }) {
    const [state, choose] = useState("succeeded");
    const [result, give] = useState(null);
    const [reason, because] = useState("");
    async function act() {
      const body = { node: name, state, reason, ...(state === "succeeded" && { result }) };
      const answer = await post(`${pathOf(graph)}/nodes/mark`, body);
      tell(`${name} ${ENDS[state]}, by your word`);
      again();
      return answer;
    }
    const ready = reason.trim() && !(result instanceof Error);
    return html`<${Ask} close=${close} verb=${state === "dead" ? "Mark failed" : "Mark succeeded"} act=${act} ready=${ready}>${(faults) => html`
      <p class="mute">It is not run. What comes after it goes on from there; the audit keeps who said so, and why.</p>
      <${Select} label=${name} of=${ENDS} value=${state} set=${choose} faults=${faultsAt(faults, "/state")} />
      ${state === "succeeded" && html`<${JsonField} label="Result" hint="what those after it take" rows=${4} value=${result} set=${give}
        faults=${faultsAt(faults, "/result")} />`}
      <${Text} label="Reason" value=${reason} set=${because} required=${true} faults=${faultsAt(faults, "/reason")} />`}<//>`;
  });
}

export function askCancelNode(runId, name, again) {
  confirm({
    title: `Cancel ${name}?`,
    verb: "Cancel the node's run",
    note: "The workflow run goes on: what comes after it takes it as failed.",
    wantsReason: true,
    act: (reason) => post(`runs/${part(runId)}/cancel`, reason ? { reason } : {}).then((answer) => (again(), answer)),
    done: (answer) => (answer.state === "running" ? `${name} is asked to stop` : `${name} is cancelled`),
  });
}

export function askSignal(graph, signal, again) {
  show(`Send the signal ${signal}`, function Send({ close }) {
    const [payload, give] = useState(null);
    async function act() {
      const { taken } = await post(`${pathOf(graph)}/signals/${part(signal)}`, { payload });
      tell(taken ? `${signal} was taken` : `${signal} is kept until a node waits for it`);
      again();
      return true;
    }
    return html`<${Ask} close=${close} verb="Send" act=${act} ready=${!(payload instanceof Error)}>${(faults) => html`
      <p class="mute">The node that waits for it has the payload as its result.</p>
      <${JsonField} label="Payload" hint="JSON" rows=${4} value=${payload} set=${give} faults=${faultsAt(faults, "/payload")} />`}<//>`;
  });
}
