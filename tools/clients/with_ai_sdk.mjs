// The AI SDK: `generateText`, `streamText` and `embed` of `ai`, over `@ai-sdk/openai-compatible`.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, Output, embed, generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';
import * as t from './tasks.mjs';

const { place } = t;
globalThis.AI_SDK_LOG_WARNINGS = false;
const open = (baseURL, apiKey = place.key) =>
  createOpenAICompatible({ name: 'headway', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const plain = open(place.url);
const withTools = open(place.toolsUrl);
const Person = z.object({ name: z.string(), trade: z.enum(['cook', 'smith']) });
const inputSchema = z.object({ city: z.string().max(20) });
const declared = (description) => tool({ description, inputSchema });
const runs = (description, execute) => tool({ description, inputSchema, execute });

const given = (fields) => ({
  model: plain(place.model), prompt: t.QUESTION, temperature: 0, maxOutputTokens: t.TOKENS, maxRetries: 0, ...fields,
});
const calling = (fields) => given({
  model: withTools(place.toolsModel), prompt: t.TOOL_QUESTION, maxOutputTokens: 64,
  tools: { get_time: declared('The time in a city.'), get_weather: declared('The weather in a city now.') },
  toolChoice: { type: 'tool', toolName: 'get_weather' }, ...fields,
});
const isCall = (status) => (error) => APICallError.isInstance(error) && error.statusCode === status;

await t.report({
  async chat() {
    const { text, usage, finishReason } = await generateText(given());
    t.same([text, finishReason], [await place.text(), 'stop'], 'the text');
    return `${text} (${usage.outputTokens} tokens)`;
  },
  async stream() {
    const result = streamText(given());
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    t.same(pieces.join(''), await place.text(), 'the text');
    return `${pieces.length} pieces, ${(await result.usage).outputTokens} tokens`;
  },
  async structured() {
    const output = Output.object({ schema: Person });
    return JSON.stringify((await generateText(given({ prompt: t.INVENT, maxOutputTokens: 100, output }))).output);
  },
  async tool_round_trip() {
    const tools = {
      get_time: runs('The time in a city.', async () => '12:00'),
      get_weather: runs('The weather in a city now.', async () => t.WEATHER),
    };
    const prepareStep = ({ stepNumber }) => (stepNumber ? { toolChoice: 'none' } : {});
    const result = await generateText(calling({ tools, prepareStep, stopWhen: isStepCount(2) }));
    t.same(result.steps[0].toolResults.map((made) => made.output), [t.WEATHER], "the tool's results");
    t.check(result.text, "no text after the tool's result");
    return result.text;
  },
  async forced_call() {
    const { toolCalls } = await generateText(calling());
    t.same(toolCalls.map((made) => made.toolName), ['get_weather'], 'the call');
    return t.city(toolCalls[0].input);
  },
  async streamed_call() {
    const result = streamText(calling());
    let pieces = 0;
    for await (const part of result.fullStream) pieces += part.type === 'tool-input-delta' ? 1 : 0;
    const [made] = await result.toolCalls;
    return `${pieces} pieces: ${t.city(made.input)}`;
  },
  // The library has no kind for it: what a program can read is the code in the body of a 400.
  overflow: () => t.expects(
    (error) => isCall(400)(error) && JSON.parse(error.responseBody).error.code === 'context_length_exceeded',
    () => generateText(given({ prompt: t.OVERFLOW })), 'maximum context length',
  ),
  async cancel() {
    const leave = new AbortController();
    const result = streamText(given({
      prompt: 'Tell a story.', maxOutputTokens: t.LONG_TOKENS, abortSignal: leave.signal, onError() {},
    }));
    for await (const part of result.fullStream) if (part.type === 'text-delta') leave.abort();
    return place.endsCancelled();
  },
  async cut_off() {
    const { text, finishReason } = await generateText(given({ maxOutputTokens: t.CUT_TOKENS }));
    t.same(finishReason, 'length', 'finishReason');
    return text;
  },
  async replayed_call() {
    const tools = { write_file: tool({ description: 'Writes text into a file.', inputSchema: z.object({ text: z.string() }) }) };
    const asked = [{ role: 'user', content: t.WRITE_QUESTION }];
    const shared = { tools, prompt: undefined };
    const cut = await generateText(calling({
      ...shared, messages: asked, toolChoice: { type: 'tool', toolName: 'write_file' }, maxOutputTokens: t.CUT_CALL_TOKENS,
    }));
    t.same(cut.finishReason, 'length', 'finishReason');
    const [made] = cut.toolCalls;
    const output = { type: 'error-text', value: 'error: cut off' };
    const result = { type: 'tool-result', toolCallId: made.toolCallId, toolName: 'write_file', output };
    const answered = cut.response.messages.some((message) => message.role === 'tool') ? [] : [{ role: 'tool', content: [result] }];
    const messages = [...asked, ...cut.response.messages, ...answered];
    await generateText(calling({ ...shared, messages, toolChoice: 'auto', maxOutputTokens: t.TOKENS }));
    return `${JSON.stringify(made.input)} was taken back`;
  },
  async stops() {
    const { text } = await generateText(given({ stopSequences: t.STOPS }));
    t.same(text, (await place.text()).split(t.STOPS.at(-1))[0], 'the text');
    return text;
  },
  embeddings: () => t.expects(
    (error) => APICallError.isInstance(error) && error.statusCode < 500,
    () => embed({ model: plain.embeddingModel(place.model), value: 'Hi', maxRetries: 0 }), 'embedding',
  ),
  wrong_key: () => t.expects(isCall(401), () => generateText(given({ model: open(place.url, 'sk-wrong')(place.model) }))),
}, {
  developer: 'the provider sends instructions as `system`',
  logprobs: 'the provider has no setting for it',
  n: 'a call has one answer',
  models: 'the AI SDK does not list models',
});
