// What is remembered of one request: reduce/record.py again, in the browser. Only the reducer writes it. Times are
// nanoseconds of the server's monotonic clock, exact as numbers for its first hundred days.

export const ENDS = new Set(["finished", "cancelled", "failed", "refused"]);
const NO_COUNTS = {
  reused: 0, regained: 0, prefilled: 0, decoded: 0, recomputed: 0, rejected: 0, lost: 0, accepted: 0,
};

// A preemption and its price; old logs tell positions alone.
export function preemptionOf({ step, by, price = 0 }) {
  const { recompute, reload } = typeof price === "number" ? { recompute: price, reload: 0 } : price;
  return { step, by, recompute, reload };
}

// Positions only where the model evaluates positions.
export function partOf(of, positions) {
  const part = { done: 0, of, step: null };
  return positions === undefined ? part : { ...part, positions };
}

export class SequenceRecord {
  constructor(index, prompt) {
    this.index = index;
    this.prompt = prompt;
    this.computed = 0;
    this.emitted = 0;
    this.counts = { ...NO_COUNTS };
    this.blocks = [];
    this.pauses = [];
    this.finish = null;
  }

  get known() {
    return this.prompt + this.emitted;
  }

  clone() {
    const copy = Object.assign(Object.create(SequenceRecord.prototype), this);
    copy.counts = { ...this.counts };
    copy.blocks = this.blocks.slice();
    copy.pauses = this.pauses.slice();
    return copy;
  }
}

export class Record {
  // `hold` is what the blocks it holds remember of it: its id, and its hue, which is its number among the arrivals.
  constructor(id, pattern, receivedAt, model = "") {
    this.id = id;
    this.pattern = pattern;
    this.model = model;
    this.receivedAt = receivedAt;
    this.hold = Object.freeze({ id, hue: 0 });
    this.stage = "received";
    this.verdict = null;
    this.sinceStep = 0;
    this.sinceAt = 0;
    this.order = [];
    this.priority = 0;
    this.maxTokens = 0;
    this.sequences = [];
    this.parts = [];
    this.stages = [];
    this.preemptions = 0;
    this.preemptedFor = [];
    this.preempted = [];
    this.firstReused = 0;
    this.miss = null;
    this.choice = null;
    this.reloaded = {};
    this.intervals = [];
    this.doing = { name: "received", on: null, rule: null };
    this.doingSince = receivedAt;
    this.prompt = null;
    this.reason = null;
    this.message = null;
    this.dropped = null;
    this.endedAt = null;
    this.deadlineAt = null;
    this.promised = false;
    this.forecast = null;
  }

  get ended() {
    return ENDS.has(this.stage);
  }

  get emitted() {
    return this.sequences.reduce((sum, sequence) => sum + sequence.emitted, 0);
  }

  // How long before its deadline it is complete as planned, where that is known.
  get slackNs() {
    return this.deadlineAt !== null && this.forecast?.readyAt ? this.deadlineAt - this.forecast.readyAt : null;
  }

  turnTo(name, at, on = null, rule = null) {
    const next = { name, on, rule };
    if (this.endedAt === null && !same(next, this.doing)) {
      this._close(at);
      this.doing = next;
    }
  }

  end(at) {
    if (this.endedAt === null) {
      this._close(at);
      this.endedAt = Math.max(at, this.doingSince);
    }
  }

  // All intervals, the open one up to `now`. They sum to `elapsedNs(now)` exactly.
  life(now) {
    const life = this.intervals.slice();
    if (this.endedAt === null) add(life, { ...this.doing, ns: Math.max(0, now - this.doingSince) });
    return life;
  }

  elapsedNs(now) {
    const end = this.endedAt === null ? Math.max(now, this.doingSince) : this.endedAt;
    return end - this.receivedAt;
  }

  // What has ended is never written again, so a snapshot may share it.
  clone() {
    if (this.endedAt !== null) return this;
    const copy = Object.assign(Object.create(Record.prototype), this);
    copy.sequences = this.sequences.map((sequence) => sequence.clone());
    copy.parts = this.parts.map((part) => ({ ...part }));
    copy.intervals = this.intervals.slice();
    return copy;
  }

  _close(at) {
    const end = Math.max(at, this.doingSince);
    add(this.intervals, { ...this.doing, ns: end - this.doingSince });
    this.doingSince = end;
  }
}

// Intervals are replaced, never changed: snapshots share them.
function add(intervals, next) {
  const last = intervals.at(-1);
  if (last && same(last, next)) intervals[intervals.length - 1] = { ...last, ns: last.ns + next.ns };
  else if (next.ns) intervals.push(next);
}

function same(a, b) {
  return a.name === b.name && a.on === b.on && a.rule === b.rule;
}
