// The arguments of a task, as a form generated from the task's JSON Schema, or as JSON.
import { html, useEffect, useId, useState } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { read, write } from "../lib/json.js";
import { Field } from "./field.js";

const NUMBER = /^\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*$/;

/** The task as described by its workers; null if no worker has described it. */
export function useTask(name) {
  return useData(async (stop) => {
    if (!name) return null;
    try {
      return await get(`tasks/${part(name)}`, {}, stop);
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }, [name], { once: true });
}

/** Resolves references and nullable types of a schema. */
function resolveSchema(schema, defs) {
  if (schema?.$ref) return resolveSchema({ ...defs?.[schema.$ref.split("/").pop()], ...schema, $ref: undefined }, defs);
  const others = schema?.anyOf?.filter((one) => one.type !== "null");
  if (others?.length === 1) return resolveSchema({ ...others[0], ...schema, anyOf: undefined }, defs);
  return schema ?? {};
}

/** Parses the text of a field: undefined for an omitted value, an Error for invalid input. */
function parse(text, schema, required) {
  if (text === "" && !(required && schema.type === "string")) return undefined;
  if (schema.enum) return schema.enum.find((one) => String(one) === text);
  if (schema.type === "string") return text;
  if (schema.type === "boolean") return text === "true";
  if (schema.type === "integer" || schema.type === "number") return NUMBER.test(text) ? read(text.trim()) : new Error(`${text} is not a number`);
  try {
    return read(text);
  } catch {
    return new Error("invalid JSON");
  }
}

const SIMPLE = ["string", "boolean", "integer", "number"];
const textOf = (value, schema) => (value === undefined ? "" : SIMPLE.includes(schema.type) || schema.enum ? String(value) : write(value, 2));

function Argument({ name, schema, required, value, set, faults }) {
  const [text, setText] = useState(() => textOf(value, schema));
  const parsed = parse(text, schema, required);
  const wrong = parsed instanceof Error ? [{ detail: parsed.message }] : [];
  const missing = required && parsed === undefined;
  function typed(next) {
    setText(next);
    set(parse(next, schema, required));
  }
  const fallback = schema.default === undefined ? "" : `default: ${write(schema.default)}`;
  const hint = [schema.title, schema.description, schema.format, fallback].filter(Boolean).join(" · ");
  const choices = schema.enum?.map(String) ?? (schema.type === "boolean" ? ["true", "false"] : null);
  const label = html`<span><code>${name}</code> <span class="mute">
    ${schema.enum ? "one of" : schema.type ?? "JSON"}${required ? "" : ", optional"}</span></span>`;
  return html`<${Field} label=${label} hint=${hint} faults=${[...wrong, ...faults]}>${(named) => {
    if (choices) {
      return html`<select ...${named} value=${text} onChange=${(event) => typed(event.target.value)}>
        <option value="">${required ? "choose" : "omit"}</option>${choices.map((one) => html`<option value=${one} selected=${one === text}>
          ${one}</option>`)}</select>`;
    }
    if (SIMPLE.includes(schema.type)) {
      return html`<input ...${named} value=${text} required=${missing} inputmode=${schema.type === "string" ? undefined : "decimal"} autocomplete="off"
        onInput=${(event) => typed(event.target.value)} />`;
    }
    return html`<textarea ...${named} rows="3" spellcheck=${false} required=${missing} value=${text} onInput=${(event) => typed(event.target.value)}>
      </textarea>`;
  }}<//>`;
}

/** A JSON field: `set` receives the value, or an Error while the text is invalid. */
export function JsonField({ label, value, set, hint, faults = [], rows = 6 }) {
  const [text, setText] = useState(() => write(value, 2) ?? "");
  const [wrong, setWrong] = useState("");
  function typed(event) {
    setText(event.target.value);
    try {
      set(read(event.target.value));
      setWrong("");
    } catch (error) {
      setWrong(error.message);
      set(new Error(error.message));
    }
  }
  return html`<${Field} label=${label} hint=${hint} wide=${true} faults=${wrong ? [{ detail: wrong }] : faults}>
    ${(named) => html`<textarea ...${named} rows=${rows} spellcheck=${false} value=${text} onInput=${typed}></textarea>`}<//>`;
}

/**
 * task: the response of GET tasks/{name}, or null; value: the keyword arguments. `set(kwargs)` receives every change, `refuse(names)` the names
 * with invalid input. Arguments that the schema does not contain are kept and shown in the JSON view.
 */
export function Arguments({ task, value, set, refuse, faults = () => [] }) {
  const schema = task?.schema;
  const properties = Object.entries(schema?.properties ?? {});
  const known = schema && (properties.length > 0 || schema.additionalProperties === false);
  const extra = Object.keys(value ?? {}).some((name) => !(name in (schema?.properties ?? {})));
  const [raw, setRaw] = useState(false);
  const [wrong, setWrong] = useState({});
  const id = useId();
  const isRaw = raw || !known || extra;
  useEffect(() => refuse(Object.keys(wrong).filter((name) => wrong[name])), [wrong]);
  useEffect(() => setWrong({}), [isRaw, task?.name]);
  function change(name, next) {
    setWrong((old) => ({ ...old, [name]: next instanceof Error }));
    if (next instanceof Error) return;
    const { [name]: _old, ...rest } = value ?? {};
    set(next === undefined ? rest : { ...rest, [name]: next });
  }
  function whole(next) {
    const bad = next instanceof Error || typeof next !== "object" || next === null || Array.isArray(next);
    setWrong({ "": bad });
    if (!bad) set(next);
  }
  const unknown = task ? "this task does not describe its arguments" : "no worker has described this task yet, so its arguments are unknown";
  const note = known ? "a JSON object" : unknown;
  return html`<fieldset class="arguments" aria-describedby=${id}><legend>Arguments</legend>
    ${known && html`<label class="switch"><input type="checkbox" checked=${isRaw} disabled=${extra} onChange=${() => setRaw(!raw)} /> As JSON</label>`}
    <small id=${id} class="mute">${extra && known ? "some of these arguments are not in the task's schema" : task?.doc?.split("\n")[0] ?? ""}</small>
    ${isRaw
      ? html`<${JsonField} key=${`raw-${task?.name}`} label="Keyword arguments" value=${value ?? {}} set=${whole} hint=${note}
        faults=${wrong[""] ? [{ detail: "keyword arguments must be an object" }] : faults("")} />`
      : properties.length === 0
        ? html`<p class="mute">This task has no arguments.</p>`
        : properties.map(([name, one]) => html`<${Argument} key=${`${task.name}/${name}`} name=${name} schema=${resolveSchema(one, schema.$defs)}
          required=${schema.required?.includes(name) ?? false}
            value=${value?.[name]} set=${(next) => change(name, next)} faults=${faults(name)} />`)}
  </fieldset>`;
}
