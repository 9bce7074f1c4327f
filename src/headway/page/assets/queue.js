// Everybody: the running first, then the waiting in order, then the lately ended; each with its verdict in words.
import { requestColour } from "page/colours.js";
import { setText } from "page/ribbon.js";
import { count, duration } from "page/numbers.js";
import { requestView } from "page/view.js";

const WAITING_SHOWN = 100;
const ENDED_SHOWN = 30;
const STAGES = ["running", "waiting", "received"];
// Sentences of the queue tell no shared blocks, so nothing is counted for them.
const UNCOUNTED = new Map();

// The records in the order of the queue, as many as are shown.
export function queued(story) {
  const live = [...story.live.values()];
  const rank = (record) => (record.ended ? STAGES.length : STAGES.indexOf(record.stage));
  live.sort((a, b) => rank(a) - rank(b) || compare(a.order, b.order) || a.receivedAt - b.receivedAt);
  const over = [...story.ended.values()].filter((record) => !story.live.has(record.id));
  const waiting = live.filter((record) => record.stage === "waiting");
  const hidden = new Set(waiting.slice(WAITING_SHOWN));
  const rows = [...live.filter((record) => !hidden.has(record)), ...over.slice(-ENDED_SHOWN).reverse()];
  return { rows, hidden: hidden.size, waiting: waiting.length };
}

export class QueueView {
  // `ruled` says whether a verdict can lead to its rule: a recorded page has no server to show it.
  constructor({ list, told, none, ruled, words, previews, choose, point, cancel }) {
    Object.assign(this, { _list: list, _told: told, _none: none, _ruled: ruled, _choose: choose, _point: point });
    Object.assign(this, { _words: words, _previews: previews, _cancel: cancel });
    this._rows = new Map();
  }

  draw(story, now, chosen, held) {
    const { rows, hidden, waiting } = queued(story);
    const kept = new Set(rows.map((record) => record.id));
    this._words.keep(kept);
    this._previews.keep(kept);
    for (const [id, row] of this._rows) {
      if (kept.has(id)) continue;
      row.remove();
      this._rows.delete(id);
    }
    rows.forEach((record, place) => {
      const row = this._row(record.id);
      if (this._list.children[place] !== row) this._list.insertBefore(row, this._list.children[place] ?? null);
      this._write(row, story, record, now, { chosen: record.id === chosen, held });
    });
    const running = rows.filter((record) => record.stage === "running").length;
    setText(this._told, `${running} running, ${waiting} waiting${hidden ? ` (${hidden} of them not shown)` : ""}`);
    this._none.hidden = rows.length > 0;
  }

  _row(id) {
    const known = this._rows.get(id);
    if (known) return known;
    const row = document.createElement("li");
    row.dataset.id = id;
    const chip = part("span", "chip");
    const name = part("button", "name");
    name.type = "button";
    name.textContent = id;
    const cancel = part("button", "cancel");
    cancel.type = "button";
    cancel.textContent = "cancel";
    cancel.setAttribute("aria-label", `cancel ${id}`);
    const verdict = part(this._ruled ? "a" : "span", "verdict");
    if (this._ruled) Object.assign(verdict, { target: "headway-rule", rel: "noopener" });
    const preview = part("canvas", "preview");
    preview.hidden = true;
    preview.setAttribute("role", "img");
    row.append(
      chip, name, part("span", "stage"), part("span", "tokens"), part("span", "age"), cancel, verdict, preview,
    );
    row.addEventListener("click", (event) => {
      if (event.target !== cancel && event.target.tagName !== "A") this._choose(id);
    });
    cancel.addEventListener("click", () => this._cancel(id));
    for (const [on, value] of [["pointerenter", id], ["focusin", id], ["pointerleave", null], ["focusout", null]]) {
      row.addEventListener(on, () => this._point(value));
    }
    this._rows.set(id, row);
    return row;
  }

  _write(row, story, record, now, { chosen, held }) {
    const [chip, , stage, tokens, age, cancel, verdict, preview] = row.children;
    const view = requestView(story, record, now, UNCOUNTED);
    const on = record.verdict?.kind === "wait" ? record.verdict.on : "";
    const shown = record.preemptions && record.stage === "waiting" ? "preempted" : record.stage;
    setClass(row, `${record.ended ? "ended" : record.stage} ${on}`.trim());
    if (chosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    chip.style.background = requestColour(record.hold.hue);
    setText(stage, story.models.size > 1 ? `${record.model} · ${shown}` : shown);
    setText(tokens, amount(record));
    setText(age, duration(view.elapsed_ms));
    setText(verdict, this._words.line(view));
    if (this._ruled) link(verdict, record.verdict?.kind === "wait" ? record.verdict.rule : null);
    cancel.hidden = record.ended || held || !this._ruled;
    if (!held) this._previews.show(preview, record);
  }
}

// How much of its answer is there, of how much at most.
function amount({ pattern, sequences, parts, emitted, maxTokens }) {
  if (parts.length && pattern === "image") {
    const [{ done, of }] = parts; // its updates stand between the encoding and the decoding
    return `${Math.max(0, Math.min(done - 1, of - 2))} of ${count(of - 2, "update")}`;
  }
  if (parts.length) {
    const [done, of] = ["done", "of"].map((field) => parts.reduce((sum, each) => sum + each[field], 0));
    return `${done} of ${count(of, parts[0].positions === undefined ? "item" : "window")}`;
  }
  return sequences.length ? `${emitted} of ${count(maxTokens * sequences.length, "token")}` : "";
}

function link(verdict, rule) {
  if (rule === null) verdict.removeAttribute("href");
  else if (verdict.getAttribute("href") !== `/page/rule/waiting.py#${rule}`) {
    verdict.href = `/page/rule/waiting.py#${rule}`;
    verdict.title = `the rule that said so: policy/waiting.py, ${rule}`;
  }
}

function part(tag, name) {
  return Object.assign(document.createElement(tag), { className: name });
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

function compare(a, b) {
  const place = a.findIndex((value, index) => value !== b[index]);
  return place === -1 ? a.length - b.length : a[place] - (b[place] ?? -Infinity);
}
