// The graph view's picture: a scene, a palette and where we look, onto a canvas. No events.

import { CAPTURE, NODE, PARTITION, REPEAT, RUN } from "./layout.js";
import { bytes, layout, listing, number, place, plural, short } from "./words.js";

const FONT = 'system-ui, "DejaVu Sans", sans-serif';
const FEW_LINKS = 250; // each with its label
const PIECE = 512; // ends of lines that are drawn, or left out, together
const BETWEEN = 40; // pixels from box to box in which nothing else can stand
const MARGIN = 12; // pixels that a box draws around itself
const LABEL = 160; // pixels that a label may reach
const CHAR = 6.1; // of 11.5 px text, on average: measuring every label would cost more than drawing it

/** The lines that belong to a scene, made once, in pieces that can be left out; `far` is for when curves cannot be told apart. */
export function paths(scene) {
  const { links, chain } = scene;
  const pieces = [];
  for (let k = 0; k < links.length; k += PIECE) pieces.push(linesOf(scene.boxes, links, k, Math.min(links.length, k + PIECE)));
  return { pieces, chain: linesOf(scene.boxes, chain, 0, chain.length), faint: Math.max(0.08, Math.min(0.6, 9000 / links.length)) };
}

function linesOf(boxes, links, from, to) {
  const one = { near: new Path2D(), far: new Path2D(), heads: new Path2D(), left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (let k = from; k < to; k += 2) {
    const [a, b] = [boxes[links[k]], boxes[links[k + 1]]];
    curve(one.near, a, b);
    head(one.heads, a, b);
    line(one.far, a, b);
    one.left = Math.min(one.left, a.x, b.x);
    one.top = Math.min(one.top, a.y, b.y);
    one.right = Math.max(one.right, a.x + a.w + 50, b.x + b.w + 50);
    one.bottom = Math.max(one.bottom, a.y + a.h, b.y + b.h);
  }
  return one;
}

/** An arrowhead where a curve ends; left open, as closing takes Chromium longer than all the rest, and filling does it. */
function head(path, a, b) {
  const [x1, , x2, y2, down, bow] = ends(a, b);
  const side = down ? 0 : x2 > x1 && !bow ? 1 : -1;
  const [dx, dy] = down ? [0, 1] : [side, 0];
  path.moveTo(x2, y2);
  path.lineTo(x2 - 7 * dx - 3.5 * dy, y2 - 7 * dy - 3.5 * dx);
  path.lineTo(x2 - 7 * dx + 3.5 * dy, y2 - 7 * dy + 3.5 * dx);
}

/** Where a link begins and ends, whether it goes down, and how far it goes around what stands between. */
function ends(a, b) {
  const sheets = b.is === RUN && !b.open ? 6 : 0; // behind which an arrowhead would not be seen
  const [x1, y1, x2, y2] = [a.x + a.w / 2, a.y + a.h, b.x + b.w / 2, b.y - sheets];
  if (b.y >= y1 - 1) {
    if (y2 - y1 < BETWEEN || Math.abs(x1 - x2) > a.w / 2) return [x1, y1, x2, y2, true, 0];
    return [a.x + a.w, a.y + a.h / 2, b.x + b.w + sheets, b.y + b.h / 2, false, Math.min(42, 20 + (y2 - y1) / 20)];
  }
  if (b.x >= a.x + a.w) return [a.x + a.w, a.y + a.h / 2, b.x, b.y + b.h / 2, false, 0];
  return [a.x, a.y + a.h / 2, b.x + b.w, b.y + b.h / 2, false, 0];
}

function curve(path, a, b) {
  const [x1, y1, x2, y2, down, bow] = ends(a, b);
  const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
  path.moveTo(x1, y1);
  if (bow) path.bezierCurveTo(Math.max(x1, x2) + bow, y1, Math.max(x1, x2) + bow, y2, x2, y2);
  else if (down) path.bezierCurveTo(x1, y, x2, y, x2, y2);
  else path.bezierCurveTo(x, y1, x, y2, x2, y2);
}

function line(path, a, b) {
  const [x1, y1, x2, y2] = ends(a, b);
  path.moveTo(x1, y1);
  path.lineTo(x2, y2);
}

/**
 * The picture without marks. `look` is {scale, x, y}: a point p of the scene is at p * scale + (x, y) on the canvas.
 * @param part pixels of the canvas that are wanted: {x, y, w, h}
 */
export function drawGraph(context, ratio, look, part, scene, lines, colours, step, store) {
  const { scale } = look;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.paper;
  context.fillRect(part.x, part.y, part.w, part.h);
  aim(context, ratio, look);
  const near = sight(look, part, MARGIN);
  const seen = scene.boxes.filter((b) => b.x < near.right && b.x + b.w > near.left && b.y < near.bottom && b.y + b.h > near.top);
  drawOpen(context, seen, scale, colours, step);
  drawLines(context, lines, near, scale, colours);
  drawClosed(context, seen, scale, colours, step, store);
  if (scale > 0.55 && scene.carried.size <= FEW_LINKS) drawCarried(context, scene, scene.carried.keys(), sight(look, part, LABEL), colours, step);
}

/** What is selected, found and next to it: on top of the picture, made again at each move of the pointer. */
export function drawOver(context, size, look, scene, colours, step, marks) {
  aim(context, size.ratio, look);
  drawMarks(context, scene, look.scale, colours, marks);
  const { links } = scene;
  if (look.scale <= 0.55 || marks.selected < 0) return;
  const mine = [...scene.carried.keys()].filter((k) => links[k] === marks.selected || links[k + 1] === marks.selected);
  drawCarried(context, scene, mine, sight(look, { x: 0, y: 0, ...size }, LABEL), { ...colours, soft: colours.accent }, step);
}

function aim(context, ratio, { scale, x, y }) {
  context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * x, ratio * y);
}

function sight({ scale, x, y }, part, margin) {
  return {
    left: (part.x - margin - x) / scale, top: (part.y - margin - y) / scale,
    right: (part.x + part.w + margin - x) / scale, bottom: (part.y + part.h + margin - y) / scale,
  };
}

function drawOpen(context, seen, scale, colours, step) {
  context.lineWidth = Math.min(1.2, 1 / scale);
  for (const box of seen) {
    if (!box.open) continue;
    context.fillStyle = box.parent && !box.parent.parent ? colours.open2 : colours.open;
    if (box.is === REPEAT) context.fillStyle = colours.open;
    context.strokeStyle = colours.line;
    context.beginPath();
    context.roundRect(box.x, box.y, box.w, box.h, 8);
    context.fill();
    context.stroke();
    const size = Math.min(20, Math.max(12.5, 11 / scale));
    if (size * scale < 6 || box.w * scale < 60) continue;
    text(context, `▾ ${title(box, step)[0]}`, box.x + 12, box.y + 17, box.w - 24, size, colours.soft, "600 ");
  }
}

function drawLines(context, lines, seen, scale, colours) {
  const near = scale > 0.22;
  context.lineWidth = near ? Math.max(1.1, 0.8 / scale) : 0.7 / scale;
  context.strokeStyle = context.fillStyle = colours.edge;
  for (const one of lines.pieces) {
    if (one.left > seen.right || one.right < seen.left || one.top > seen.bottom || one.bottom < seen.top) continue;
    context.globalAlpha = near ? 1 : lines.faint;
    context.stroke(near ? one.near : one.far);
    context.globalAlpha = 1;
    if (near) context.fill(one.heads);
  }
  context.setLineDash([6, 5]);
  context.stroke(lines.chain.near);
  context.setLineDash([]);
  if (near) context.fill(lines.chain.heads);
}

/** What links carry, in words. */
function drawCarried(context, scene, keys, seen, colours, step) {
  context.font = `10px ${FONT}`;
  const taken = scene.carried.size > FEW_LINKS ? [] : scene.boxes.filter((box) => !box.open);
  scene.labels ||= new Map();
  // Where one stands does not depend on where somebody looks: each is placed once, those before it in its way.
  for (const k of taken.length && !scene.labels.size ? scene.carried.keys() : keys) if (!scene.labels.has(k)) scene.labels.set(k, labelOf(context, scene, k, step, taken));
  for (const k of keys) {
    const label = scene.labels.get(k);
    if (!label || label.x < seen.left || label.x > seen.right || label.y < seen.top || label.y > seen.bottom) continue;
    context.globalAlpha = 0.85;
    context.fillStyle = colours.paper;
    context.fillRect(label.x, label.y, label.w, label.h);
    context.globalAlpha = 1;
    write(context, label.words, label.x + 2, label.y + 6.5, colours.soft, { size: 10 });
  }
}

/** A link's label at its middle, or near an end, where nothing else stands; none where there is no room. */
function labelOf(context, scene, k, step, taken) {
  const [a, b] = [scene.boxes[scene.links[k]], scene.boxes[scene.links[k + 1]]];
  const tensors = scene.carried.get(k);
  const memory = step.captures[a.c]?.allocations[tensors[0]];
  const words = tensors.length > 1 ? plural(tensors.length, "tensor") : memory?.shape ? layout(memory) : memory ? bytes(memory.size) : "";
  if (!words) return null;
  const [x1, y1, x2, y2, down, bow] = ends(a, b);
  const w = context.measureText(words).width + 4;
  const places = [[bow ? Math.max(x1, x2) + bow * 0.7 : (x1 + x2) / 2, (y1 + y2) / 2], ...(down ? [[x2, y2 - 8], [x1, y1 + 8]] : [])];
  const labels = places.map(([x, y]) => ({ x: Math.min(x + 3, scene.width + MARGIN - w), y: y - 6.5, w, h: 13, words }));
  const free = labels.find((one) => taken.every((other) => one.x > other.x + other.w || one.x + w < other.x || one.y > other.y + other.h || one.y + 13 < other.y));
  if (free) taken.push(free);
  return free;
}

function drawClosed(context, seen, scale, colours, step, store) {
  const byFamily = new Map();
  const groups = [];
  for (const box of seen) {
    if (box.open) continue;
    if (box.is !== NODE) groups.push(box);
    else {
      const family = step.captures[box.c].family(box.a);
      if (!byFamily.has(family)) byFamily.set(family, []);
      byFamily.get(family).push(box);
    }
  }
  const round = scale > 0.3;
  const outlined = scale > 0.12;
  const lettered = scale > 0.68;
  context.lineWidth = 1.2;
  for (const [family, boxes] of byFamily) {
    const { fill, line: stroke } = colours.families[family];
    context.fillStyle = outlined ? fill : stroke;
    context.strokeStyle = stroke;
    if (!outlined) {
      for (const box of boxes) context.fillRect(box.x, box.y, box.w, box.h); // each alone: quicker than one path of many
      continue;
    }
    context.beginPath();
    for (const box of boxes) round ? context.roundRect(box.x, box.y, box.w, box.h, 5) : context.rect(box.x, box.y, box.w, box.h);
    context.fill();
    context.stroke();
    if (scale < 0.26) continue;
    for (const box of boxes) {
      const capture = step.captures[box.c];
      const name = short(capture.name(box.a), 24);
      if (!lettered) {
        text(context, name, box.x + 6, box.y + 15, box.w - 8, Math.min(26, 9 / scale), colours.ink);
        continue;
      }
      const lane = capture.lane(box.a) ? ` ⇉${capture.lane(box.a)}` : "";
      const word = capture.module(box.a) || store.families[family].word;
      text(context, name, box.x + 9, box.y + 12, box.w - 14, 11.5, colours.ink);
      text(context, word + lane, box.x + 9, box.y + 23.5, box.w - 14, 9.5, colours.soft);
    }
  }
  for (const box of groups) drawGroup(context, box, scale, colours, step, store);
}

function drawGroup(context, box, scale, colours, step, store) {
  const part = box.is === PARTITION ? step.partitions[box.at] : null;
  const refused = part && !part.graphed;
  context.fillStyle = refused ? colours.badback : colours.open2;
  context.strokeStyle = refused ? colours.bad : colours.soft;
  context.lineWidth = 1.3;
  if (box.is === RUN || box.is === REPEAT) {
    // A stack of sheets says "several of these" before any letter can be read.
    const sheets = box.is === RUN ? [6, 3] : [];
    for (const by of sheets) {
      context.beginPath();
      context.roundRect(box.x + by, box.y - by, box.w, box.h, 7);
      context.fill();
      context.stroke();
    }
  }
  context.setLineDash(refused ? [5, 4] : []);
  context.beginPath();
  context.roundRect(box.x, box.y, box.w, box.h, 7);
  context.fill();
  context.stroke();
  context.setLineDash([]);
  if (box.c >= 0 || (part && box.captures.length)) families(context, box, colours, step);
  if (scale < 0.3) return;
  const [first, second] = title(box, step, store);
  const opens = !refused && box.is !== NODE && (box.is !== PARTITION || box.captures.length);
  text(context, `${opens ? "▸ " : ""}${first}`, box.x + 12, box.y + 17, box.w - 20, Math.max(12.5, Math.min(22, 9 / scale)), refused ? colours.bad : colours.ink, "600 ");
  if (scale > 0.6) text(context, second, box.x + 12, box.y + 35, box.w - 20, 10.5, colours.soft);
}

/** The mix of kernels as a thin bar at the foot of a closed box. */
function families(context, box, colours, step) {
  const count = box.is === PARTITION ? Math.max(0, ...box.captures.map((c) => step.captures[c].n)) : box.b - box.a;
  const capture = step.captures[box.is === PARTITION ? box.captures[0] : box.c];
  if (!box.mix) {
    box.mix = new Map();
    for (let i = box.a; i < box.a + count && i < capture.n; i++) box.mix.set(capture.family(i), (box.mix.get(capture.family(i)) || 0) + 1);
  }
  const all = [...box.mix.values()].reduce((sum, n) => sum + n, 0);
  let x = box.x + 6;
  for (const [family, n] of [...box.mix].sort((a, b) => a[0] - b[0])) {
    const w = ((box.w - 12) * n) / all;
    context.fillStyle = colours.families[family].line;
    context.fillRect(x, box.y + box.h - 6, Math.max(0.5, w - 0.6), 3);
    x += w;
  }
}

function drawMarks(context, scene, scale, colours, marks) {
  const outline = (boxes, colour, width) => {
    context.strokeStyle = colour;
    context.lineWidth = Math.max(width, width / scale);
    context.beginPath();
    for (const box of boxes) context.roundRect(box.x - 2, box.y - 2, box.w + 4, box.h + 4, 7);
    context.stroke();
  };
  if (marks.around.size) {
    const path = new Path2D();
    for (let k = 0; k < scene.links.length; k += 2) {
      if (marks.around.has(scene.links[k]) && marks.around.has(scene.links[k + 1]) && (scene.links[k] === marks.selected || scene.links[k + 1] === marks.selected))
        curve(path, scene.boxes[scene.links[k]], scene.boxes[scene.links[k + 1]]);
    }
    context.strokeStyle = colours.accent;
    context.lineWidth = Math.max(1.8, 1.6 / scale);
    context.stroke(path);
  }
  if (marks.found.size) outline([...marks.found].map((i) => scene.boxes[i]), colours.mark, 2.4);
  const selected = scene.boxes[marks.selected];
  if (selected) outline([selected], colours.accent, 2.6);
}

export function title(box, step, store) {
  const capture = box.c >= 0 ? step.captures[box.c] : null;
  if (box.is === PARTITION) {
    const part = step.partitions[box.at];
    const says = part.graphed ? plural(part.kernels, "kernel") : `not graphed: ${part.reasons[0]?.message || "no reason given"}`;
    const nodes = box.captures.map((c) => `${number(step.captures[c].n)} nodes`).join(", ");
    return [`${part.graph} · partition ${part.id}`, box.captures.length ? `${says} · ${nodes}` : says];
  }
  const count = plural(box.b - box.a, "node");
  if (box.is === CAPTURE) return [`capture ${capture.id}`, `${count}, ${plural(capture.pointers, "word")} to patch`];
  if (box.is === NODE) return [capture.name(box.a), [store ? store.families[capture.family(box.a)].word : "", capture.module(box.a)].filter(Boolean).join(" · ")];
  const where = sourceLines(capture, box.a, box.is === RUN ? box.pieces[0].b : box.b);
  if (box.is === RUN) {
    const sizes = box.pieces.map(({ a, b }) => b - a);
    const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
    const each = least === most ? plural(most, "node") : `${least} to ${most} nodes`;
    const same = box.pieces.every((piece) => sameKernels(capture, box.pieces[0], piece));
    const name = box.base || (most === 1 ? short(capture.name(box.a), 22) : each);
    const what = box.base ? `${each} each${same ? "" : ", not all alike"}` : "";
    return [`${name} × ${box.pieces.length}`, [what, where].filter(Boolean).join(" · ") || (store ? kinds(capture, box.a, box.pieces[0].b, store) : "")];
  }
  if (box.is === REPEAT) return [box.base ? `${box.base}.${box.k}` : `${box.k + 1} of ${box.repeats}`, [count, where].filter(Boolean).join(" · ")];
  return [`nodes ${number(box.a)}–${number(box.b - 1)}`, where || count];
}

function sameKernels({ keys }, one, other) {
  if (one.b - one.a !== other.b - other.a) return false;
  for (let i = one.a; i < one.b; i++) if (keys[i] !== keys[other.a + i - one.a]) return false;
  return true;
}

function kinds(capture, a, b, store) {
  return listing(Array.from({ length: b - a }, (_, i) => store.families[capture.family(a + i)].word), 3);
}

/** The user's lines that a range of nodes comes from: "model.py:20-25". */
export function sourceLines(capture, a, b) {
  const files = new Map();
  for (let i = a; i < b; i++) {
    const frame = capture.frame(i);
    if (!frame) continue;
    const known = files.get(frame.file);
    if (!known) files.set(frame.file, [frame.line, frame.line, frame]);
    else [known[0], known[1]] = [Math.min(known[0], frame.line), Math.max(known[1], frame.line)];
  }
  return [...files.values()].map(([low, high, frame]) => place(frame).replace(/\d+$/, low === high ? low : `${low}–${high}`)).slice(0, 2).join(", ");
}

function text(context, words, x, y, width, size, colour, weight = "") {
  const room = Math.floor(width / ((CHAR * size) / 11.5));
  write(context, words.length > room ? `${words.slice(0, Math.max(1, room - 1))}…` : words, x, y, colour, { size, weight, width });
}

/** Text of one line, by its middle. */
export function write(context, words, x, y, colour, { size = 11, weight = "", align = "left", width = 1e6, font = FONT } = {}) {
  context.font = `${weight}${size}px ${font}`;
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(words, x, y, width);
}

