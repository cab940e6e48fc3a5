// Lists, page by page. A page of a rare filter may be short, or empty, and still have a next one.
import { get } from "./api.js";

const LARGEST = 200; // items of one page
const MOST = 10; // requests for one look

/** The first items of a list, up to so many, with the cursor behind them, and how many were looked at; the rest is as the first page told it. */
export async function gather(path, terms, wanted, stop) {
  const items = [];
  let first;
  let cursor;
  let scanned = 0;
  for (let asked = 0; asked < MOST && (!first || (cursor && items.length < wanted)); asked += 1) {
    const page = await get(path, { ...terms, ...(first && { count: undefined }), limit: Math.min(wanted - items.length, LARGEST), cursor }, stop);
    first ??= page;
    items.push(...page.items);
    cursor = page.next_cursor;
    scanned += page.scanned ?? 0;
  }
  return { ...first, items, next_cursor: cursor, scanned };
}

/** A count as it is told: "10,000 or more" where not all were counted. */
export const counted = (count) => (count ? `${count.value.toLocaleString("en")}${count.relation === "gte" ? " or more" : ""}` : "–");
