// The reducer: events in, records out. It is reduce/reducer.py once more, method by method; a test folds the same log
// in both and compares every record. Everything on the page is drawn from a Story.
import { FOLDS } from "page/folds.js";
import { PoolMap } from "page/pool.js";
import { Record } from "page/record.js";

export class Story {
  // `facts` is what the replica said of itself when it was ready, if that is among the events.
  // `delivers` says that a front reports `delivered` for each request; without it a life ends with its stage.
  constructor({ delivers = true, remembered = 1000 } = {}) {
    this.delivers = delivers;
    this.remembered = remembered;
    this.live = new Map();
    this.ended = new Map();
    this.pool = new PoolMap();
    this.levels = { live: 0, reusable: 0, free: 0, seats_used: 0, evictions: 0 };
    this.facts = null;
    this.step = 0;
    this.at = 0;
    this.unknown = new Set();
    this._fresh = [];
    this._judged = new Set();
    this._flying = new Map();
  }

  // An event about a request that is not known is ignored; a kind of event that is not known is remembered as such.
  fold(event) {
    this.at = Math.max(this.at, event.at);
    const handler = Object.hasOwn(FOLDS, event.event) ? FOLDS[event.event] : null;
    if (handler) handler(this, event);
    else this.unknown.add(event.event);
  }

  record(id) {
    return this.live.get(id) ?? this.ended.get(id) ?? null;
  }

  // How many waiting requests go before this one.
  ahead(record) {
    let count = 0;
    for (const other of this.live.values()) {
      if (other.stage === "waiting" && before(other.order, record.order) && other.verdict?.on !== "input") count += 1;
    }
    return count;
  }

  // How many sequences hold each live block.
  references() {
    const counts = new Map();
    for (const record of this.live.values()) {
      for (const sequence of record.sequences) {
        for (const block of sequence.blocks) counts.set(block, (counts.get(block) ?? 0) + 1);
      }
    }
    return counts;
  }

  clone() {
    const copy = Object.assign(Object.create(Story.prototype), this);
    const copies = new Map();
    const cloned = (record) => {
      if (!copies.has(record)) copies.set(record, record.clone());
      return copies.get(record);
    };
    copy.live = new Map([...this.live].map(([id, record]) => [id, cloned(record)]));
    copy._flying = new Map([...this._flying].map(([id, record]) => [id, cloned(record)]));
    copy.ended = new Map(this.ended);
    copy.pool = this.pool.clone();
    copy.unknown = new Set(this.unknown);
    copy._fresh = this._fresh.slice();
    copy._judged = new Set(this._judged);
    return copy;
  }

  // -- what the folds share ------------------------------------------------------------------------------------

  _begin(id, pattern, at) {
    const record = new Record(id, pattern, at);
    this.live.set(id, record);
    return record;
  }

  _queue(record, at) {
    record.turnTo("queued", at, "turn", "order");
    this._fresh.push(record.id);
  }

  _judge(record, verdict, at) {
    if (changeKey(verdict) !== changeKey(record.verdict)) {
      record.sinceStep = this.step;
      record.sinceAt = at;
    }
    record.verdict = verdict;
  }

  _wait(record, wait, at) {
    this._judge(record, wait, at);
    const name = record.stage === "running" ? "stalled" : record.preemptions ? "preempted" : "queued";
    record.turnTo(name, at, wait.on, wait.rule);
  }

  _inherit(sequence, positions, resumed) {
    sequence.counts[resumed ? "regained" : "reused"] += positions;
    sequence.computed += positions;
  }

  _hold(record, sequence, blocks) {
    for (const block of blocks) this.pool.take(block, record.hold);
    sequence.blocks.push(...blocks);
  }

  _cut(record, sequence, held) {
    if (sequence.blocks.length <= held) return;
    this.pool.drop(sequence.blocks.slice(held), record.hold);
    sequence.blocks.length = held;
  }

  _drop(record) {
    for (const sequence of record.sequences) this._cut(record, sequence, 0);
  }

  _level(levels) {
    this.levels = levels;
    this.pool.level(levels);
  }

  // Its work is over; its time goes on until the last byte is handed over.
  _end(record, stage, at) {
    record.stage = stage;
    if (stage !== "refused") record.verdict = null;
    if (this._flying.get(record.id) !== record) {
      this._drop(record);
      this.pool.level(this.levels);
    }
    if (this.delivers) record.turnTo("delivery", at);
    else this._remember(record, at);
  }

  _remember(record, at) {
    record.end(at);
    this.live.delete(record.id);
    this.ended.delete(record.id);
    this.ended.set(record.id, record);
    while (this.ended.size > this.remembered) this.ended.delete(this.ended.keys().next().value);
  }
}

// Two verdicts are the same wait, with one common beginning, when their keys are equal.
function changeKey(verdict) {
  if (!verdict) return "";
  return verdict.kind === "go" ? "go" : `${verdict.kind} ${verdict.on ?? ""} ${verdict.rule} ${verdict.need}`;
}

function before(order, other) {
  const place = order.findIndex((value, index) => value !== other[index]);
  return place === -1 ? order.length < other.length : place < other.length && order[place] < other[place];
}
