// Trace files as `paramgraph_kit.save` writes them, made into the lines that the explorer is fed with. No DOM.

const VERSION = 5;
const TEMPLATE_NUMBERS = /L[a-z]n?\d+E/g;
const TELLING = /functor|kernel|scalar|cutlass|gemm|reduce/i;

/** The document in a trace file; throws an Error whose text says what is wrong with the file. */
export async function unpack(bytes) {
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) throw new Error("this is no trace file: choose one that paramgraph_kit.save wrote");
  let text;
  try {
    text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  } catch {
    throw new Error("the file is damaged or cut off: copy or download it again");
  }
  let document;
  try {
    document = JSON.parse(exact(text));
  } catch {
    throw new Error("the content is no JSON: record the trace again");
  }
  if (document?.format !== "pgtrace") throw new Error("gzipped JSON, but no trace: choose one that paramgraph_kit.save wrote");
  if (!(document.version >= 1 && document.version <= VERSION)) throw new Error(`format version ${document.version}, but this page reads 1 to ${VERSION}: take a newer page`);
  return document;
}

/** JSON whose integers that a JavaScript number cannot hold are hexadecimal text. Strings are matched to be left alone. */
function exact(text) {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${hexadecimal(BigInt(token))}"` : token,
  );
}

function hexadecimal(value) {
  return value < 0n ? `-0x${(-value).toString(16)}` : `0x${value.toString(16)}`;
}

/** Documents by name, as lines: one step for each. */
export function linesOf(documents, families) {
  const heads = documents.map(([name, { title, source }]) => ({ name, title, source: label(source), origin: recorded(source.origin) }));
  return [{ families, steps: heads }, ...documents.map(([, document], step) => body(document, step))];
}

function body(document, step) {
  const strings = document.strings.map(readable);
  const { captures, launches, pool_events } = document;
  const none = strings.push("") - 1;
  // What older versions lack.
  const nodes = captures.nodes.rows;
  const memory = captures.allocations.rows;
  const fill = (rows, name, like, value) => (rows[name] ??= rows[like].map(() => value));
  fill(nodes, "module", "index", none);
  fill(nodes, "source", "index", none);
  fill(memory, "shape", "index", null);
  fill(memory, "dtype", "index", none);
  fill(memory, "frame", "index", null);
  fill(launches, "start_us", "call", null);
  fill(launches, "addresses", "call", []);
  fill(launches, "gpu_start_us", "call", null);
  fill(launches, "gpu_us", "call", null);
  fill(launches, "event", "call", null);
  fill(pool_events, "frame", "time", null);
  const rows = document.partitions;
  fill(rows, "position", "id", -1);
  return {
    step, own: true, strings, frames: document.frames, captures, launches, pool_events, failures: document.failures,
    partitions: { at: rows.id.map((_, at) => at), rows },
    proved: document.proofs?.label.length ? proved(document.proofs, strings) : undefined,
  };
}

function proved({ label: labels, values, differing, largest }, strings) {
  const number = (n) => n.toLocaleString("en-US");
  const all = labels.map((text, i) => {
    const count = values[i] === 1 ? "1 value" : `${number(values[i])} values`;
    const by = largest[i] === null ? "not finite" : `by ${brief(largest[i])} at most`;
    const says = differing[i] ? `${number(differing[i])} of ${count} differ, ${by}` : values[i] ? `equal, ${count}` : "nothing to compare";
    return { equal: !differing[i], values: values[i], line: `${strings[text]}: ${says}` };
  });
  if (all.length <= 4) return all.map(({ line }) => line).join("; ");
  const equal = all.filter((one) => one.equal);
  const wrong = all.filter((one) => !one.equal);
  const how = wrong.length ? `${equal.length} of ${all.length} comparisons` : `all ${all.length} comparisons`;
  const sum = equal.reduce((total, one) => total + one.values, 0);
  return [`${how} equal, ${number(sum)} values`, ...wrong.map(({ line }) => line)].join("; ");
}

/** Three digits, as Python writes them. */
function brief(value) {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-4 && size < 1000)) return String(Number(value.toPrecision(3)));
  return value.toExponential(2).replace(/\.?0+e/, "e").replace(/e([+-])(\d)$/, "e$10$2");
}

function recorded(origin) {
  return origin === "live" ? "recorded" : origin;
}

function label({ origin, device, driver, torch, date }) {
  const where = driver === "-" ? device : `${device}, driver ${driver}`;
  return `${recorded(origin)}: ${where}, torch ${torch}, ${date} ${recorded(origin) === "recorded" ? "(live when recorded)" : "(loaded from a recording)"}`;
}

/** A kernel's name as C++ has it, without parameters, and with the template arguments that tell what it does. */
export function readable(name) {
  if (!name.startsWith("_Z")) return name;
  let rest = name.slice(name.startsWith("_ZN") ? 3 : 2);
  const own = [];
  for (let found = identifier(rest); found; found = identifier(rest)) {
    own.push(found);
    rest = rest.slice(String(found.length).length + found.length);
  }
  if (!own.length) return name;
  const inner = [];
  rest = rest.startsWith("I") ? rest.replace(TEMPLATE_NUMBERS, "_") : "";
  while (rest && inner.length < 2) {
    const found = identifier(rest);
    if (found && TELLING.test(found) && !found.startsWith("_GLOBAL__")) inner.push(found);
    rest = rest.slice(found ? String(found.length).length + found.length : 1);
  }
  const says = own.map((part) => (part.startsWith("_GLOBAL__") ? "(anonymous namespace)" : part)).join("::");
  return inner.length ? `${says}<${inner.join(", ")}>` : says;
}

function identifier(text) {
  const digits = /^\d+/.exec(text);
  if (!digits) return "";
  const found = text.slice(digits[0].length, digits[0].length + Number(digits[0]));
  return found.length === Number(digits[0]) && /^[A-Za-z_]\w*$/.test(found) ? found : "";
}
