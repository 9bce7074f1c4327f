// Which block is whose. Tables are told by events, block by block; of the blocks that nobody references, events tell
// only how many are reusable. Which ones is worked out here: the leading blocks of a dropped table before its tail,
// which is seldom whole, and the longest unused are evicted first, as in memory/pool.py.

export class PoolMap {
  // holders[b]   who references block b, once per sequence; arrays are replaced, never changed
  // last[b]      who held it last
  // reusable     the blocks that keep their content, the longest unused first
  // dropped      blocks that lost their last reference since the levels were last told
  constructor() {
    this.total = 0;
    this.empty();
  }

  empty() {
    this.holders = [];
    this.last = [];
    this.reusable = new Map();
    this.dropped = [];
  }

  take(block, hold) {
    const before = this.holders[block];
    this.holders[block] = before ? [...before, hold] : [hold];
    this.last[block] = hold;
    this.reusable.delete(block);
  }

  drop(blocks, hold) {
    blocks.forEach((block, place) => {
      const holders = this.holders[block];
      if (!holders) return;
      const found = holders.findIndex((one) => one === hold || one.id === hold.id);
      const rest = holders.filter((_, index) => index !== found);
      this.holders[block] = rest.length ? rest : null;
      if (!rest.length) this.dropped.push({ block, tail: place === blocks.length - 1 });
    });
  }

  // The pool's own counts settle which of the unreferenced blocks are reusable.
  level(levels) {
    this.total = levels.live + levels.reusable + levels.free || this.total;
    const unheld = this.dropped.filter(({ block }) => !this.holders[block]);
    const candidates = [...unheld.filter((one) => !one.tail), ...unheld.filter((one) => one.tail)];
    for (const { block } of candidates) {
      if (this.reusable.size >= levels.reusable) break;
      this.reusable.set(block, true);
    }
    for (const block of this.reusable.keys()) {
      if (this.reusable.size <= levels.reusable) break;
      this.reusable.delete(block);
    }
    this.dropped = [];
  }

  // What to draw: "live", "reusable" or "free", and the distinct requests that hold it or held it last.
  cell(block) {
    const holders = this.holders[block];
    if (holders) return { state: "live", owners: distinct(holders), references: holders.length };
    if (this.reusable.has(block)) return { state: "reusable", owners: [this.last[block]], references: 0 };
    return { state: "free", owners: [], references: 0 };
  }

  clone() {
    const copy = Object.assign(Object.create(PoolMap.prototype), this);
    copy.holders = this.holders.slice();
    copy.last = this.last.slice();
    copy.reusable = new Map(this.reusable);
    copy.dropped = this.dropped.slice();
    return copy;
  }
}

function distinct(holders) {
  if (holders.length === 1) return holders;
  return [...new Map(holders.map((hold) => [hold.id, hold])).values()];
}
