// What is said of requests. Sentences are made in one place, story/tell/sentences.py: the page shows the server the
// records that it draws, as views, and is told their words; a recorded page has them in it, for every event.

const ASK_EVERY_MS = 250;
const AGAIN_MS = 2000;
const MOST_ROWS = 60;
const NOT_YET = "…";

export class Words {
  // `told` hears that there are new words.
  constructor({ server, told }) {
    Object.assign(this, { _server: server, _told: told });
    this._lines = new Map();
    this._why = { key: "", id: "", sentences: [] };
    this._wanted = new Map();
    this._wantedWhy = null;
    this._nextAt = 0;
    this._asking = false;
  }

  // One line for a row: the latest that is known of it, as long as it is about the same thing.
  line(view) {
    const key = keyOf(view);
    const known = this._lines.get(view.id);
    if (known?.key !== key) this._wanted.set(view.id, { key, view, askedAt: known?.askedAt ?? 0 });
    else this._wanted.delete(view.id);
    return known?.about === about(view) ? known.text : NOT_YET;
  }

  // The sentences of the chosen one.
  why(view) {
    const key = JSON.stringify(view);
    this._wantedWhy = this._why.key === key ? null : { key, view };
    return this._why.id === view.id ? this._why.sentences : [];
  }

  // Asks for what is wanted by now; at most one question at a time, and not more often than every ASK_EVERY_MS.
  async ask(time) {
    if (this._asking || time < this._nextAt || (!this._wanted.size && !this._wantedWhy)) return;
    this._asking = true;
    const rows = [...this._wanted.values()].sort((a, b) => a.askedAt - b.askedAt).slice(0, MOST_ROWS);
    const why = this._wantedWhy;
    const question = { rows: rows.map(({ view }) => short(view)), chosen: why && merged(why.view) };
    try {
      const body = JSON.stringify(question);
      const headers = { "content-type": "application/json" };
      const answer = await this._server.json("/page/words", { method: "POST", headers, body });
      rows.forEach(({ key, view }, place) => {
        this._lines.set(view.id, { key, about: about(view), text: answer.rows[place], askedAt: time });
        if (this._wanted.get(view.id)?.key === key) this._wanted.delete(view.id);
      });
      if (why) this._why = { key: why.key, id: why.view.id, sentences: answer.chosen };
      this._nextAt = time + ASK_EVERY_MS;
      this._told();
    } catch (error) {
      console.info(`no words came: ${error.message}`);
      this._nextAt = time + AGAIN_MS;
    } finally {
      this._asking = false;
    }
  }

  // Only these rows are shown: what is known of others is forgotten.
  keep(ids) {
    for (const map of [this._lines, this._wanted]) for (const id of map.keys()) if (!ids.has(id)) map.delete(id);
  }
}

// The same from a recording: `sentences` are all that are ever said, `lives` say for each request from which event on
// which of them are true of it.
export class RecordedWords {
  constructor({ sentences, lives }, number) {
    Object.assign(this, { _sentences: sentences, _lives: lives, _number: number });
  }

  line(view) {
    const [, line] = this._at(view.id);
    return this._sentences[line] ?? "";
  }

  why(view) {
    const [, , why] = this._at(view.id);
    return why.map((place) => this._sentences[place]);
  }

  async ask() {}

  keep() {}

  _at(id) {
    const number = this._number();
    return this._lives[id]?.findLast(([from]) => from <= number) ?? [0, -1, []];
  }
}

// What a line depends on: all but how long it has been going on.
function keyOf(view) {
  const { elapsed_ms: elapsed, intervals, verdict, ...rest } = view;
  const over = ["finished", "cancelled", "failed"].includes(view.stage) ? elapsed : 0;
  return JSON.stringify([rest, verdict && { ...verdict, since_ms: 0 }, intervals.at(-1)?.name, over]);
}

// Older words still do where only their numbers have changed.
function about({ id, stage, verdict }) {
  return `${id} ${stage} ${verdict?.kind} ${verdict?.rule}`;
}

// A line needs no more of a life than its end.
function short(view) {
  return { ...view, intervals: view.intervals.slice(-1) };
}

// Sentences add up what a life spent on each kind of interval.
function merged(view) {
  const kinds = new Map();
  for (const interval of view.intervals) {
    const key = `${interval.name} ${interval.on} ${interval.rule}`;
    kinds.set(key, { ...interval, ms: (kinds.get(key)?.ms ?? 0) + interval.ms });
  }
  return { ...view, intervals: [...kinds.values()] };
}
