// The events that the page has seen, in segments, each with the story as it stood before it: so the state at any
// event is found by folding a few hundred at most. What is older than `kept` events is dropped, as the server's ring
// does.
import { Story } from "page/story.js";

const SEGMENT = 400;

export class Tape {
  // Events are numbered from 1 as they come. `steps` has an entry for each step, for drawing:
  //   {number, step, model, at, budget, members, waits, outcomes, emitted, committedAt, committed}
  constructor({ delivers = true, kept = 20000 } = {}) {
    this.delivers = delivers;
    this.kept = kept;
    this.clear();
  }

  clear() {
    this.story = new Story({ delivers: this.delivers });
    this.last = 0;
    this.steps = [];
    this._segments = [];
    this._shown = null;
  }

  get first() {
    return this._segments[0]?.first ?? 1;
  }

  push(event) {
    const open = this._segments.at(-1);
    if (!open || open.events.length >= SEGMENT) {
      this._segments.push({ first: this.last + 1, before: this.story.clone(), events: [event] });
      this._forget();
    } else {
      open.events.push(event);
    }
    this.last += 1;
    this.story.fold(event);
    this._note(event);
  }

  event(number) {
    const segment = this._segment(number);
    return segment?.events[number - segment.first] ?? null;
  }

  // The story after event `number`; it is the page's own copy and must not be folded further by anyone else.
  at(number) {
    if (number >= this.last) return this.story;
    const shown = this._shown;
    if (shown?.number === number) return shown.story;
    const segment = this._segment(number);
    const further = shown && shown.number < number && shown.number >= segment.first;
    const story = further ? shown.story : segment.before.clone();
    for (let next = further ? shown.number + 1 : segment.first; next <= number; next += 1) {
      story.fold(segment.events[next - segment.first]);
    }
    this._shown = { number, story };
    return story;
  }

  // The steps that had begun when event `number` came, the last `most` of them.
  stepsUntil(number, most) {
    let end = this.steps.length;
    if (number < this.last) {
      let low = 0;
      while (low < end) {
        const middle = (low + end) >> 1;
        if (this.steps[middle].number <= number) low = middle + 1;
        else end = middle;
      }
    }
    return this.steps.slice(Math.max(0, end - most), end);
  }

  // The number of the event at which the step `by` further on (or back) began.
  stepFrom(number, by) {
    const at = this.stepsUntil(number, 1).at(-1);
    const place = at ? this.steps.indexOf(at) : -1;
    const next = this.steps[place + (by < 0 && at.number < number ? by + 1 : by)];
    if (next) return next.number;
    return by < 0 ? this.first : this.last;
  }

  _segment(number) {
    return this._segments.findLast((segment) => segment.first <= number) ?? this._segments[0] ?? null;
  }

  _forget() {
    if (this.last - this._segments[0].first < this.kept + SEGMENT) return;
    this._segments.shift();
    const gone = this.steps.findIndex((step) => step.number >= this.first);
    this.steps.splice(0, gone);
    this._shown = null;
  }

  _note(event) {
    if (event.event === "step") {
      const { step, at, budget, members, waits } = event;
      const model = this.story.model(event.model).name;
      this.steps.push({ number: this.last, step, model, at, budget, members, waits, committed: null });
    } else if (event.event === "committed") {
      const step = this.steps.at(-1);
      if (step?.step !== event.step || step.committed) return;
      const emitted = event.outcomes.reduce((sum, one) => sum + one[6], 0);
      const forked = event.forks.reduce((sum, one) => sum + one[4], 0);
      Object.assign(step, {
        committed: this.last, committedAt: event.at, emitted: emitted + forked, outcomes: event.outcomes,
      });
    }
  }
}
