// What the Node clients are asked, and how their answers are reported: tasks.py in JavaScript.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

const DATA = JSON.parse(readFileSync(new URL('./tasks.json', import.meta.url), 'utf8'));
export const { question: QUESTION, tool_question: TOOL_QUESTION, write_question: WRITE_QUESTION } = DATA;
export const { instructions: INSTRUCTIONS, invent: INVENT, weather: WEATHER, stops: STOPS, parameters: PARAMETERS } = DATA;
export const OVERFLOW = 'word '.repeat(DATA.overflow_words);
export const [TOKENS, CUT_TOKENS, CUT_CALL_TOKENS, LONG_TOKENS] = [16, 3, 30, 2000];
const TELL_CHARACTERS = 400;
const PATIENCE_MS = 30_000;

const names = ['url', 'model', 'tools-url', 'tools-model', 'key', 'only'];
const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: 'string' }])) });

// Where the servers are. `tools` has a chat template with tools; both take the same key.
export const place = {
  url: `${values.url}/v1`, model: values.model, key: values.key,
  toolsUrl: `${values['tools-url']}/v1`, toolsModel: values['tools-model'],

  async ask(path, body) {
    const headers = { 'content-type': 'application/json', authorization: `Bearer ${values.key}` };
    const response = await fetch(values.url + path, body && { method: 'POST', headers, body: JSON.stringify(body) } || { headers });
    return response.json();
  },
  chat(messages, fields) {
    return this.ask('/v1/chat/completions', { model: this.model, messages, temperature: 0, max_tokens: TOKENS, ...fields });
  },
  async text() {
    return (await this.chat([user(QUESTION)])).choices[0].message.content;
  },
  async tokensWithInstructions() {
    const messages = [{ role: 'system', content: INSTRUCTIONS }, user(QUESTION)];
    return (await this.chat(messages, { max_tokens: 1 })).usage.prompt_tokens;
  },
  async newest() {
    const { data } = await this.ask('/v1/requests?limit=1000');
    const number = (record) => Number(record.id.match(/(\d+)(~\d+)?$/)?.[1] ?? 0);
    return data.reduce((best, record) => (number(record) > number(best) ? record : best));
  },
  // Waits until the newest request is over; it must be a cancelled one.
  async endsCancelled() {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
      const record = await this.newest();
      if (!['received', 'waiting', 'running'].includes(record.stage)) {
        same(record.stage, 'cancelled', "its record's stage");
        return `cancelled after ${record.sequences[0].tokens.emitted} tokens`;
      }
      check(Date.now() < deadline, `the server still serves it after 30 s: ${record.stage}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  },
};

export class Wrong extends Error {}

export const user = (content) => ({ role: 'user', content });

export function check(truth, reason) {
  if (!truth) throw new Wrong(reason);
}

export function same(found, right, what) {
  check(JSON.stringify(found) === JSON.stringify(right), `${what} is ${JSON.stringify(found)}, right is ${JSON.stringify(right)}`);
}

// The city of a call's arguments, which must be within PARAMETERS.
export function city(args) {
  const read = typeof args === 'string' ? JSON.parse(args) : args;
  check(Object.keys(read).join() === 'city' && typeof read.city === 'string', `arguments ${JSON.stringify(read)} are not within the schema`);
  return `get_weather(${read.city})`;
}

const told = (error) => `${error.constructor.name}: ${error.message}`;

// Calls; the right end is an error for which `isRight` holds, and whose message has the words.
export async function expects(isRight, call, ...words) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    check(isRight(error), `another kind of error: ${told(error)} ${error.responseBody ?? ''}`);
    for (const word of words) check(error.message.includes(word), `does not say '${word}': ${told(error)}`);
    return told(error);
  }
  throw new Wrong(`answered, although it should be refused: ${JSON.stringify(answer)}`);
}

// Runs each task in order; one JSON line each. `lacks` says why a task has no function.
export async function report(tasks, lacks) {
  for (const [task] of DATA.tasks) {
    if (values.only && !values.only.split(',').includes(task)) continue;
    let outcome = { ok: null, detail: lacks[task] };
    if (tasks[task]) {
      try {
        outcome = { ok: true, detail: await tasks[task]() };
      } catch (error) {
        outcome = { ok: false, detail: error instanceof Wrong ? error.message : told(error) };
      }
    }
    const detail = String(outcome.detail).replace(/\s+/g, ' ').slice(0, TELL_CHARACTERS);
    console.log(JSON.stringify({ task, ok: outcome.ok, detail }));
  }
}
