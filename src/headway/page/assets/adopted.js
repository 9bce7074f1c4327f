// Folds of what no event told, since it was before the oldest one that is kept, or between two that are missing: the
// server was asked for it (seed.js).
import { ENDS, Record, SequenceRecord } from "page/record.js";
import { forget, strange } from "page/strangers.js";

export const ADOPTED = {
  // A request, as its record shows it.
  adopted(story, { record }) {
    if (story.record(record.id)) return;
    if (record.ended) {
      story.ended.set(record.id, record);
      return;
    }
    const own = record.clone();
    story.live.set(own.id, own);
    const stranger = story._strangers.get(own.id); // its blocks are told already
    if (stranger) stranger.sequences.forEach(({ blocks }, index) => (own.sequences[index].blocks = blocks));
    story._strangers.delete(own.id);
    if (story._members.has(own.id)) story._flying.set(own.id, own);
  },

  // What each pool holds.
  pooled(story, { models }) {
    for (const told of models) {
      const model = story.model(told.model);
      model.pattern ??= told.pattern;
      const { live, reusable, free, seats } = told;
      model.level({ ...model.levels, live, reusable, free, seats_used: seats });
      if (told.held_blocks) fill(story, model, told); // the counts are those of the last event that has any
    }
  },
};

// More requests may be alive than the server shows records of at once: of the others only their blocks are known.
function fill(story, model, { reusable_blocks: reusable, held_blocks: held }) {
  model.pool.begin(reusable);
  for (const record of story.live.values()) {
    if (record.model === model.name) for (const sequence of record.sequences) sequence.blocks = [];
  }
  forget(story, model.name);
  for (const { id, stage, tables } of held) {
    const record = ENDS.has(stage) ? leaving(story, model, id, stage, tables.length) : story.live.get(id);
    if (record) tables.forEach((blocks, index) => story._hold(record, record.sequences[index], blocks));
    else strange(story, id, model, [...tables.keys()], tables);
  }
}

// One that is over gives its blocks back when the step commits that runs with them. Its id may live again.
function leaving(story, model, id, stage, sequences) {
  const known = story.live.get(id);
  const record = known?.ended ? known : new Record(id, model.pattern, story.at, model.name);
  if (record !== known) {
    record.stage = stage;
    record.sequences = Array.from({ length: sequences }, (_, index) => new SequenceRecord(index, 0));
  }
  story._flying.set(id, record);
  return record;
}
