// A file from the API. A link alone could not say who asks.
import { Problem, headers, locked, url } from "./api.js";

export async function download(path, terms, name) {
  const answer = await fetch(url(path, terms), { headers: headers({ Accept: "*/*" }), cache: "no-store" });
  if (answer.status === 401) locked.value = true;
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
