import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const out = {};
const models = []; for await (const m of client.models.list()) models.push(m.id); out.models = models;
const model = models[0];
const ask = [{ role: "user", content: "What is the capital of France?" }];
const whole = await client.chat.completions.create({ model, messages: ask, temperature: 0, max_completion_tokens: 16 });
out.text = whole.choices[0].message.content;
let streamed = ""; let usage = null;
for await (const c of await client.chat.completions.create({ model, messages: ask, temperature: 0, max_completion_tokens: 16, stream: true, stream_options: { include_usage: true } })) { streamed += c.choices[0]?.delta?.content ?? ""; usage = c.usage ?? usage; }
out.streamed = streamed; out.usage = [whole.usage.completion_tokens, usage.completion_tokens];
const runner = client.chat.completions.stream({ model, messages: ask, temperature: 0, max_tokens: 16 });
out.helper = (await runner.finalChatCompletion()).choices[0].message.content;
const tool = { type: "function", function: { name: "weather", strict: true, parameters: { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false } } };
const call = await client.chat.completions.create({ model, messages: ask, tools: [tool], tool_choice: "required", parallel_tool_calls: false, temperature: 0 });  // one call: a small model may repeat itself until its context is full
out.call = call.choices[0].message.tool_calls[0].function; out.reason = call.choices[0].finish_reason;
const parsed = await client.chat.completions.parse({ model, messages: ask, temperature: 0, response_format: { type: "json_schema", json_schema: { name: "a", strict: true, schema: tool.function.parameters } } });
out.parsed = parsed.choices[0].message.parsed ?? JSON.parse(parsed.choices[0].message.content);
const response = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 16 });
out.response = response.output_text;
const kinds = []; for await (const e of await client.responses.create({ model, input: "hi", max_output_tokens: 4, stream: true })) kinds.push(e.type);
out.kinds = kinds;
try { await client.chat.completions.create({ model, messages: ask, temperature: 3 }); } catch (e) { out.error = [e.constructor.name, e.status, e.param, e.message]; }
try { await client.models.retrieve("nope"); } catch (e) { out.missing = e.constructor.name; }
console.log(JSON.stringify(out));
