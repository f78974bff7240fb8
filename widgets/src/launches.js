// The launches of a trace: when each was, and which addresses it wrote in the place of which. No DOM.

export class Launches {
  constructor() {
    this.count = this.still = this.bytes = 0;
    /** @type {number[]} */
    this.times = [];
    /** @type {Map<number, {count: number, still: number, bytes: number, times: number[], at: number[]}>} */
    this.perCapture = new Map();
    /** @type {Record<string, any[]>} */
    this.columns = { capture: [], call: [], moved: [], words_patched: [], bytes_copied: [], cpu_us: [], start_us: [], addresses: [], gpu_start_us: [], gpu_us: [], event: [] };
  }

  take(rows) {
    for (let i = 0; i < rows.capture.length; i++) {
      const id = rows.capture[i];
      if (!this.perCapture.has(id)) this.perCapture.set(id, { count: 0, still: 0, bytes: 0, times: [], at: [] });
      const mine = /** @type {any} */ (this.perCapture.get(id));
      mine.at.push(this.count);
      for (const sums of [this, mine]) {
        sums.count++;
        sums.bytes += rows.bytes_copied[i];
        if (!rows.words_patched[i]) sums.still++;
        if (rows.cpu_us[i] !== null) sums.times.push(rows.cpu_us[i]);
      }
      for (const [name, to] of Object.entries(this.columns)) to.push(rows[name]?.[i] ?? (name === "addresses" ? [] : null));
    }
  }

  /** When launches that are here already ran on the device. */
  time(columns) {
    for (const [name, values] of Object.entries(columns)) values.forEach((value, at) => (this.columns[name][at] = value));
  }

  one(at) {
    return Object.fromEntries(Object.entries(this.columns).map(([name, values]) => [name, values[at]]));
  }

  /**
   * Where each launch is on an axis: on the device's clock, else the host's, else in the order of launching.
   * @returns {{clock: "gpu" | "host" | "order", start: number[], end: number[], length: number}}
   */
  get axis() {
    const { gpu_start_us: device, gpu_us: took, start_us: host } = this.columns;
    const clock = device.some((us) => us !== null) ? "gpu" : host.some((us) => us !== null) ? "host" : "order";
    const from = clock === "gpu" ? device : clock === "host" ? host : device.map((_, at) => at);
    let last = 0;
    const start = from.map((us) => (last = us ?? last));
    const least = start.reduce((a, b) => Math.min(a, b), Infinity);
    const end = start.map((us, at) => us + (clock === "gpu" ? took[at] || 0 : clock === "order" ? 0.8 : 0));
    return { clock, start: start.map((us) => us - least), end: end.map((us) => us - least), length: Math.max(1, end.reduce((a, b) => Math.max(a, b), 0) - least) };
  }

  /** Launches of a graph, up to one, with the address that each slot had there, as long as addresses were kept. */
  bound(id, last = Infinity) {
    const { addresses, words_patched: words, event } = this.columns;
    /** @type {{at: number, moment: number | null, now: number[]}[]} */
    const found = [];
    /** @type {number[]} */
    let now = [];
    for (const at of this.perCapture.get(id)?.at ?? []) {
      const list = addresses[at];
      if (at > last || (words[at] && !list.length)) break;
      if (list.length) now = list.map((address, slot) => address || now[slot]);
      found.push({ at, moment: event[at], now });
    }
    return found;
  }

  /**
   * The slots of a launch: the address that it has now, the one that it had at the launch before, and the one at the first
   * launch of this graph, which a frozen graph would still have. Moved ones first. Null where addresses were not kept.
   * @returns {{slot: number, now: number, was: number, first: number, moved: boolean}[] | null}
   */
  slots(at) {
    const all = this.bound(this.columns.capture[at], at);
    const last = all.pop();
    if (!last || last.at !== at) return null;
    const was = all.length ? all[all.length - 1].now : [];
    const rows = last.now.map((now, slot) => ({ slot, now, was: was[slot] ?? 0, first: all.find((one) => one.now[slot])?.now[slot] ?? now, moved: now !== was[slot] })).filter((row) => row.now);
    return rows.length ? [...rows.filter((row) => row.moved), ...rows.filter((row) => !row.moved)] : null;
  }

  /** Which slots lay in a block of a pool: [capture, slot] each once. */
  within(block) {
    const found = new Map();
    for (const id of this.perCapture.keys())
      for (const { moment, now } of this.bound(id))
        now.forEach((address, slot) => {
          if (holds(block, address, moment)) found.set(`${id} ${slot}`, [id, slot]);
        });
    return [...found.values()];
  }
}

/**
 * Whether an address lay in a block, at a moment of the allocator's; where none is known, ever. What has come by the next moment
 * may have been there: where the allocator is read now and then, and on the simulated device nothing else can have that address.
 */
export function holds({ address: low, size, from, to, start }, address, moment) {
  return address >= low && address < low + size && (moment === null || (moment >= from + start - 1 && moment < to + start));
}
