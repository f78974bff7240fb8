// Where a text occurs in a trace. No DOM.

/** Where `text` occurs in a step: nodes, tensors, partitions and failures; at most `most` of them, and how many in all. */
export function search(step, text, most = 200) {
  const wanted = text.trim().toLowerCase();
  const found = [];
  let total = 0;
  if (!wanted) return { found, total };
  const has = (s) => s.toLowerCase().includes(wanted);
  const add = (item) => {
    total++;
    if (found.length < most) found.push(item);
  };
  const { tables } = step;
  const strings = tables.strings.map(has); // few strings, many nodes
  const on = (f) => f && has(`${f.file}:${f.line} ${f.function} ${f.text}`);
  const frames = tables.frames.map(on);
  step.partitions.forEach((part, at) => {
    const reasons = part.reasons.some((r) => has(r.message) || has(r.operation) || on(r.frame));
    if (part.operations.some(has) || reasons || has(`partition ${part.id}`)) add({ is: "partition", at });
  });
  step.failures.forEach((f, at) => {
    if (has(f.title) || has(f.code) || has(f.message) || on(f.frame)) add({ is: "failure", at });
  });
  step.captures.forEach((capture, c) => {
    capture.allocations.forEach((a, at) => {
      if (a.name && has(a.name)) add({ is: "allocation", capture: c, at });
    });
    for (let i = 0; i < capture.n; i++) {
      const frame = capture.columns.frame[capture.base + i];
      const index = capture.columns.index[capture.base + i];
      if (strings[capture.columns.name[capture.base + i]] || strings[capture.columns.module[capture.base + i]] || (frame !== null && frames[frame]) || `node ${index}` === wanted)
        add({ is: "node", capture: c, at: i });
    }
  });
  return { found, total };
}
