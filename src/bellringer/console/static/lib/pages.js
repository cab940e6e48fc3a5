// Reads paginated lists. With a selective filter, a page may be short or empty and still have a next one.
import { get } from "./api.js";

const PAGE_LIMIT = 200; // items per request
const MAX_REQUESTS = 10; // requests per call

/** Returns up to `wanted` items of a list with the next cursor and the number of examined rows; all other fields come from the first page. */
export async function fetchPages(path, terms, wanted, stop) {
  const items = [];
  let first;
  let cursor;
  let scanned = 0;
  for (let requests = 0; requests < MAX_REQUESTS && (!first || (cursor && items.length < wanted)); requests += 1) {
    const page = await get(path, { ...terms, ...(first && { count: undefined }), limit: Math.min(wanted - items.length, PAGE_LIMIT), cursor }, stop);
    first ??= page;
    items.push(...page.items);
    cursor = page.next_cursor;
    scanned += page.scanned ?? 0;
  }
  return { ...first, items, next_cursor: cursor, scanned };
}

/** Formats a bounded count: "10,000 or more" if counting stopped there. */
export const formatCount = (count) => (count ? `${count.value.toLocaleString("en")}${count.relation === "gte" ? " or more" : ""}` : "–");
