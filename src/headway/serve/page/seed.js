// Requests that began before the oldest event that the server keeps: their records are asked for once, and go onto the
// tape as an event of our own. Which blocks they hold is not known; the map draws so many as of unknown owner.
import { Record, SequenceRecord } from "page/record.js";

export async function adopt(server, tape, told) {
  const { data } = await server.json("/v1/requests?limit=1000");
  for (const view of data) {
    const over = ["finished", "cancelled", "failed", "refused"].includes(view.stage);
    if (!over && !tape.story.record(view.id)) told({ event: "adopted", at: tape.story.at, record: recordOf(view, tape) });
  }
}

function recordOf(view, tape) {
  const now = tape.story.at;
  const record = new Record(view.id, view.pattern, now - view.elapsed_ms * 1e6, tape.story._hue(view.id));
  const intervals = view.intervals.map(({ name, on = null, rule = null, ms }) => ({ name, on, rule, ns: ms * 1e6 }));
  const open = intervals.pop() ?? { name: "received", on: null, rule: null, ns: 0 };
  Object.assign(record, {
    stage: view.stage, verdict: view.verdict, preemptions: view.preemptions, priority: view.priority,
    maxTokens: view.max_tokens, firstReused: view.prefix.reused, miss: view.prefix.miss, intervals,
    doing: { name: open.name, on: open.on, rule: open.rule }, doingSince: now - open.ns, order: [view.priority, 0],
    sinceStep: view.verdict?.since_step ?? 0, sinceAt: now - (view.verdict?.since_ms ?? 0) * 1e6,
    sequences: view.sequences.map(sequenceOf),
  });
  return record;
}

function sequenceOf({ positions, tokens, drafts }, index) {
  const sequence = new SequenceRecord(index, tokens.prompt);
  const { known, computed, ...counts } = positions;
  Object.assign(sequence, { computed, emitted: tokens.emitted, pauses: drafts.pauses });
  Object.assign(sequence.counts, counts, { accepted: drafts.accepted });
  return sequence;
}
