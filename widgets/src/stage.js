// One launch as a picture: words that turn from yesterday's address to today's, beside a frozen graph that turns none.

import { write } from "./draw.js";
import { hex, short } from "./words.js";

/** What is said of a launch without addresses, by how many words it has written. */
export function unknown(words) {
  return words ? "Addresses are kept of a graph's first 256 launches only." : "It wrote no address.";
}
export const rowHeight = 34;
const HEAD = 38;
const MONO = 'ui-monospace, "DejaVu Sans Mono", monospace';

/**
 * @param rows of the launch's slots: {name, words, was, now, first, moved, marked}
 * @param turned how far the words that move have turned, from 0 to 1
 * @param more rows that are not drawn
 * @param none what is said where there are no rows
 */
export function drawLaunch(context, w, height, rows, turned, colours, more, none) {
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, w, height);
  const at = columns(w);
  const say = (text, x, y, colour, how = {}) => write(context, text, x, y, colour, how);
  if (!rows.length) return say(none, 14, 24, colours.soft);
  const narrow = w < 500;
  say(narrow ? "this launch" : "parameterized: words of this launch", 14, 12, colours.accent, { weight: "600 " });
  say(narrow ? "frozen" : "frozen: reads for ever", w - 14, 12, colours.bad, { weight: "600 ", align: "right" });
  if (!narrow) (at.box > 95 ? ["today's memory", "the launch before", "first launch"] : ["today", "before", "first"]).forEach((name, n) => say(name, at.boxes[n] + at.box / 2, 28, colours.soft, { align: "center" }));
  rows.forEach((row, n) => drawRow(context, row, HEAD + n * rowHeight, at, turned, colours, say));
  if (more > 0) say(`and ${more} more`, 14, height - 6, colours.soft);
  return undefined;
}

/** Where things are: names and words on the left, three places of memory, the frozen graph's address on the right. */
function columns(w) {
  const text = w < 620 ? 88 : 100; // of an address
  const name = Math.max(90, Math.min(300, w * 0.26));
  const left = name + text + 12;
  const right = w - text - 18;
  const box = (right - left - 66) / 3;
  return { name, word: name + 8, tip: left, right, box, text, boxes: [0, 1, 2].map((n) => left + 24 + n * (box + 9)) };
}

function drawRow(context, row, y, at, turned, colours, say) {
  const middle = y + rowHeight / 2;
  const moving = row.moved && row.was ? turned : 1;
  const mono = { font: MONO };
  if (row.marked) {
    context.strokeStyle = colours.ink;
    context.strokeRect(4, y + 1, at.right + at.text + 8, rowHeight - 2);
  }
  say(short(row.name, Math.floor((at.name - 14) / 6.2)), 14, middle - 6, colours.ink);
  say(row.words === 1 ? "1 word" : `${row.words} words`, 14, middle + 8, colours.soft, { size: 10 });
  const places = [row.now, row.was, row.first];
  // Memory: one box for each different address, as wide as the columns that have it.
  [0, 1, 2].forEach((n) => {
    if (!places[n] || (n && places[n] === places[n - 1])) return;
    let last = n;
    while (last < 2 && places[last + 1] === places[n]) last++;
    const [x, wide] = [at.boxes[n], at.boxes[last] + at.box - at.boxes[n]];
    const today = places[n] === row.now;
    context.fillStyle = today ? colours.chosen : colours.open2;
    context.strokeStyle = today ? colours.accent : colours.edge;
    context.lineWidth = 1.2;
    context.setLineDash(today ? [] : [4, 3]);
    context.beginPath();
    context.roundRect(x, y + 6, wide, rowHeight - 12, 5);
    context.fill();
    context.stroke();
    context.setLineDash([]);
    const said = today ? (n ? "the same" : row.moved ? "today" : "has not moved") : "not today's";
    if (wide > 5.7 * said.length) say(said, x + wide / 2, middle, today ? colours.ink : colours.soft, { align: "center" });
  });
  // The word: its digits turn one after the other, and its arrow goes from yesterday's memory to today's.
  const [from, to] = [hex(row.was || row.now), hex(row.now)];
  const digits = [...to].map((digit, k) => (moving * to.length > k ? digit : (from[k] ?? " "))).join("");
  say(tail(digits, at.text), at.word, middle, moving < 1 ? colours.mark : row.moved ? colours.accent : colours.soft, mono);
  const start = row.moved && row.was ? at.boxes[1] : at.boxes[0];
  const slow = moving < 0.5 ? 2 * moving * moving : 1 - 2 * (1 - moving) ** 2;
  arrow(context, at.tip, start + (at.boxes[0] - start) * slow, moving < 1 ? middle + 10 * (1 - slow) : middle, row.moved ? colours.accent : colours.edge);
  // The frozen graph: its arrow stays where it was at the first launch.
  const stale = row.first !== row.now;
  const edge = stale ? at.boxes[2] + at.box : at.boxes[places.lastIndexOf(row.now)] + at.box;
  arrow(context, at.right - 6, edge, middle, stale ? colours.bad : colours.edge, stale);
  say(tail(hex(row.first), at.text), at.right + 4, middle - (stale ? 6 : 0), stale ? colours.bad : colours.soft, mono);
  if (stale) say("stale", at.right + 4, middle + 8, colours.bad, { size: 10, weight: "600 " });
}

/** As much of an address as there is room for: its end, where addresses differ. */
function tail(text, width) {
  const room = Math.floor(width / 6.7);
  return text.length > room ? `…${text.slice(text.length - room + 1)}` : text;
}

function arrow(context, x1, x2, y, colour, dashed = false) {
  const side = x2 > x1 ? 1 : -1;
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.6;
  context.setLineDash(dashed ? [4, 3] : []);
  context.beginPath();
  context.moveTo(x1, y);
  context.lineTo(x2 - 5 * side, y);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x2, y);
  context.lineTo(x2 - 7 * side, y - 3.5);
  context.lineTo(x2 - 7 * side, y + 3.5);
  context.fill();
}
