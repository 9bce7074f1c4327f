// Which block is whose, and which ones keep their content, as events tell it (core/events.py says how): a block is
// live while a table names it, and reusable from when an event says so until a table names it again.

export class PoolMap {
  // whole        every table of this pool was told: a block that none of them names, and no event lists, is free
  // holders[b]   who references block b, once per sequence; arrays are replaced, never changed
  // last[b]      who held it last, where that was told
  // reusable     the blocks of which it was told
  constructor(whole) {
    this.total = 0;
    this.empty();
    this.whole = whole;
  }

  // All of it is free.
  empty() {
    this.last = [];
    this.begin([]);
  }

  // These are reusable, and nobody holds any.
  begin(reusable) {
    this.holders = [];
    this.reusable = new Set(reusable);
    this.whole = true;
  }

  take(block, hold) {
    const before = this.holders[block];
    this.holders[block] = before ? [...before, hold] : [hold];
    this.last[block] = hold;
    this.reusable.delete(block);
  }

  drop(blocks, hold) {
    for (const block of blocks) {
      const holders = this.holders[block];
      if (!holders) continue;
      const found = holders.findIndex((one) => one === hold || one.id === hold.id);
      const rest = holders.filter((_, index) => index !== found);
      this.holders[block] = rest.length ? rest : null;
    }
  }

  keep(blocks) {
    for (const block of blocks) this.reusable.add(block);
  }

  // Someone has them of whom nothing is known.
  forget(blocks) {
    for (const block of blocks) {
      this.reusable.delete(block);
      this.last[block] = undefined;
    }
  }

  // Where none is reusable, none of those is that were: the replica ended, and its pool with it.
  level(levels) {
    this.total = levels.live + levels.reusable + levels.free || this.total;
    if (!levels.reusable) this.reusable.clear();
  }

  // What to draw: "live", "reusable", "free" or "unknown", and the distinct requests that hold it or held it last.
  cell(block) {
    const holders = this.holders[block];
    if (holders) return { state: "live", owners: distinct(holders), references: holders.length };
    const kept = this.reusable.has(block);
    const owners = kept && this.last[block] ? [this.last[block]] : [];
    return { state: kept ? "reusable" : this.whole ? "free" : "unknown", owners, references: 0 };
  }

  clone() {
    const copy = Object.assign(Object.create(PoolMap.prototype), this);
    copy.holders = this.holders.slice();
    copy.last = this.last.slice();
    copy.reusable = new Set(this.reusable);
    return copy;
  }
}

function distinct(holders) {
  if (holders.length === 1) return holders;
  return [...new Map(holders.map((hold) => [hold.id, hold])).values()];
}
