// One served model: what it has to give, its pool, and whose verdict its last step told.
import { PoolMap } from "page/pool.js";

export class ServedModel {
  // pattern   "text", "embed" or "image"
  // facts     what the replica said of it when it was loaded, if that is among the events
  // tiers     how much lies in each, as the newest event tells
  // fresh     who queued since its last step
  // judged    whose verdict its last step told
  // `whole`: all that there is to know of its pool is among the events
  constructor(name, whole) {
    this.name = name;
    this.pattern = null;
    this.facts = null;
    this.levels = { live: 0, reusable: 0, free: 0, seats_used: 0, evictions: 0 };
    this.pool = new PoolMap(whole);
    this.tiers = [];
    this.fresh = [];
    this.judged = new Set();
  }

  // An encoder keeps no state; a diffusion model's is counted in bytes, and whose they are no event tells.
  get mapped() {
    return (this.pattern ?? "text") === "text";
  }

  // Only the blocks of a pool of blocks can be told apart.
  level(levels = this.levels) {
    this.levels = levels;
    if (this.mapped) this.pool.level(levels);
  }

  load(event) {
    Object.assign(this, { facts: event, pattern: event.pattern ?? "text" });
    this.pool.empty();
    this.tiers = event.tiers ?? [];
    this.level({ live: 0, reusable: 0, free: event.blocks, seats_used: 0, evictions: 0 });
  }

  clone() {
    const copy = Object.assign(Object.create(ServedModel.prototype), this);
    copy.pool = this.pool.clone();
    copy.fresh = this.fresh.slice();
    copy.judged = new Set(this.judged);
    return copy;
  }
}
