// Server-sent events by fetch: unlike EventSource it can say who asks, and it ends when it is told to.
import { Problem, headers, locked, url } from "./api.js";
import { read } from "./json.js";

const LINE = /^(id|event|data): ?(.*)$/;

/** What a stream tells, one by one, as {id, event, data}. `last`: the id after which to go on. It is over when the server ends it. */
export async function* told(path, terms, { signal, last } = {}) {
  const more = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": String(last) }) };
  const answer = await fetch(url(path, terms), { headers: headers(more), signal, cache: "no-store" });
  if (answer.status === 401) locked.value = true;
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
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
