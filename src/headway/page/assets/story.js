// The reducer: events in, records out. It is reduce/reducer.py once more, method by method; a test folds the same log
// in both and compares every record. Everything on the page is drawn from a Story.
import { FOLDS } from "page/folds.js";
import { ServedModel } from "page/served.js";
import { Record } from "page/record.js";

export class Story {
  // `models` are the served ones by name, in the order in which events named them.
  // `delivers` says that a front reports `delivered` for each request; without it a life ends with its stage, and the
  // events begin with the engine's first.
  constructor({ delivers = true, remembered = 1000 } = {}) {
    this.delivers = delivers;
    this.remembered = remembered;
    this.live = new Map();
    this.ended = new Map();
    this.models = new Map();
    this.step = 0;
    this.at = 0;
    this.loops = new Map(); // by model: what was told last of a recovery loop that is not over
    this.stuck = new Map(); // by request: a decision that is no progress
    this.unwritten = new Map(); // by model: writes to its tiers that stand
    this.unknown = new Set();
    this._flying = new Map();
    this._members = new Set(); // of the step that runs, also those who are not known
    this._strangers = new Map(); // by id: live requests of which no more is known than which blocks they hold
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

  // The served model of that name. Logs from before several could be served name none: it is the one that is known.
  model(name) {
    const known = name || (this.models.keys().next().value ?? "");
    if (!this.models.has(known)) this.models.set(known, new ServedModel(known, !this.delivers));
    return this.models.get(known);
  }

  // How many requests that wait for the same model go before this one.
  ahead(record) {
    let count = 0;
    for (const other of this.live.values()) {
      if (other.model !== record.model) continue;
      if (other.stage === "waiting" && before(other.order, record.order) && other.verdict?.on !== "input") count += 1;
    }
    return count;
  }

  // How many sequences hold each live block of that model's pool.
  references(model) {
    const counts = new Map();
    for (const record of [...this.live.values(), ...this._strangers.values()]) {
      if (record.model !== model) continue;
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
    copy._strangers = new Map([...this._strangers].map(([id, record]) => [id, cloned(record)]));
    copy._flying = new Map([...this._flying].map(([id, record]) => [id, cloned(record)]));
    copy.ended = new Map(this.ended);
    copy.models = new Map([...this.models].map(([name, model]) => [name, model.clone()]));
    copy.loops = new Map(this.loops);
    copy.stuck = new Map(this.stuck);
    copy.unwritten = new Map(this.unwritten);
    copy.unknown = new Set(this.unknown);
    copy._members = new Set(this._members);
    return copy;
  }

  // -- what the folds share ------------------------------------------------------------------------------------

  _begin(id, pattern, at, model) {
    const record = new Record(id, pattern, at, model);
    this.live.set(id, record);
    return record;
  }

  _queue(record, at) {
    record.turnTo("queued", at, "turn", "order");
    this.model(record.model).fresh.push(record.id);
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
    for (const block of blocks) this.model(record.model).pool.take(block, record.hold);
    sequence.blocks.push(...blocks);
  }

  // Whoever may hold blocks by that id.
  _holder(id) {
    return this.live.get(id) ?? this._strangers.get(id) ?? null;
  }

  // Whoever got these blocks is not known, nor by which model it is served.
  _takenUnseen(blocks) {
    for (const { pool } of this.models.values()) if (!pool.whole) pool.forget(blocks);
  }

  // Logs from before they were told have none: what is reusable there is drawn as free.
  _keep(model, blocks = []) {
    this.model(model).pool.keep(blocks);
  }

  _cut(record, sequence, held) {
    if (sequence.blocks.length <= held) return;
    this.model(record.model).pool.drop(sequence.blocks.slice(held), record.hold);
    sequence.blocks.length = held;
  }

  _drop(record) {
    for (const sequence of record.sequences) this._cut(record, sequence, 0);
  }

  // Its work is over; its time goes on until the last byte is handed over.
  _end(record, stage, at) {
    this.stuck.delete(record.id);
    record.stage = stage;
    if (stage !== "refused") record.verdict = null;
    if (this._flying.get(record.id) !== record) this._drop(record);
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
