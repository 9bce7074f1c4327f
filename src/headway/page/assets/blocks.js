// Each pool as a map: one cell per block, in the colour of its request. Pointing at one that waits for space adds the
// cells it lacks as ghosts, and dims all but those who hold what it lacks. Of several models each has its own map; a
// pool of bytes is one bar, and a model that keeps no state says what goes through it.
import { requestColour } from "page/colours.js";
import { amount, count } from "page/numbers.js";
import { prepare } from "page/tip.js";

const LARGEST = 42;
const SMALLEST = 3;
// Kept free below a map: for the blocks that somebody lacks.
const GHOST_ROWS = 2;
const GHOST_ROWS_OF_SEVERAL = 1;
const TITLE = 22;
const BYTES_BAR = 18;
const BETWEEN = 12;
const RATE_OVER_NS = 2e9;

export class BlocksView {
  constructor({ canvas, told, tip, theme, choose }) {
    Object.assign(this, { _canvas: canvas, _told: told, _tip: tip, _theme: theme });
    this._patterns = new Map();
    this._maps = [];
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("click", (event) => {
      const owner = this._at(event)?.cell.owners[0];
      if (owner) choose(owner.id);
    });
  }

  // `focus` is the record that is pointed at, or else the chosen one; null when there is neither. `steps` are recent.
  draw(story, focus, steps) {
    const models = [...story.models.values()];
    const lacks = focus?.verdict?.kind === "wait" && ["blocks", "reservation"].includes(focus.verdict.rule);
    const wait = lacks ? focus.verdict : null;
    const { context, width, height } = prepare(this._canvas, this._canvas.parentElement.clientHeight);
    this._maps = [];
    const mapped = models.filter((model) => model.mapped);
    const others = models.length - mapped.length;
    const titled = models.length > 1 || others > 0;
    const titles = (titled ? models.length : 0) * TITLE;
    const taken = titles + others * BYTES_BAR + (models.length - 1) * BETWEEN;
    const each = Math.max(40, Math.floor((height - taken) / Math.max(1, mapped.length)));
    const ghostRows = mapped.length > 1 ? GHOST_ROWS_OF_SEVERAL : GHOST_ROWS;
    let top = 0;
    for (const model of models) {
      if (titled) top = this._title(context, model, story, steps, top);
      if (model.mapped) {
        const own = focus?.model === model.name;
        const shape = fit(model.pool.total, width, each, ghostRows);
        this._maps.push({ model, top, shape });
        this._map(context, model, top, own ? focus : null, own ? wait : null);
        top += shape.height;
      } else if (model.levels.live + model.levels.free > 0) {
        this._bytes(context, model, top, width);
        top += BYTES_BAR;
      }
      top += BETWEEN;
    }
    this._tell(models, focus, wait);
  }

  _map(context, model, top, focus, wait) {
    const { pool } = model;
    const lit = wait ? new Set(wait.holders.map((holder) => holder.id)) : null;
    context.save();
    context.translate(0, top);
    for (let block = 0; block < pool.total; block += 1) {
      this._cell(context, block, pool.cell(block), lit, focus);
    }
    context.globalAlpha = 1;
    this._labels(context, pool.total);
    if (wait) this._ghosts(context, pool.total, wait);
    context.restore();
  }

  // The model's name, its pattern, and what a map cannot show.
  _title(context, model, story, steps, top) {
    context.textBaseline = "top";
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = this._theme.ink;
    context.fillText(model.name, 0, top + 2);
    const after = context.measureText(model.name).width + 8;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = this._theme.soft;
    const told = `${model.pattern ?? "text"} · ${through(model, story, steps) ?? levels(model)}`;
    context.fillText(told, after, top + 2, Math.max(60, this._canvas.clientWidth - after));
    return top + TITLE;
  }

  // Whose bytes are live is not told, only how many.
  _bytes(context, model, top, width) {
    const { live, reusable, free } = model.levels;
    const total = live + reusable + free;
    let from = 0;
    const { evaluate, faint } = this._theme;
    for (const [part, colour, alpha] of [[live, evaluate, 1], [reusable, evaluate, 0.32], [free, faint, 1]]) {
      context.fillStyle = colour;
      context.globalAlpha = alpha;
      context.fillRect(from, top, (part / total) * width, BYTES_BAR - 4);
      from += (part / total) * width;
    }
    context.globalAlpha = 1;
  }

  _cell(context, block, { state, owners, references }, lit, focus) {
    const { x, y, size } = this._place(block);
    const own = focus !== null && owners.some((hold) => hold.id === focus.id);
    const shown = lit ? owners.some((hold) => lit.has(hold.id)) : true;
    context.globalAlpha = state === "reusable" ? 0.32 : shown || state !== "live" ? 1 : 0.22;
    if (state === "free") context.fillStyle = this._theme.faint;
    else if (state === "unknown") context.fillStyle = this._pattern(context, this._theme.other, this._theme.faint);
    else if (!owners.length) context.fillStyle = this._theme.other;
    else context.fillStyle = this._fill(context, owners, references);
    context.fillRect(x, y, size, size);
    if (own && state === "live" && size >= 5) {
      context.strokeStyle = this._theme.ink;
      context.lineWidth = size >= 12 ? 2 : 1;
      const inset = context.lineWidth / 2;
      context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
    } else if (own && state === "live") {
      context.fillStyle = this._theme.ink;
      context.fillRect(x, y + size - 1, size, 1);
    }
  }

  // Shared blocks are striped: in both colours, or, shared by sequences of one request, in its own.
  _fill(context, owners, references) {
    const colour = requestColour(owners[0].hue);
    if (references < 2) return colour;
    return this._pattern(context, colour, owners[1] ? requestColour(owners[1].hue) : this._theme.panel);
  }

  _pattern(context, one, other) {
    const key = `${one} ${other}`;
    if (!this._patterns.has(key)) this._patterns.set(key, context.createPattern(stripes(one, other), "repeat"));
    return this._patterns.get(key);
  }

  _ghosts(context, total, wait) {
    const { columns, step, size, left, ghostRows } = this._maps.at(-1).shape;
    const first = Math.ceil(total / columns) * columns;
    const room = columns * ghostRows;
    context.strokeStyle = this._theme.space;
    context.lineWidth = size >= 12 ? 1.5 : 1;
    context.setLineDash(size >= 8 ? [3, 2] : []);
    const shown = Math.min(wait.short, room);
    for (let ghost = 0; ghost < shown; ghost += 1) {
      const { x, y } = this._place(first + ghost, 6);
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
    context.setLineDash([]);
    const { y } = this._place(first + (Math.ceil(shown / columns) - 1) * columns, 6);
    context.fillStyle = this._theme.space;
    context.font = "600 12px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillText(`${wait.short} short`, left, y + step + 4);
  }

  _labels(context, total) {
    const { columns, size, step, left } = this._maps.at(-1).shape;
    if (!left) return;
    context.fillStyle = this._theme.soft;
    context.font = "10px ui-monospace, monospace";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.ceil(14 / step);
    for (let row = 0; row * columns < total; row += every) {
      context.fillText(`${row * columns}`, left - 6, row * step + size / 2 + 0.5);
    }
    context.textAlign = "left";
  }

  _place(block, below = 0) {
    const { columns, step, size, left } = this._maps.at(-1).shape;
    return { x: left + (block % columns) * step, y: Math.floor(block / columns) * step + below, size };
  }

  _tell(models, focus, wait) {
    const told = models.length > 1
      ? count(models.length, "model")
      : models.map((model) => (model.mapped ? levels(model) : "")).join("");
    if (this._told.textContent !== told) this._told.textContent = told;
    const each = models.length > 1 ? models.map((model) => `${model.name}: ${levels(model)}`).join("; ") : told;
    const lack = wait ? `; ${focus.id} lacks ${wait.short}, outlined below` : "";
    const label = `Map of the pool: ${each}${lack}`;
    if (this._canvas.getAttribute("aria-label") !== label) this._canvas.setAttribute("aria-label", label);
    this._canvas.dataset.ghosts = wait ? `${wait.short}` : "0";
    this._canvas.dataset.lit = wait ? wait.holders.map((holder) => holder.id).join(" ") : "";
  }

  // The model, the number and the cell of the block at which the pointer is; null where there is none.
  _at(event) {
    const box = this._canvas.getBoundingClientRect();
    for (const { model, top, shape } of this._maps) {
      const column = Math.floor((event.clientX - box.left - shape.left) / shape.step);
      const row = Math.floor((event.clientY - box.top - top) / shape.step);
      const block = row * shape.columns + column;
      if (row >= 0 && column >= 0 && column < shape.columns && block < model.pool.total) {
        return { model, block, cell: model.pool.cell(block) };
      }
    }
    return null;
  }

  _point(event) {
    const at = this._at(event);
    if (at === null) {
      this._tip.hide();
      return;
    }
    const { state, owners, references } = at.cell;
    const names = owners.map((hold) => hold.id).join(", ");
    const told = {
      live: references > 1 ? `shared by ${references} sequences: ${names}` : `held by ${names}`,
      reusable: names ? `reusable, last held by ${names}` : "reusable",
      free: "free",
      unknown: "not told: it was taken before the oldest event that is kept",
    }[state];
    const whose = this._maps.length > 1 ? ` of ${at.model.name}` : "";
    this._tip.show(event.clientX, event.clientY, [`Block ${at.block}${whose}`, told]);
  }
}

function levels({ pool, pattern, levels: { live, reusable, free } }) {
  const unit = pattern === "image" ? "bytes" : "blocks";
  const total = unit === "bytes" ? live + reusable + free : pool.total;
  const [a, b, c, all] = [live, reusable, free, total].map((number) => amount(number, unit));
  return `${a} live, ${b} reusable, ${c} free of ${all}`;
}

// Of an encoder: what its latest step held, how fast it is, and who queues.
function through(model, story, steps) {
  if (model.pattern !== "embed") return null;
  const own = steps.filter((step) => step.model === model.name);
  const batch = count(own.at(-1)?.members.length ?? 0, "input");
  const recent = own.filter((step) => step.committed && story.at - step.committedAt < RATE_OVER_NS);
  const spent = recent.flatMap((step) => step.members).reduce((sum, [, , , positions]) => sum + positions, 0);
  const waiting = [...story.live.values()].filter((one) => one.model === model.name && one.stage === "waiting");
  const rate = Math.round(spent / (RATE_OVER_NS / 1e9));
  return `${batch} in the latest step, ${rate} positions/s, queue ${waiting.length}`;
}

// The largest cells with which the pool fits, and below it the ghosts with their number.
function fit(total, width, height, ghostRows) {
  for (let step = LARGEST; ; step -= 1) {
    const left = step >= 7 && total ? 34 : 0;
    const most = Math.max(1, Math.floor((width - left) / step));
    const columns = most >= 10 ? most - (most % 10) : most;
    const taken = (Math.ceil(total / columns) + ghostRows) * step + 24;
    if (step <= SMALLEST || taken <= height) {
      const size = step - (step >= 14 ? 3 : step >= 8 ? 2 : step >= 4 ? 1 : 0.5);
      return { columns, step, left, ghostRows, height: taken, size };
    }
  }
}

function stripes(one, other) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 8;
  const context = canvas.getContext("2d");
  context.fillStyle = one;
  context.fillRect(0, 0, 8, 8);
  context.strokeStyle = other;
  context.lineWidth = 2.6;
  context.beginPath();
  for (const from of [-8, 0, 8]) {
    context.moveTo(from - 1, 9);
    context.lineTo(from + 9, -1);
  }
  context.stroke();
  return canvas;
}
