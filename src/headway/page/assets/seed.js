// What came before the oldest event that the server keeps: its requests' records and the pools' blocks are asked for
// once, and go onto the tape as events of our own (adopted.js), each right behind the event up to which the server's
// answer goes. So what is folded from there on is what the server has.
import { ENDS, Record, SequenceRecord } from "page/record.js";

const ENDED_SHOWN = 30;
// When an ended request lived is not told: it is put where no lane shows it.
const LONG_AGO_NS = -1e15;

// Answers: [{ upto, tell }], `tell` to be called when the event with the id `upto` was told. First the requests, so
// that whoever holds blocks is known when these are told.
export async function seeds(server, tape, told) {
  const requests = await server.asOf("/v1/requests?limit=1000");
  const pool = await server.asOf("/v1/pool?blocks=true");
  return [
    { upto: requests.upto, tell: () => adopt(requests.body.data, tape, told) },
    { upto: pool.upto, tell: () => told({ event: "pooled", at: tape.story.at, models: pool.body.models }) },
  ];
}

function adopt(data, tape, told) {
  const over = data.filter((view) => ENDS.has(view.stage)).slice(0, ENDED_SHOWN).reverse();
  const live = data.filter((view) => !ENDS.has(view.stage));
  [...over, ...live].forEach((view, place) => {
    if (tape.story.record(view.id)) return;
    told({ event: "adopted", at: tape.story.at, record: recordOf(view, tape, place) });
  });
}

// Its number among the arrivals is not told, only its place among those who are there.
function recordOf(view, tape, place) {
  const over = ENDS.has(view.stage);
  const now = over ? LONG_AGO_NS : tape.story.at;
  const record = new Record(view.id, view.pattern, now - view.elapsed_ms * 1e6, view.model);
  const intervals = view.intervals.map(({ name, on = null, rule = null, ms }) => ({ name, on, rule, ns: ms * 1e6 }));
  const open = over ? null : intervals.pop();
  Object.assign(record, {
    hold: Object.freeze({ id: view.id, hue: place }),
    stage: view.stage, verdict: view.verdict, preemptions: view.preemptions, preemptedFor: view.preempted_for,
    preempted: view.preempted ?? [], priority: view.priority,
    maxTokens: view.max_tokens, firstReused: view.prefix.reused, miss: view.prefix.miss, intervals,
    choice: view.reload ?? null, reloaded: view.reload?.loaded ?? {},
    reason: view.reason ?? null, message: view.message ?? null, dropped: view.dropped ?? null,
    order: [view.priority, 0], sequences: view.sequences.map(sequenceOf),
    parts: (view.parts ?? []).map((part) => ({ ...part })), stages: view.stages ?? [],
    sinceStep: view.verdict?.since_step ?? 0, sinceAt: now - (view.verdict?.since_ms ?? 0) * 1e6,
  });
  if (view.deadline) record.deadlineAt = record.receivedAt + view.deadline.ms * 1e6;
  if (over) record.endedAt = now;
  if (open) {
    Object.assign(record, { doing: { name: open.name, on: open.on, rule: open.rule }, doingSince: now - open.ns });
  }
  return record;
}

function sequenceOf({ positions, tokens, drafts }, index) {
  const sequence = new SequenceRecord(index, tokens.prompt);
  const { known, computed, ...counts } = positions;
  Object.assign(sequence, { computed, emitted: tokens.emitted, pauses: drafts.pauses });
  Object.assign(sequence.counts, counts, { accepted: drafts.accepted });
  return sequence;
}
