// What moment is shown: now, or one in the past while events go on being collected; and what the time is on the
// server.

// While a recorded page plays, nothing happens for so long at most; the rest of a longer silence is left out.
const SILENCE_NS = 5e8;

export class Moment {
  constructor(tape, { recorded = false } = {}) {
    this.tape = tape;
    this.recorded = recorded;
    this.held = recorded ? 0 : null;
    this._offset = 0;
    this._playing = null;
  }

  // The server's clock says `ns` now: from here on it is told by the browser's own.
  set(ns) {
    this._offset = performance.now() * 1e6 - ns;
  }

  // The tape was cleared: what was held is gone.
  anew() {
    this.held = null;
  }

  // The number of the last event that is shown.
  get number() {
    return this.held === null ? this.tape.last : Math.max(this.tape.first, Math.min(this.held, this.tape.last));
  }

  get story() {
    return this.tape.at(this.number);
  }

  // Server time, in nanoseconds, of what is shown; it stands still while nobody is alive.
  now() {
    const story = this.story;
    if (this._playing) return Math.max(story.at, this._playing.at);
    if (this.held !== null || !story.live.size) return story.at;
    return Math.max(story.at, performance.now() * 1e6 - this._offset);
  }

  get playing() {
    return this._playing !== null;
  }

  hold(number) {
    this._playing = null;
    this.held = Math.max(this.tape.first, Math.min(number, this.tape.last));
  }

  // A server's page goes back to now; a recorded one to its end.
  release() {
    this._playing = null;
    this.held = this.recorded ? this.tape.last : null;
  }

  step(by) {
    this.hold(this.tape.stepFrom(this.number, by));
  }

  // Hold and go on; a recorded page plays, from the start if it was at its end.
  toggle() {
    if (!this.recorded) {
      if (this.held === null) this.hold(this.tape.last);
      else this.release();
    } else if (this._playing) {
      this._playing = null;
    } else {
      if (this.number >= this.tape.last) this.held = this.tape.first;
      this._playing = { at: this.story.at };
    }
  }

  // A frame of `ns` has passed. Returns whether what is shown has changed by that.
  pass(ns) {
    if (!this._playing) return false;
    let next = this.number;
    const coming = next < this.tape.last ? this.tape.event(next + 1).at : 0;
    this._playing.at = Math.max(this._playing.at + ns, coming - SILENCE_NS);
    while (next < this.tape.last && this.tape.event(next + 1).at <= this._playing.at) next += 1;
    this.held = next;
    if (next >= this.tape.last) this._playing = null;
    return true;
  }
}
