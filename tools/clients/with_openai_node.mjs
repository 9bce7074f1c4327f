// openai-node.
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import * as t from './tasks.mjs';

const { place } = t;
const open = (baseURL, apiKey = place.key) => new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const plain = open(place.url);
const withTools = open(place.toolsUrl);
const Person = z.object({ name: z.string(), trade: z.enum(['cook', 'smith']) });
const tool = (name, description, parameters) => ({ type: 'function', function: { name, description, parameters } });
const TOOLS = [
  tool('get_time', 'The time in a city.', t.PARAMETERS),
  tool('get_weather', 'The weather in a city now.', t.PARAMETERS),
];
const text = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] };
const WRITE = [tool('write_file', 'Writes text into a file.', text)];
const force = (name) => ({ type: 'function', function: { name } });

const ask = (fields = {}, client = plain) => client.chat.completions.create({
  model: place.model, messages: [t.user(t.QUESTION)], temperature: 0, max_tokens: t.TOKENS, ...fields,
});
const call = (fields, more = [], question = t.TOOL_QUESTION) => withTools.chat.completions.create({
  model: place.toolsModel, messages: [t.user(question), ...more], tools: TOOLS, temperature: 0, max_tokens: 64, ...fields,
});
const resultOf = (made, content) => ({ role: 'tool', tool_call_id: made.id, content });

await t.report({
  async chat() {
    const answer = await ask();
    t.same(answer.choices[0].message.content, await place.text(), 'the text');
    return `${answer.choices[0].message.content} (${answer.usage.completion_tokens} tokens)`;
  },
  async stream() {
    const pieces = [];
    let usage;
    for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
      pieces.push(chunk.choices[0]?.delta.content ?? '');
      usage = chunk.usage;
    }
    t.same(pieces.join(''), await place.text(), 'the text');
    return `${pieces.length} pieces, ${usage.completion_tokens} tokens`;
  },
  async structured() {
    const answer = await plain.chat.completions.parse({
      model: place.model, messages: [t.user(t.INVENT)], temperature: 0, max_tokens: 100,
      response_format: zodResponseFormat(Person, 'person'),
    });
    return JSON.stringify(answer.choices[0].message.parsed);
  },
  async tool_round_trip() {
    const { message } = (await call({ tool_choice: 'required', parallel_tool_calls: false })).choices[0];
    const result = resultOf(message.tool_calls[0], t.WEATHER);
    const answer = await call({ tool_choice: 'none' }, [message, result]);
    t.check(answer.choices[0].message.content, "no text after the tool's result");
    return answer.choices[0].message.content;
  },
  async forced_call() {
    const [choice] = (await call({ tool_choice: force('get_weather') })).choices;
    const names = choice.message.tool_calls.map((made) => made.function.name);
    t.same([names, choice.finish_reason], [['get_weather'], 'tool_calls'], 'the call');
    return t.city(choice.message.tool_calls[0].function.arguments);
  },
  async streamed_call() {
    const stream = withTools.chat.completions.stream({
      model: place.toolsModel, messages: [t.user(t.TOOL_QUESTION)], tools: TOOLS,
      tool_choice: force('get_weather'), temperature: 0, max_tokens: 64,
    });
    const [made] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
    return t.city(made.function.arguments);
  },
  overflow: () => t.expects(
    (error) => error instanceof OpenAI.BadRequestError && error.code === 'context_length_exceeded',
    () => ask({ messages: [t.user(t.OVERFLOW)] }), 'maximum context length',
  ),
  async cancel() {
    for await (const _ of await ask({ stream: true, max_tokens: t.LONG_TOKENS, messages: [t.user('Tell a story.')] })) break;
    return place.endsCancelled();
  },
  async cut_off() {
    const [choice] = (await ask({ max_tokens: t.CUT_TOKENS })).choices;
    t.same(choice.finish_reason, 'length', 'finish_reason');
    return choice.message.content;
  },
  async replayed_call() {
    const fields = { tools: WRITE, tool_choice: force('write_file'), max_tokens: t.CUT_CALL_TOKENS };
    const [cut] = (await call(fields, [], t.WRITE_QUESTION)).choices;
    t.same(cut.finish_reason, 'length', 'finish_reason');
    const [made] = cut.message.tool_calls;
    await call({ tools: WRITE, max_tokens: t.TOKENS }, [cut.message, resultOf(made, 'error: cut off')], t.WRITE_QUESTION);
    return `'${made.function.arguments}' was taken back`;
  },
  async developer() {
    const messages = [{ role: 'developer', content: t.INSTRUCTIONS }, t.user(t.QUESTION)];
    const { prompt_tokens } = (await ask({ messages, max_tokens: 1 })).usage;
    t.same(prompt_tokens, await place.tokensWithInstructions(), 'prompt tokens');
    return `${prompt_tokens} prompt tokens`;
  },
  async logprobs() {
    const rows = (await ask({ logprobs: true, top_logprobs: 2, max_tokens: 4 })).choices[0].logprobs.content;
    t.same(rows.map((row) => row.top_logprobs.length), [2, 2, 2, 2], 'alternatives');
    return `'${rows[0].token}' ${rows[0].logprob.toFixed(3)}`;
  },
  async stops() {
    const [choice] = (await ask({ stop: t.STOPS })).choices;
    t.same(choice.message.content, (await place.text()).split(t.STOPS.at(-1))[0], 'the text');
    return choice.message.content;
  },
  async n() {
    const { choices } = await ask({ n: 2, temperature: 1, seed: 3 });
    t.same(choices.map((choice) => choice.index), [0, 1], 'the indices');
    return choices.map((choice) => choice.message.content).join(' / ');
  },
  embeddings: () => t.expects(
    (error) => error instanceof OpenAI.APIError && error.status < 500,
    () => plain.embeddings.create({ model: place.model, input: 'Hi' }), 'embedding',
  ),
  async models() {
    const names = [];
    for await (const model of plain.models.list()) names.push(model.id);
    t.check(names.includes(place.model), `only ${names}`);
    return names.join(', ');
  },
  wrong_key: () => t.expects((error) => error instanceof OpenAI.AuthenticationError, () => ask({}, open(place.url, 'sk-wrong'))),
}, {});
