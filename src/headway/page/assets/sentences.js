// A view in plain sentences with numbers: what `headway why` prints (tell/sentences.py once more; a test compares
// the two), and the same on one line for the queue.

const BY = {
  client: "its client left",
  request: "it was asked to end",
  drain: "the server was stopping",
  time: "it had lived for longer than --max-seconds",
  "slow reader": "its client took nothing for too long",
  caller: "the caller ended it",
};
const MOST_NAMES = 4;
const MOST_WINDOWS = 8;
const ALIVE = ["received", "waiting", "running"];
const ON = { space: "space", turn: "a turn", input: "input" };

// Where the request is and why, then what it is made of, what was reused, lost and recomputed, then where its time went.
export function tell(view) {
  const told = [stage(view)];
  if (["waiting", "running"].includes(view.stage) && view.verdict?.kind === "wait") told.push(waiting(view.verdict));
  return [...told, ...parts(view), reuse(view), recompute(view), drafts(view), time(view)].filter(Boolean);
}

// The verdict alone, for a row of the queue.
export function line(view) {
  const verdict = view.verdict;
  if (verdict?.kind === "wait") return `Waiting for ${ON[verdict.on]}: ${lack(verdict)}`;
  if (verdict?.kind === "go" && view.stage === "running") return moving(view);
  const told = stage(view).slice(view.id.length + 1).replace(/^(is|was) /, "").replace(/\.$/, "");
  return told[0].toUpperCase() + told.slice(1);
}

export function duration(ms) {
  return ms >= 100 ? `${fixed(ms / 1000, 2)} s` : `${fixed(ms, 1)} ms`;
}

// As Python rounds: a value that lies exactly between two goes to the even one, where toFixed takes the larger.
function fixed(value, digits) {
  const exact = value.toFixed(20);
  if (!/^50*$/.test(exact.slice(exact.length - 20 + digits))) return value.toFixed(digits);
  const below = Math.floor(value * 10 ** digits);
  return ((below + (below % 2)) / 10 ** digits).toFixed(digits);
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function lack(verdict) {
  if (verdict.rule !== "blocks") {
    const ahead = verdict.rule === "order" && verdict.ahead ? `; ${count(verdict.ahead, "request")} ahead` : "";
    return shortage(verdict).replace(/\.$/, "") + ahead;
  }
  const reusable = verdict.reusable ? `, ${verdict.reusable} reusable` : "";
  const own = verdict.free + verdict.reusable - verdict.have;
  const known = own ? ` (${own} its own prefix)` : "";
  const held = holders(verdict).replace(/\.$/, "");
  const available = `${verdict.free} free${reusable}${known}`;
  const needs = `needs ${count(verdict.need, "block")}, ${available}, ${verdict.short} short`;
  return held ? `${needs}; ${held}` : needs;
}

function moving(view) {
  const doing = view.intervals.at(-1)?.name;
  const step = count(view.verdict.positions, "position");
  if (doing === "decode") return `Decodes: ${step} in this step`;
  if (view.parts) return `${doing[0].toUpperCase()}${doing.slice(1)}s: ${amount(view.parts)}`;
  const { prompt } = view.sequences[0].tokens;
  const { computed } = view.sequences[0].positions;
  if (doing === "recompute") return `Recomputes lost state: ${step} in this step`;
  return `Prefills: ${computed} of ${prompt} prompt positions computed, ${view.verdict.positions} in this step`;
}

function waiting(verdict) {
  const since = `Waiting for ${ON[verdict.on]} since step ${verdict.since_step} (${duration(verdict.since_ms)})`;
  const ahead = `${count(verdict.ahead, "request")} ${verdict.ahead === 1 ? "is" : "are"} ahead.`;
  return `${since}: ${shortage(verdict)} ${ahead}`;
}

function shortage(verdict) {
  const { need, have, short } = verdict;
  switch (verdict.rule) {
    case "blocks":
    case "reservation": {
      const kept = verdict.kept ?? 0;
      const more = kept ? `, and ${kept} to be left for growth (--admit ${verdict.by})` : "";
      const own = verdict.free + verdict.reusable - have;
      const known = own ? `, ${own} of them its own prefix` : "";
      const counts = `${verdict.free} free and ${verdict.reusable} reusable${known}, ${short} short.`;
      return `needs ${count(need - kept, "block")}${more}, ${counts} ${holders(verdict)}`.trimEnd();
    }
    case "seats":
      return `needs ${count(need, "seat")}, ${have} free, ${short} short.`;
    case "budget":
      if (need > 1) return `needs ${need} ${verdict.unit} of one step, which has ${have} left.`;
      return "the step's budget is spent before its next position.";
    case "order":
      return "others come first.";
    case "grammar":
      return "its grammar is being compiled, beside the steps of the others.";
    case "model":
      return "another model's step runs.";
    default:
      return `${verdict.rule}: needs ${need} ${verdict.unit}, has ${have}, ${short} short.`;
  }
}

function holders(verdict) {
  const parts = verdict.holders.map(({ id, blocks, shared }) => {
    return `${id} holds ${blocks}${shared ? ` (and shares ${shared})` : ""}`;
  });
  const { others } = verdict;
  if (others) parts.push(`${count(others, "other")} ${others === 1 ? "holds" : "hold"} the rest`);
  return parts.length ? `${parts.join(", ")}.` : "";
}

function stage(view) {
  const { id } = view;
  const elapsed = duration(view.elapsed_ms);
  switch (view.stage) {
    case "received":
      return `${id} was received ${elapsed} ago and is on its way to the engine.`;
    case "waiting":
      if (view.preemptions) return `${id} is waiting to resume: it was preempted ${times(view.preemptions)}.`;
      if (!view.verdict) return `${id} is queued; it is judged when the step that runs now is over.`;
      return `${id} is waiting; it arrived ${elapsed} ago.`;
    case "running":
      return `${id} is running, ${elapsed} after it arrived: ${progress(view)}.`;
    case "finished": {
      const rest = BY[view.dropped] ? ` The rest of its answer was not delivered: ${BY[view.dropped]}.` : "";
      return `${id} finished (${view.reason}) after ${elapsed}: ${progress(view)}.${rest}`;
    }
    case "cancelled":
      return `${id} was cancelled after ${elapsed} (${BY[view.reason] ?? view.reason}): ${progress(view)}.`;
    case "failed":
      return `${id} failed after ${elapsed}: ${view.message ?? "no message"}.`;
    default:
      return `${id} was refused: ${never(view.verdict)}.`;
  }
}

function never(verdict) {
  if (!verdict) return "invalid request";
  if (verdict.rule === "deadline") {
    return `it would be complete in ${verdict.need} ms at the earliest, and its deadline leaves ${verdict.limit} ms`;
  }
  const unit = { blocks: "blocks of state", positions: "positions", seats: "seats" }[verdict.unit];
  const raised = verdict.option ? `${verdict.option} raises it` : "it is the model's own";
  return `it needs ${verdict.need} ${unit} and the limit is ${verdict.limit} (${raised})`;
}

function progress({ sequences, parts }) {
  if (parts) return `${amount(parts)} ${evaluates(parts) ? "evaluated" : "done"}`;
  const prompt = sequences[0]?.tokens.prompt ?? 0;
  const computed = Math.min(prompt, sequences[0]?.positions.computed ?? 0);
  const emitted = total(sequences, (one) => one.tokens.emitted);
  const blocks = total(sequences, (one) => one.blocks.held);
  let text = computed < prompt ? `${computed} of ${prompt} prompt positions computed` : `${prompt} prompt positions`;
  text += `, ${count(emitted, "token")} emitted`;
  if (sequences.length > 1) text += ` in ${sequences.length} sequences`;
  return text + (blocks ? `, ${count(blocks, "block")} held` : "");
}

// Whether progress is counted in inputs that the model evaluates, each once.
function evaluates(parts) {
  return parts[0].positions !== undefined;
}

function amount(parts) {
  const [done, of] = [total(parts, (part) => part.done), total(parts, (part) => part.of)];
  if (!evaluates(parts)) return `${done} of ${count(of, "item")}`;
  if (of > 1) return `${done} of ${count(of, "window")}`;
  return (done ? "" : "0 of ") + count(parts[0].positions, "position");
}

// Every window of an input as a work item of its own; of many the first and the last.
function parts(view) {
  if (!view.parts || !evaluates(view.parts)) return [];
  const of = view.parts.length;
  const lines = view.parts.map((part, index) => {
    return `${of > 1 ? `Window ${index + 1} of ${of}` : "Its input"}: ${evaluation(part, view)}.`;
  });
  if (of <= MOST_WINDOWS) return lines;
  return [...lines.slice(0, MOST_WINDOWS - 2), `and ${of - MOST_WINDOWS + 1} more windows.`, lines.at(-1)];
}

// Of one window: how much there is to evaluate, in which step it was, and what the model did there.
function evaluation({ positions, step, done }, view) {
  const text = count(positions, "position");
  const over = !ALIVE.includes(view.stage);
  if (step === null) return `${text}, not evaluated${over ? "" : " yet"}`;
  if (!done) return `${text}, in step ${step}, which ${over ? "gave no result" : "runs"}`;
  const stages = view.stages ? ` (${view.stages.join(", ")})` : "";
  return `${text}, evaluated in step ${step}${stages}`;
}

function reuse(view) {
  const { miss, reused } = view.prefix;
  if (!miss) return "";
  const why = {
    off: "prefix reuse is off",
    none: "no known prefix starts like this one",
    differs: `the nearest known prefix differs from position ${miss.at} on`,
    evicted: `the block from position ${miss.at} on had been evicted by step ${miss.step ?? 0}`,
    short: "what is left is shorter than a block, and no known prefix goes on like it",
    other: `what follows is known with another ${miss.what ?? ""} only`,
    logprobs: "its prompt's logprobs were asked for, which only computing it gives",
    last: "the last position is always computed",
  }[miss.why];
  return `Reused ${reused} of ${view.sequences[0].tokens.prompt} prompt positions: ${why}.`;
}

function recompute(view) {
  if (!view.preemptions) return "";
  const sum = (kind) => total(view.sequences, (one) => one.positions[kind]);
  const found = `found ${sum("regained")} of them again, recomputed ${sum("recomputed")}`;
  const others = view.preempted_for.filter((id) => id !== view.id);
  const account = others.length ? `so that ${names(others)} could go on` : "since it could not grow";
  return `Preempted ${times(view.preemptions)}, ${account}: lost ${sum("lost")} positions, ${found}.`;
}

// `a`, `a and b`, `a, b and 3 others`.
function names(ids) {
  if (ids.length > MOST_NAMES) ids = [...ids.slice(0, MOST_NAMES - 1), `${ids.length - MOST_NAMES + 1} others`];
  return [ids.slice(0, -1).join(", "), ids.at(-1)].filter(Boolean).join(" and ");
}

// How often guesses were right, and where none were made because they were not.
function drafts(view) {
  const accepted = total(view.sequences, (one) => one.drafts.accepted);
  const drafted = accepted + total(view.sequences, (one) => one.drafts.rejected);
  if (!drafted) return "";
  const pauses = view.sequences.flatMap((one) => one.drafts.pauses);
  const last = pauses.at(-1);
  const paused = last
    ? `; they did not pay and paused ${times(pauses.length)}, last for ${last.tokens} tokens, when ` +
      `${last.accepted} of ${last.drafted} had been right`
    : "";
  return `Drafts: ${accepted} of ${drafted} were right and spared it as many steps${paused}.`;
}

// The largest parts of its life first.
function time(view) {
  const totals = new Map();
  for (const interval of view.intervals) {
    const name = interval.name + (interval.on ? ` for ${interval.on}, ${interval.rule}` : "");
    totals.set(name, (totals.get(name) ?? 0) + interval.ms);
  }
  if (!totals.size || !view.elapsed_ms) return "";
  const rows = [...totals].sort((a, b) => b[1] - a[1]);
  const share = (ms) => `${fixed((ms / view.elapsed_ms) * 100, 0)}%`;
  return `Its time: ${rows.map(([name, ms]) => `${name} ${duration(ms)} (${share(ms)})`).join(", ")}.`;
}

function total(sequences, value) {
  return sequences.reduce((sum, sequence) => sum + value(sequence), 0);
}

function times(number) {
  return { 1: "once", 2: "twice" }[number] ?? `${number} times`;
}
