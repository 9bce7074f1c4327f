// What concerns a whole model rather than one request: a recovery loop as it happens, a cut of admission, a decision
// that is no progress. The numbers are those of the events.
import { setText } from "page/ribbon.js";

export function drawAlarm(element, story) {
  const still = [...[...story.stuck.values()].map(stuck), ...[...story.unwritten.values()].map(unwritten)];
  const told = [...still, ...[...story.loops.values()].map(loop)];
  element.hidden = !told.length;
  setText(element, told.join(" · "));
}

function loop({ model, now, best, cut, rejected, clean, needed }) {
  const share = now.prompt ? now.recomputed / now.prompt : 0;
  const rates = [
    `${number(now.preempted, 1)} preempted/s`,
    `${number(now.recomputed)} recomputed/s (${Math.round(100 * share)}% of prompt work)`,
    `goodput ${number(now.goodput, 1)}${best.goodput ? ` of ${number(best.goodput, 1)}` : ""} tokens/s`,
  ].join(", ");
  if (!cut) return `${model}: recovery loop, ${rates}`;
  const kept = `${number(rejected.requests, 2)} requests/s kept out`;
  return `${model}: admission cut, ${kept}, ${clean} of ${needed} windows without a preemption, ${rates}`;
}

function stuck({ id, model, wait, times }) {
  const lack = `${wait.short} ${wait.unit} short`;
  return `${model}: no progress, ${id} waits for ${wait.rule} (${lack}), unchanged ${times} times in a row`;
}

function unwritten({ model, writes: { tier, writing, queued, pinned, slots } }) {
  const [what, where] = writing ? [`${writing} writes`, "disk"] : [`${queued} blocks`, tier];
  const behind = writing ? `, ${queued} blocks wait behind them` : "";
  const slotsUsed = pinned === slots ? `all ${slots}` : `${pinned} of ${slots}`;
  return `${model}: no progress, ${what} to the ${where} tier stand${behind}, ${slotsUsed} host slots in use`;
}

function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
