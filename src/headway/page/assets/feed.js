// The way to the server: JSON calls with the key, and server-sent events read with fetch, which can send headers.

const KEY = "headway-key";
const RETRY_MS = 1000;

// Asks for the key once, whoever meets the 401 first, and keeps it for this tab.
export class Server {
  constructor(askForKey) {
    this._askForKey = askForKey;
    this._asking = null;
  }

  // Throws Error with the server's own words for an answer that is none.
  async json(path, options = {}) {
    return (await this.asOf(path, options)).body;
  }

  // The same, with the id of the newest event that the answer takes into account.
  async asOf(path, options = {}) {
    const response = await this.open(path, options);
    const body = await response.json();
    if (!response.ok) throw new Error(body.error?.message ?? `${path} answered ${response.status}`);
    return { body, upto: response.headers.get("headway-event") };
  }

  async open(path, options = {}) {
    for (;;) {
      const key = sessionStorage.getItem(KEY);
      const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
      const response = await fetch(path, { ...options, headers });
      if (response.status !== 401) return response;
      if (sessionStorage.getItem(KEY) === key) await this._newKey(key !== null);
    }
  }

  async _newKey(wrong) {
    this._asking ??= this._askForKey(wrong).finally(() => {
      this._asking = null;
    });
    sessionStorage.setItem(KEY, await this._asking);
  }
}

// Frames of a stream of server-sent events: {id, event, data}, `data` as text.
export async function* frames(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const frame = { id: "", event: "message", data: "" };
      for (const row of part.split("\n")) {
        const colon = row.indexOf(": ");
        if (colon > 0) frame[row.slice(0, colon)] = row.slice(colon + 2);
      }
      if (frame.data) yield frame;
    }
  }
}

// Follows /v1/events for ever, from the oldest event that is kept; after a loss it goes on where it was.
//   told(event)       an event came
//   missed(between)   events are missing: before all others, or between two of them, so that what was told is stale.
//                     Answers with what stands for them, as `seeds` does
//   state(name)       "connecting", "live" or "lost"
//   clock(ns)         the server's clock says this, now
export async function follow(server, { told, missed, state, clock }) {
  let last = null;
  let seeds = [];
  for (;;) {
    try {
      state(last === null ? "connecting" : "lost");
      const response = await server.open("/v1/events", { headers: last === null ? {} : { "last-event-id": last } });
      if (!response.ok) throw new Error(`/v1/events answered ${response.status}`);
      clock(Number(response.headers.get("headway-clock-ns")));
      state("live");
      for await (const { id, event, data } of frames(response)) {
        const late = last === null && !id.endsWith("-1");
        if (event === "gap" || late) seeds = await missed(last !== null);
        if (event !== "gap") told(JSON.parse(data));
        last = id;
        while (seeds.length && reached(id, seeds[0].upto)) seeds.shift().tell();
      }
    } catch (error) {
      console.info(`the events broke off: ${error.message}`);
    }
    state("lost");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// Ids are EPOCH-NUMBER.
function reached(id, upto) {
  const [epoch, number] = split(id);
  const [other, wanted] = split(upto);
  return epoch === other && number >= wanted;
}

function split(id) {
  const dash = id.lastIndexOf("-");
  return [id.slice(0, dash), Number(id.slice(dash + 1))];
}
