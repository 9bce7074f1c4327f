// One fold per event, named as the event is: the methods of the reducer in story/reduce/reducer.py.
import { ADOPTED } from "page/adopted.js";
import { SequenceRecord, partOf, preemptionOf } from "page/record.js";
import { came, left } from "page/strangers.js";

const PRECEDENCE = ["decode", "prefill", "recompute", "evaluate", "encode", "update", "decode_pixels"];
const MOST_PREEMPTIONS = 8;
const BEHIND = {
  kind: "wait", on: "turn", rule: "order", unit: "requests", need: 0, have: 0, short: 0, free: 0, reusable: 0,
  holders: [], others: 0, kept: 0, by: "", price_ms: 0, seen: 0, least: 0,
};

export const FOLDS = {
  ...ADOPTED,

  // A replica is ready: its pool is empty.
  loaded(story, event) {
    for (const [id, record] of story._flying) {
      if (record.model === event.model && story._flying.delete(id)) story._drop(record); // its step died
    }
    story.model(event.model).load(event);
    story.loops.delete(event.model);
    story.unwritten.delete(event.model);
  },

  // A recovery loop, told once a window until it is over.
  recovery(story, event) {
    if (event.phase === "over") story.loops.delete(event.model);
    else story.loops.set(event.model, event);
  },

  no_progress(story, event) {
    if (event.writes) story.unwritten.set(event.model, event);
    const record = story.live.get(event.id);
    if (event.writes || !record) return;
    story.stuck.set(event.id, event);
    story._wait(record, event.wait, event.at);
  },

  // They left no record.
  turned_away(story, event) {},

  received(story, event) {
    story._begin(event.id, event.pattern, event.at, event.model);
  },

  prompted(story, event) {
    const record = story.live.get(event.id);
    if (record) record.prompt = event.text;
  },

  arrived(story, event) {
    let record = story.live.get(event.id);
    if (!record || record.stage !== "received") record = story._begin(event.id, event.pattern, event.at);
    const model = story.model(event.model);
    record.stage = "waiting";
    record.model = model.name;
    model.pattern ??= event.pattern;
    record.order = event.order;
    record.deadlineAt = event.deadline_at ?? null;
    record.promised = event.promised ?? false;
    record.hold = Object.freeze({ id: record.id, hue: event.order.at(-1) }); // the last of each order is the arrival
    record.priority = event.priority;
    record.maxTokens = event.max_tokens;
    record.sequences = Array.from({ length: event.n }, (_, index) => new SequenceRecord(index, event.prompt));
    record.parts = (event.parts ?? []).map((of, index) => partOf(of, event.positions?.[index]));
    record.stages = event.stages ?? [];
    if (event.wait) story._wait(record, event.wait, event.at);
    else story._queue(record, event.at);
  },

  supplied(story, event) {
    const record = story.live.get(event.id);
    if (!record) return;
    story._judge(record, null, event.at);
    story._queue(record, event.at);
  },

  refused(story, event) {
    let record = story.live.get(event.id);
    if (!record || record.ended) {
      record = story._begin(event.id, story.models.get(event.model)?.pattern ?? "text", event.at, event.model);
    }
    story._judge(record, event.verdict, event.at);
    record.reason = event.reason;
    story._end(record, "refused", event.at);
  },

  admitted(story, event) {
    const record = story.live.get(event.id) ?? came(story, event);
    if (!record) return;
    story.stuck.delete(event.id);
    record.stage = "running";
    event.indexes.forEach((index, place) => {
      const sequence = record.sequences[index];
      if (!sequence.blocks.length) story._hold(record, sequence, event.tables[place]); // else reloaded: it has them
      story._inherit(sequence, event.inherited[place], event.resumed);
    });
    record.choice = event.choice ?? record.choice;
    if (!event.resumed && event.inherited.length) {
      record.firstReused = event.inherited[0];
      record.miss = event.miss;
    }
  },

  preempted(story, event) {
    const record = story.live.get(event.id) ?? left(story, event, "waiting");
    if (!record) return;
    record.stage = "waiting";
    record.preemptions += 1;
    if (!record.preemptedFor.includes(event.by)) record.preemptedFor = [...record.preemptedFor, event.by];
    record.preempted = [...record.preempted, preemptionOf(event)].slice(-MOST_PREEMPTIONS);
    event.indexes.forEach((index, place) => {
      if (record.parts.length) {
        record.parts[index].done -= event.lost[place];
        return;
      }
      const sequence = record.sequences[index];
      sequence.counts.lost += event.lost[place];
      sequence.computed = 0;
      story._cut(record, sequence, 0);
    });
    story._keep(record.model, event.reusable);
    story.model(record.model).judged.add(event.id);
  },

  reload_started(story, event) {
    const record = story.live.get(event.id) ?? came(story, event);
    if (!record) return;
    event.indexes.forEach((index, place) => story._hold(record, record.sequences[index], event.tables[place]));
    record.choice = event.choice;
    story._wait(record, event.wait, event.at);
  },

  reloaded(story, event) {
    const record = story.live.get(event.id);
    if (!record) return;
    const sums = { ...record.reloaded };
    for (const [tier, blocks] of Object.entries(event.blocks)) sums[tier] = (sums[tier] ?? 0) + blocks;
    record.reloaded = sums;
    seatless(story, record, event.at);
  },

  reload_dropped(story, event) {
    const record = story.live.get(event.id) ?? left(story, event, "waiting");
    if (!record) return;
    story._drop(record);
    story._keep(record.model, event.reusable);
    seatless(story, record, event.at);
  },

  offloaded(story, event) {
    story.model(event.model).tiers = event.tiers;
    if (event.moves_again) story.unwritten.delete(event.model);
  },

  step(story, event) {
    const model = story.model(event.model);
    story.step = event.step;
    for (const { id, model: stuck, wait } of [...story.stuck.values()]) {
      const comes = (event.waits[id] ?? wait).have !== wait.have;
      if (stuck === model.name && (wait.on !== "input" || comes)) story.stuck.delete(id); // somebody moves
    }
    const behind = new Set([...model.judged, ...model.fresh].filter((id) => !Object.hasOwn(event.waits, id)));
    model.fresh = [];
    model.judged = new Set();
    for (const id of behind) {
      const record = story.live.get(id);
      if (record?.stage === "waiting") story._wait(record, BEHIND, event.at);
    }
    for (const [id, wait] of Object.entries(event.waits)) {
      const record = story.live.get(id);
      if (!record) continue;
      story.model(record.model).judged.add(id);
      story._wait(record, wait, event.at);
    }
    for (const [id, stepNs, lastNs, readyAt] of event.forecasts ?? []) {
      const record = story.live.get(id);
      if (record) record.forecast = { stepNs, lastNs, readyAt };
    }
    moveMembers(story, event);
    model.level(event.levels);
  },

  committed(story, event) {
    for (const [id, index, ...counts] of event.outcomes) {
      const record = story._flying.get(id);
      if (record) enter(story, record, record.sequences[index], counts);
    }
    for (const [id, index, done] of event.moves ?? []) {
      const record = story._flying.get(id);
      if (record) record.parts[index].done = done;
    }
    for (const [id, index, positions, resumed, emitted, finish] of event.forks) {
      const record = story._flying.get(id);
      if (!record) continue;
      const sequence = record.sequences[index];
      story._inherit(sequence, positions, resumed);
      sequence.emitted += emitted;
      sequence.finish = finish;
      if (finish) story._cut(record, sequence, 0);
    }
    for (const record of story._flying.values()) if (record.ended) story._drop(record);
    story._flying = new Map();
    story._members = new Set();
    story._keep(event.model, event.reusable);
    story.model(event.model).level(event.levels);
  },

  drafts_paused(story, event) {
    story.live.get(event.id)?.sequences[event.index].pauses.push(event.pause);
  },

  finished(story, event) {
    const record = story.live.get(event.id) ?? left(story, event, "finished");
    if (!record) return;
    record.reason = event.reason;
    story._end(record, "finished", event.at);
  },

  cancelled(story, event) {
    const record = story.live.get(event.id) ?? left(story, event, "cancelled");
    if (!record) return;
    record.reason = event.by;
    giveBack(story, record, event);
    story._end(record, "cancelled", event.at);
  },

  failed(story, event) {
    const record = story.live.get(event.id) ?? left(story, event, "failed");
    if (!record) return;
    record.reason = event.reason;
    record.message = event.message;
    if (event.levels) giveBack(story, record, event);
    else story._flying.delete(event.id); // its blocks are gone, also where no commit will follow
    story._end(record, "failed", event.at);
  },

  delivered(story, event) {
    const record = story.live.get(event.id);
    if (!record?.ended) return;
    record.dropped = event.dropped;
    story._remember(record, event.at);
  },
};

// It awaits no blocks any more; what it waits for the next step tells.
function seatless(story, record, at) {
  story.stuck.delete(record.id);
  story._judge(record, null, at);
  record.turnTo(record.preemptions ? "preempted" : "queued", at, "turn", "order");
  story.model(record.model).judged.add(record.id);
}

function moveMembers(story, event) {
  for (const [id, index, blocks] of event.grown) {
    const record = story._holder(id);
    if (record) story._hold(record, record.sequences[index], blocks);
    else story._takenUnseen(blocks);
  }
  const moved = new Map();
  for (const [id, index, , positions, , doing] of event.members) {
    const part = story.live.get(id)?.parts[index];
    if (part) part.step = event.step;
    const [before, sum] = moved.get(id) ?? [0, 0];
    moved.set(id, [Math.max(before, PRECEDENCE.indexOf(doing)), sum + positions]);
  }
  story._flying = new Map();
  story._members = new Set(moved.keys());
  for (const [id, [doing, positions]] of moved) {
    const record = story._holder(id);
    if (!record) continue;
    story._flying.set(id, record);
    story._judge(record, { kind: "go", positions }, event.at);
    record.turnTo(PRECEDENCE[doing], event.at);
  }
}

// What is given back at an end: now, or with the commit of the step that names its blocks.
function giveBack(story, record, event) {
  story._keep(record.model, event.reusable);
  story.model(record.model).level(event.levels);
  if (event.until_commit) story._flying.set(record.id, record);
}

function enter(story, record, sequence, counts) {
  const [prefilled, decoded, recomputed, rejected, emitted, held, finish, accepted] = counts;
  Object.entries({ prefilled, decoded, recomputed, rejected, accepted }).forEach(([kind, count]) => {
    sequence.counts[kind] += count;
  });
  sequence.computed += prefilled + decoded + recomputed;
  sequence.emitted += emitted;
  sequence.finish = finish;
  story._cut(record, sequence, finish ? 0 : held);
}
