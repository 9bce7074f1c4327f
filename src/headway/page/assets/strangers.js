// Live requests of which no more is known than which blocks they hold: more may be alive than the server shows
// records of at once. Their blocks are drawn as anybody's, under their ids; they have no row.
import { Record, SequenceRecord } from "page/record.js";

// This one holds these blocks, a table for each of `indexes`.
export function strange(story, id, model, indexes, tables) {
  const record = story._strangers.get(id) ?? new Record(id, model.pattern, story.at, model.name);
  record.stage = "running";
  record.hold = Object.freeze({ id, hue: story._strangers.size });
  story._strangers.set(id, record);
  indexes.forEach((index, place) => {
    while (record.sequences.length <= index) record.sequences.push(new SequenceRecord(record.sequences.length, 0));
    const sequence = record.sequences[index];
    if (!sequence.blocks.length) story._hold(record, sequence, tables[place]); // else reloaded: it has them
  });
  if (story._members.has(id)) story._flying.set(id, record);
}

// A request that is not known got blocks. Null: it has no record. What takes no blocks is none either.
export function came(story, { id, model, indexes, tables }) {
  if (tables.length) strange(story, id, story.model(model), indexes, tables);
  return null;
}

// One that is not known holds its blocks no more: from now on, or from the commit of the step that names them. Null.
export function left(story, event, stage) {
  const stranger = story._strangers.get(event.id);
  if (!stranger) return null;
  story._strangers.delete(event.id);
  stranger.stage = stage;
  if (event.until_commit) story._flying.set(event.id, stranger);
  else story._drop(stranger);
  story._keep(stranger.model, event.reusable);
  if (event.levels) story.model(stranger.model).level(event.levels);
  return null;
}

// What they hold is told anew, or gone.
export function forget(story, model) {
  for (const { id, model: own } of [...story._strangers.values()]) if (own === model) story._strangers.delete(id);
}
