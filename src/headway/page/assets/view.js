// A record as GET /v1/requests/{id} shows it: story/tell/explain.py once more.

import { ENDS } from "page/record.js";

const MOST_LESS = 4;

// `references` says how many sequences hold each block; it is counted once where many views are made.
export function requestView(story, record, now, references = story.references(record.model)) {
  const view = {
    id: record.id,
    pattern: record.pattern,
    ...(record.model ? { model: record.model } : {}),
    stage: record.stage,
    verdict: verdictView(story, record, now),
    sequences: record.sequences.map((sequence) => sequenceView(sequence, references)),
    ...(record.parts.length ? { parts: record.parts.map((part) => ({ ...part })) } : {}),
    ...(record.stages.length ? { stages: record.stages } : {}),
    preemptions: record.preemptions,
    preempted_for: record.preemptedFor,
    ...(record.preempted.length ? { preempted: record.preempted } : {}),
    prefix: { reused: record.firstReused, miss: record.miss },
    ...(record.choice ? { reload: { ...record.choice, loaded: record.reloaded } } : {}),
    intervals: record.life(now).map(intervalView),
    elapsed_ms: toMs(record.elapsedNs(now)),
    priority: record.priority,
    max_tokens: record.maxTokens,
  };
  if (record.deadlineAt !== null) view.deadline = deadlineView(story, record, now);
  for (const field of ["prompt", "reason", "message", "dropped"]) {
    if (record[field] !== null) view[field] = record[field];
  }
  return view;
}

// When the complete answer is due, and whether it was there by then: null while it can be.
function deadlineView(story, record, now) {
  const left = record.deadlineAt - (record.endedAt ?? now);
  const over = ENDS.has(record.stage) || left < 0;
  const met = over ? record.stage === "finished" && left >= 0 : null;
  const view = { ms: toMs(record.deadlineAt - record.receivedAt), left_ms: toMs(left), met };
  if (record.promised) view.promised = true;
  const slack = record.slackNs;
  if (slack === null || ENDS.has(record.stage)) return view;
  view.update_ms = toMs(record.forecast.stepNs);
  view.decode_ms = toMs(record.forecast.lastNs);
  view.slack_ms = toMs(slack);
  const less = lessSlack(story, record.model, slack);
  return less.length ? { ...view, less } : view;
}

// Those of the same model that have less slack, the least first.
function lessSlack(story, model, slack) {
  return [...story.live.values()]
    .filter((other) => other.model === model && !ENDS.has(other.stage))
    .filter((other) => other.slackNs !== null && other.slackNs < slack)
    .sort((a, b) => a.slackNs - b.slackNs || (a.id < b.id ? -1 : 1))
    .slice(0, MOST_LESS)
    .map((other) => ({ id: other.id, slack_ms: toMs(other.slackNs) }));
}

// The verdict with what is known only when asked: who is ahead, and since when it stands.
export function verdictView(story, record, now) {
  if (record.verdict?.kind !== "wait") return record.verdict;
  return {
    ...record.verdict,
    ahead: story.ahead(record),
    since_step: record.sinceStep,
    since_ms: toMs(now - record.sinceAt),
  };
}

function sequenceView(sequence, references) {
  const { accepted, ...positions } = sequence.counts;
  return {
    positions: { known: sequence.known, computed: sequence.computed, ...positions },
    blocks: {
      held: sequence.blocks.length,
      shared: sequence.blocks.filter((block) => references.get(block) > 1).length,
    },
    tokens: { prompt: sequence.prompt, emitted: sequence.emitted },
    drafts: { accepted, rejected: positions.rejected, pauses: sequence.pauses.slice() },
  };
}

function intervalView({ name, on, rule, ns }) {
  return on === null ? { name, ms: toMs(ns) } : { name, on, rule, ms: toMs(ns) };
}

const toMs = (ns) => Number((ns / 1e6).toFixed(6));
