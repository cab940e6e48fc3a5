// JSON without loss: integers that are too large for a number are read and written as BigInt.
const WHOLE = /^-?\d+$/;

export function read(text) {
  return JSON.parse(text, (_name, value, context) => {
    const large = typeof value === "number" && !Number.isSafeInteger(value) && WHOLE.test(context?.source ?? "");
    return large ? BigInt(context.source) : value;
  });
}

export function write(value, indent = 0) {
  const exact = [];
  const text = JSON.stringify(
    value,
    (_name, part) => (typeof part === "bigint" ? `\u0000${exact.push(String(part)) - 1}\u0000` : part),
    indent,
  );
  return text?.replace(/"\\u0000(\d+)\\u0000"/g, (_all, place) => exact[place]);
}
