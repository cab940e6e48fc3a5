// Server-sent events with fetch, which unlike EventSource can send the Authorization header and can be aborted.
import { Problem, headers, loginRequired, url } from "./api.js";
import { read } from "./json.js";

const LINE = /^(id|event|data): ?(.*)$/;

/** Yields the events of a stream as {id, event, data} until the server ends it. `last`: the id after which to resume. */
export async function* readEvents(path, terms, { signal, last } = {}) {
  const extraHeaders = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": String(last) }) };
  const response = await fetch(url(path, terms), { headers: headers(extraHeaders), signal, cache: "no-store" });
  if (response.status === 401) loginRequired.value = true;
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = Object.fromEntries(block.split("\n").map((line) => LINE.exec(line)?.slice(1)).filter(Boolean));
      if (found.data !== undefined) yield { id: found.id, event: found.event ?? "message", data: read(found.data) };
    }
  }
}
