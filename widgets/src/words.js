// How things are said, in one place, with the same wording as the Python text views.

export function bytes(count) {
  let value = Math.abs(count);
  const sign = count < 0 ? "-" : "";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${sign}${value} B` : `${sign}${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${sign}${value.toFixed(1)} TiB`;
}

export function number(n) {
  return n.toLocaleString("en-US");
}

export function hex(address) {
  return `0x${address.toString(16)}`;
}

export function micros(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
  if (us >= 1000) return `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms`;
  return `${Number(us.toFixed(1))} µs`;
}

export function plural(count, noun) {
  if (count === 1) return `1 ${noun}`;
  if (/([xh]|ss)$/.test(noun)) return `${number(count)} ${noun}es`;
  return noun.endsWith("y") ? `${number(count)} ${noun.slice(0, -1)}ies` : `${number(count)} ${noun}s`;
}

/** A name that fits, with its two ends kept: kernels differ at both. */
export function short(name, width = 32) {
  const bare = name.replace(/\s+/g, " ").replace(/^void |\bat::native::|\(anonymous namespace\)::|unrolled_|vectorized_/g, "");
  if (bare.length <= width) return bare;
  const head = Math.floor(width / 2);
  return `${bare.slice(0, head)}…${bare.slice(bare.length - (width - head - 1))}`;
}

export function base(path) {
  return path.split(/[/\\]/).pop();
}

export function place(frame) {
  return `${base(frame.file)}:${frame.line}`;
}

/** Each name once, with its count. */
export function listing(names, most = 8) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  const shown = [...counts].slice(0, most).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name));
  if (counts.size > most) shown.push(`and ${counts.size - most} more`);
  return shown.join(", ");
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** A tensor as its user knows it: "blocks.3.up.weight [256x64] f32". */
export function owner({ role, name, index, shape, dtype }) {
  return [name || `${role} ${index}`, shape ? layout({ shape, dtype }) : ""].filter(Boolean).join(" ");
}

/** Whose memory a slot is: a tensor, or as many as lie in it. */
export function tenants(mine, slot) {
  if (mine.length === 1) return owner(mine[0]);
  return mine.length ? `${mine[0].role}, ${plural(mine.length, "tensor")}` : `slot ${slot}`;
}

export function layout({ shape, dtype }) {
  return `[${shape.join("x")}] ${dtype}`;
}

/** What a parameter word holds. */
export function wordMeaning(capture, word) {
  if (word.allocation !== null) {
    const memory = capture.allocations[word.allocation];
    if (!memory) return `allocation ${word.allocation}`;
    return `${owner(memory)}${word.delta ? ` + ${word.delta}` : ""}, ${bytes(memory.size)}`;
  }
  if (word.value === null) return "";
  return typeof word.value === "number" && Math.abs(word.value) >= 2 ** 32 ? hex(word.value) : String(word.value);
}
