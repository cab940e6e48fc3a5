// Downloads a file from the API. A plain link cannot send the Authorization header.
import { Problem, headers, loginRequired, url } from "./api.js";

export async function download(path, terms, name) {
  const response = await fetch(url(path, terms), { headers: headers({ Accept: "*/*" }), cache: "no-store" });
  if (response.status === 401) loginRequired.value = true;
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await response.blob()), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
