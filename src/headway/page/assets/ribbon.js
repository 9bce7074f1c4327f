// The chosen request's life to scale, every interval with its milliseconds, and below it what `headway why` says.
import { requestColour } from "page/colours.js";
import { duration } from "page/numbers.js";
import { prepare } from "page/tip.js";

const HEIGHT = 40;
const LISTED = 60;
const WORK = ["prefill", "decode", "recompute", "evaluate", "encode", "update", "decode_pixels"];

export class RibbonView {
  constructor({ canvas, told, intervals, why, words, tip, theme }) {
    Object.assign(this, { _canvas: canvas, _told: told, _list: intervals, _why: why, _tip: tip, _theme: theme });
    this._words = words;
    this._segments = [];
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => tip.hide());
  }

  // `view` is the chosen request's, or null.
  draw(view, hold) {
    const { context, width } = prepare(this._canvas, HEIGHT);
    this._segments = [];
    if (!view) {
      this._clear();
      return;
    }
    const { whole, due } = span(view);
    const scale = width / Math.max(whole, 1e-6);
    let at = 0;
    for (const interval of view.intervals) {
      const segment = { interval, from: at * scale, to: (at + interval.ms) * scale };
      this._segments.push(segment);
      this._segment(context, segment);
      at += interval.ms;
    }
    context.fillStyle = requestColour(hold.hue);
    context.fillRect(0, HEIGHT - 3, view.elapsed_ms * scale, 3);
    if (due !== null) this._due(context, Math.min(due * scale, width - 2));
  }

  // The words below, which need not change with every frame.
  tell(view) {
    if (!view) return;
    setText(this._told, `${view.id}, ${duration(view.elapsed_ms)}`);
    const hidden = Math.max(0, view.intervals.length - LISTED);
    const rows = view.intervals.slice(hidden).map((interval) => ({
      kind: kind(interval), name: interval.name, of: interval.on ? `${interval.on}: ${interval.rule}` : "",
      ms: duration(interval.ms),
    }));
    if (hidden) rows.unshift({ kind: "other", name: `${hidden} earlier`, of: "", ms: "" });
    update(this._list, rows, interval);
    update(this._why, this._words.why(view), (element, text) => setText(element, text), "p");
    const label = `${view.id}: ${rows.map((row) => `${row.name} ${row.of} ${row.ms}`).join(", ")}`;
    const due = view.deadline ? `, deadline at ${duration(view.deadline.ms)}` : "";
    this._canvas.setAttribute("aria-label", label + due);
  }

  _clear() {
    this._told.textContent = "choose a request";
    this._canvas.setAttribute("aria-label", "no request is chosen");
    this._list.replaceChildren();
    this._why.replaceChildren();
  }

  _segment(context, { interval, from, to }) {
    const width = Math.max(0.5, to - from);
    context.fillStyle = this._theme.interval(interval);
    context.fillRect(from, 0, width, HEIGHT - 5);
    if (interval.on) this._hatch(context, from, width);
    const text = interval.on ? `${interval.name}: ${interval.on}` : interval.name;
    context.font = "600 11px system-ui, sans-serif";
    context.textBaseline = "middle";
    if (context.measureText(text).width + 12 > width) return;
    if (interval.on) {
      context.fillStyle = this._theme.interval(interval);
      context.fillRect(from + 3, 8, context.measureText(text).width + 8, HEIGHT - 21);
    }
    context.fillStyle = "#fff";
    context.fillText(text, from + 7, (HEIGHT - 4) / 2);
  }

  // Waits are hatched, so that they can be told from work without colours too.
  _hatch(context, from, width) {
    context.save();
    context.beginPath();
    context.rect(from, 0, width, HEIGHT - 5);
    context.clip();
    context.strokeStyle = this._theme.panel;
    context.globalAlpha = 0.5;
    context.lineWidth = 1;
    context.beginPath();
    for (let x = from - HEIGHT - (from % 6); x < from + width; x += 6) {
      context.moveTo(x, HEIGHT);
      context.lineTo(x + HEIGHT, 0);
    }
    context.stroke();
    context.restore();
  }

  // When the complete answer is due.
  _due(context, x) {
    context.fillStyle = this._theme.ink;
    context.fillRect(x, 0, 2, HEIGHT);
  }

  _point(event) {
    const x = event.clientX - this._canvas.getBoundingClientRect().left;
    const found = this._segments.find((segment) => x >= segment.from && x <= Math.max(segment.to, segment.from + 2));
    if (!found) {
      this._tip.hide();
      return;
    }
    const { name, on, rule, ms } = found.interval;
    this._tip.show(event.clientX, event.clientY, [name, ...(on ? [`${on}: ${rule}`] : []), `${ms.toFixed(3)} ms`]);
  }
}

// How much of time is drawn: a life so far, and the deadline, once it is no further off than the life is long.
function span({ elapsed_ms: elapsed, deadline }) {
  const near = deadline && deadline.ms <= 2 * elapsed;
  return { whole: near ? Math.max(elapsed, deadline.ms) : elapsed, due: near ? deadline.ms : null };
}

function kind({ name, on }) {
  return on ?? (WORK.includes(name) ? name : "other");
}

function interval(element, { kind, name, of, ms }) {
  if (!element.firstChild) element.append(...["b", "span", "i"].map((tag) => document.createElement(tag)));
  const [first, middle, last] = element.children;
  element.className = kind;
  setText(first, name);
  setText(middle, of);
  setText(last, ms);
}

// As many children as rows, each written by `write`; only what is different is touched.
export function update(parent, rows, write, tag = "li") {
  while (parent.children.length > rows.length) parent.lastElementChild.remove();
  while (parent.children.length < rows.length) parent.append(document.createElement(tag));
  rows.forEach((row, place) => write(parent.children[place], row));
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
