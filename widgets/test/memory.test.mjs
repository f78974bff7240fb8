import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryView } from "../src/memory.js";

const MIB = 2 ** 20;
const stripes = { length: 8592, unit: "events", total: { peakReserved: 20 * MIB, reserved: 18 * MIB } };
const heading = (name, width) => MemoryView.prototype.heading(name, stripes, width);

test("what stands above a picture takes as many lines as its width makes of it, and none is squeezed", () => {
  assert.deepEqual(heading(null, 700), ["8,592 events →   all pools: 20.0 MiB peak, 18.0 MiB at rest"]);
  for (const width of [100, 110, 140, 200, 280, 400]) {
    const lines = heading("captured as it is", width);
    for (const line of lines.filter((one) => one.includes(" MiB"))) assert.ok(line.length * 6 <= width, `${line} in ${width}`);
    assert.match(lines.join(" "), /captured as it is:.* 20\.0 MiB peak, 18\.0 MiB at rest/);
    assert.ok(lines.length <= 4);
  }
});
