// Recent steps as bars, as wide as their time and as high as their positions against the budget; below them the
// chosen request's life on the same scale.
import { modelColour } from "page/colours.js";
import { prepare } from "page/tip.js";
import { count, duration } from "page/numbers.js";

const HEIGHT = 148;
const BARS = 104;
const TOP = 16;
const LANE = 9;
// One position of many is still to be seen.
const LOWEST = 3;
const SPANS_MS = [50, 100, 200, 500, 1000, 2000, 3000, 5000, 10000, 15000, 20000, 30000, 60000];
const KINDS = ["decode", "prefill", "recompute", "rejected", "evaluate"];
// A step ends where the next one starts, unless the replica was idle in between.
const IDLE_NS = 30e6;

export class StepsView {
  constructor({ canvas, told, tip, theme, goTo }) {
    Object.assign(this, { _canvas: canvas, _told: told, _tip: tip, _theme: theme });
    this._bars = [];
    this._spanMs = 1000;
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("click", (event) => {
      const bar = this._at(event);
      if (bar) goTo(bar.step.committed ?? bar.step.number);
    });
  }

  // `steps` end with the latest one that had begun at `now` (ns); `until` is the last event that is shown. Of several
  // `models` each has a colour, which marks its steps.
  draw(steps, now, until, chosen, models) {
    this._models = models;
    const { context, width } = prepare(this._canvas, HEIGHT);
    this._spanMs = this._span(steps, width);
    const x = (at) => width - 2 - ((now - at) / 1e6 / this._spanMs) * width;
    this._bars = [];
    this._axis(context, width);
    for (let place = steps.length - 1; place >= 0; place -= 1) {
      const step = steps[place];
      const next = steps[place + 1];
      const committed = step.committed !== null && step.committed <= until;
      const own = committed ? step.committedAt : now;
      const end = next && next.at - own < IDLE_NS ? next.at : own;
      const bar = { step, from: x(step.at), to: x(end), ms: (end - step.at) / 1e6, parts: parts(step, committed) };
      if (bar.to < 0) break;
      this._bars.push(bar);
      this._bar(context, bar, chosen);
    }
    if (chosen) this._life(context, chosen, now, x);
    this._tell(steps.at(-1), chosen);
  }

  // The span of time that the lane shows: so long that a usual step is some pixels wide, and no longer than all.
  _span(steps, width) {
    const recent = steps.slice(-40);
    const gaps = recent.slice(1).map((step, place) => (step.at - recent[place].at) / 1e6).sort((a, b) => a - b);
    if (gaps.length < 5) return this._spanMs;
    const usual = gaps[gaps.length >> 1] * (width / 8);
    const wanted = Math.min(usual, (steps.at(-1).at - steps[0].at) / 1e6);
    if (wanted < this._spanMs * 1.1 && wanted > this._spanMs / 3.5) return this._spanMs;
    return SPANS_MS.find((span) => span >= wanted) ?? SPANS_MS.at(-1);
  }

  _axis(context, width) {
    const theme = this._theme;
    context.font = "10px ui-monospace, monospace";
    context.textBaseline = "alphabetic";
    context.fillStyle = theme.soft;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    const every = this._spanMs / 5;
    for (let back = every; back < this._spanMs; back += every) {
      const at = Math.round(width - 2 - (back / this._spanMs) * width) + 0.5;
      context.beginPath();
      context.moveTo(at, TOP);
      context.lineTo(at, HEIGHT - 10);
      context.stroke();
      const text = back >= 1000 ? `−${+(back / 1000).toFixed(1)} s` : `−${back} ms`;
      context.fillText(text, at + 3, HEIGHT - 1);
    }
  }

  _bar(context, { step, from, to, parts }, chosen) {
    const theme = this._theme;
    const gap = to - from > 4 ? 1 : 0;
    const width = Math.max(1, to - from - gap);
    const scale = BARS / step.budget;
    let bottom = TOP + BARS;
    context.fillStyle = theme.faint;
    context.fillRect(from, TOP, width, BARS);
    const place = this._models.indexOf(step.model);
    if (this._models.length > 1 && place >= 0) {
      context.fillStyle = modelColour(place);
      context.fillRect(from, TOP - 5, width, 3);
    }
    for (const kind of KINDS) {
      if (!parts[kind]) continue;
      context.fillStyle = theme[kind];
      const height = Math.min(bottom - TOP, Math.max(LOWEST, parts[kind] * scale));
      context.fillRect(from, bottom - height, width, height);
      const own = chosen ? share(step, chosen.id, kind) : 0;
      if (own) {
        context.fillStyle = theme.ink;
        context.globalAlpha = 0.42;
        const high = Math.min(height, Math.max(LOWEST, own * scale));
        context.fillRect(from, bottom - high, width, high);
        context.globalAlpha = 1;
      }
      bottom -= height;
    }
  }

  _life(context, chosen, now, x) {
    let at = chosen.receivedAt;
    for (const interval of chosen.life(now)) {
      const from = Math.max(0, x(at));
      at += interval.ns;
      const to = x(at);
      if (to < 0) continue;
      context.fillStyle = this._theme.interval(interval);
      context.fillRect(from, TOP + BARS + 4, Math.max(0.5, to - from), LANE);
    }
  }

  _tell(step, chosen) {
    const budget = this._models.length > 1 ? "of its model's budget" : `of ${step?.budget}`;
    const bars = step ? `as wide as their time, as high as their positions (${budget})` : "none yet";
    const told = chosen && step ? `${bars}; below them ${chosen.id}` : bars;
    if (this._told.textContent === told) return;
    this._told.textContent = told;
    this._canvas.setAttribute("aria-label", `Lane of recent steps: ${told}`);
  }

  _at(event) {
    const x = event.clientX - this._canvas.getBoundingClientRect().left;
    return this._bars.find((bar) => x >= bar.from && x <= bar.to) ?? null;
  }

  _point(event) {
    const bar = this._at(event);
    if (bar) this._tip.show(event.clientX, event.clientY, describe(bar, this._models.length > 1));
    else this._tip.hide();
  }
}

// What the positions of a step were spent on: as planned until it has committed, then as it came out.
function parts(step, committed) {
  if (committed && step.parts) return step.parts;
  const sums = { decode: 0, prefill: 0, recompute: 0, rejected: 0, evaluate: 0 };
  if (committed && step.outcomes.length) {
    for (const [, , prefilled, decoded, recomputed, rejected] of step.outcomes) {
      sums.decode += decoded;
      sums.prefill += prefilled;
      sums.recompute += recomputed;
      sums.rejected += rejected;
    }
    step.parts = sums;
  } else {
    for (const [, , , positions, , doing] of step.members) sums[kindOf(doing)] += positions;
  }
  return sums;
}

function share(step, id, kind) {
  return step.members.reduce((sum, [member, , , positions, , doing]) => {
    return member === id && kindOf(doing) === kind ? sum + positions : sum;
  }, 0);
}

// An input, an update: whatever is evaluated whole.
function kindOf(doing) {
  return ["decode", "prefill", "recompute"].includes(doing) ? doing : "evaluate";
}

function describe({ step, ms, parts }, several) {
  const spent = KINDS.reduce((sum, kind) => sum + parts[kind], 0);
  const kinds = KINDS.filter((kind) => parts[kind]).map((kind) => `${kind} ${parts[kind]}`);
  const members = new Map();
  for (const [id, , , positions, , doing] of step.members) {
    const key = `${id} ${doing}`;
    members.set(key, (members.get(key) ?? 0) + positions);
  }
  const rows = [...members].map(([key, positions]) => `${key} ${positions}`);
  const waits = Object.entries(step.waits).map(([id, wait]) => `${id} waits for ${wait.on}, ${wait.rule}`);
  return [
    `Step ${step.step}${several ? ` of ${step.model}` : ""}, ${duration(ms)}`,
    `${spent} of ${count(step.budget, unitOf(step))}, ${Math.max(0, step.budget - spent)} unused`,
    kinds.join(", "),
    ...some(rows, 8),
    ...some(waits, 3),
  ];
}

function unitOf(step) {
  return step.members.some(([, , , , , doing]) => ["encode", "update", "decode_pixels"].includes(doing))
    ? "update" : "position";
}

function some(rows, most) {
  return rows.length > most ? [...rows.slice(0, most), `and ${rows.length - most} more`] : rows;
}
