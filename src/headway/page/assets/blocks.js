// The pool as a map: one cell per block, in the colour of its request. Pointing at one that waits for space adds the
// cells it lacks as ghosts, and dims all but those who hold what it lacks.
import { requestColour } from "page/colours.js";
import { prepare } from "page/tip.js";

const LARGEST = 42;
const SMALLEST = 3;
const GHOST_ROWS = 2;

export class BlocksView {
  constructor({ canvas, told, tip, theme, choose }) {
    Object.assign(this, { _canvas: canvas, _told: told, _tip: tip, _theme: theme });
    this._patterns = new Map();
    this._shape = null;
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("click", (event) => {
      const block = this._at(event);
      const owner = block === null ? null : this._story.pool.cell(block).owners[0];
      if (owner) choose(owner.id);
    });
  }

  // `focus` is the record that is pointed at, or else the chosen one; null when there is neither.
  draw(story, focus) {
    this._story = story;
    const pool = story.pool;
    const wait = focus?.verdict?.kind === "wait" && focus.verdict.on === "space" ? focus.verdict : null;
    const { context, width, height } = prepare(this._canvas, this._canvas.parentElement.clientHeight);
    this._shape = fit(pool.total, width, height);
    const lit = wait ? new Set(wait.holders.map((holder) => holder.id)) : null;
    let unseen = this._unseen(story);
    for (let block = 0; block < pool.total; block += 1) {
      const cell = pool.cell(block);
      if (cell.state === "free" && unseen > 0 && !pool.last[block]) {
        cell.state = "unseen";
        unseen -= 1;
      }
      this._cell(context, block, cell, lit, focus);
    }
    context.globalAlpha = 1;
    this._labels(context, pool.total);
    if (wait) this._ghosts(context, pool.total, wait);
    this._tell(story, focus, wait);
  }

  // Blocks that are live, though nobody whose events are kept took them.
  _unseen(story) {
    const held = story.pool.holders.reduce((sum, holders) => sum + (holders ? 1 : 0), 0);
    return Math.max(0, story.levels.live - held);
  }

  _cell(context, block, { state, owners, references }, lit, focus) {
    const { x, y, size } = this._place(block);
    const own = focus !== null && owners.some((hold) => hold.id === focus.id);
    const shown = lit ? owners.some((hold) => lit.has(hold.id)) : true;
    context.globalAlpha = state === "reusable" ? 0.32 : shown || state !== "live" ? 1 : 0.22;
    if (state === "free") context.fillStyle = this._theme.faint;
    else if (state === "unseen") context.fillStyle = this._pattern(context, this._theme.other, this._theme.faint);
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
    const { columns, step, size, left } = this._shape;
    const first = Math.ceil(total / columns) * columns;
    const room = columns * GHOST_ROWS;
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
    const { columns, size, step, left } = this._shape;
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
    const { columns, step, size, left } = this._shape;
    return { x: left + (block % columns) * step, y: Math.floor(block / columns) * step + below, size };
  }

  _tell(story, focus, wait) {
    const { live, reusable, free } = story.levels;
    const levels = `${live} live, ${reusable} reusable, ${free} free of ${story.pool.total}`;
    this._told.textContent = levels;
    const ghosts = wait ? `${wait.short}` : "0";
    const lack = wait ? `; ${focus.id} lacks ${wait.short}, outlined below` : "";
    const label = `Map of the pool: ${levels}${lack}`;
    if (this._canvas.getAttribute("aria-label") !== label) this._canvas.setAttribute("aria-label", label);
    this._canvas.dataset.ghosts = ghosts;
    this._canvas.dataset.lit = wait ? wait.holders.map((holder) => holder.id).join(" ") : "";
  }

  _at(event) {
    if (!this._shape || !this._story) return null;
    const box = this._canvas.getBoundingClientRect();
    const { columns, step, left } = this._shape;
    const column = Math.floor((event.clientX - box.left - left) / step);
    const block = Math.floor((event.clientY - box.top) / step) * columns + column;
    return column >= 0 && column < columns && block < this._story.pool.total ? block : null;
  }

  _point(event) {
    const block = this._at(event);
    if (block === null) {
      this._tip.hide();
      return;
    }
    const { state, owners, references } = this._story.pool.cell(block);
    const names = owners.map((hold) => hold.id).join(", ");
    const told = {
      live: references > 1 ? `shared by ${references} sequences: ${names}` : `held by ${names}`,
      reusable: `reusable, last held by ${names}`,
      free: "free",
    }[state];
    this._tip.show(event.clientX, event.clientY, [`Block ${block}`, told]);
  }
}

// The largest cells with which the pool fits, and below it the ghosts with their number.
function fit(total, width, height) {
  for (let step = LARGEST; ; step -= 1) {
    const left = step >= 7 && total ? 34 : 0;
    const most = Math.max(1, Math.floor((width - left) / step));
    const columns = most >= 10 ? most - (most % 10) : most;
    const rows = Math.ceil(total / columns) + GHOST_ROWS;
    if (step <= SMALLEST || rows * step + 24 <= height) {
      return { columns, step, left, size: step - (step >= 14 ? 3 : step >= 8 ? 2 : step >= 4 ? 1 : 0.5) };
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
