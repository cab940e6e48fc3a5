// The menu "…" of a page or a section: copies a link to it, the CLI command and the curl request that return the same data.
import { html } from "../lib/html.js";
import { write } from "../lib/json.js";
import { notify } from "./dialog.js";
import { copy } from "./elements.js";
import { Menu } from "./menu.js";
import { shareAddress } from "./share.js";

const copyItem = (icon, text, title, content, done) => ({ icon, text, title, act: () => copy(content()).then(() => notify(done)) });

function curlRequest({ method = "GET", path, body }) {
  const to = new URL(`../api/v1/${path.replace(/^\//, "")}`, document.baseURI);
  const data = body === undefined ? "" : ` -H 'Content-Type: application/json' -d '${write(body).replaceAll("'", "'\\''")}'`;
  return `curl ${method === "GET" ? "" : `-X ${method} `}'${to}' -H "Authorization: Bearer $BELLRINGER_KEY"${data}`;
}

/**
 * Items for a menu. cli: the command; method, path, body: the request; share: {ago, terms} of a link to the page, if it is worth sharing; `terms` may be a
 * function that is called when the link is copied.
 */
export function copyItems({ cli, share, ...request }) {
  const link = () => shareAddress({ ...share, terms: typeof share.terms === "function" ? share.terms() : share.terms });
  const curl = curlRequest(request);
  return [
    share && copyItem("link", "Copy link", "Relative times become fixed times.", link, "Copied the link"),
    cli && copyItem("copy", "Copy CLI", cli, () => cli, "Copied the command"),
    copyItem("copy", "Copy curl", curl, () => curl, "Copied the curl command"),
  ].filter(Boolean);
}

/** The menu of a page or section that has no other items. */
export const CopyAs = (of) => html`<${Menu} label="Copy as" items=${copyItems(of)} />`;
