// One use of the OpenAI SDK against the server at a base URL. What came of it goes to standard output as JSON.
//
//   node sdk.mjs NAME BASE_URL NODE_MODULES

import { createRequire } from "node:module";

const [name, baseURL, modules] = process.argv.slice(2);
const { default: OpenAI } = createRequire(`${modules}/`)("openai");
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

const model = "TandemLLM";
const script = (...entries) => [{ role: "user", content: JSON.stringify({ script: entries }) }];
const plan = (...turns) => [{ role: "user", content: JSON.stringify({ turns: turns.map((turn) => [turn]) }) }];
const xml = (tool, key, value) =>
  `<tool_call>\n<function=${tool}>\n<parameter=${key}>\n${value}\n</parameter>\n</function>\n</tool_call>`;

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
const personFormat = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
const square = (calls) => ({
  type: "function",
  function: {
    name: "square",
    description: "The square of an integer.",
    parameters: { type: "object", properties: { of: { type: "integer" } }, required: ["of"] },
    parse: JSON.parse,
    function: ({ of }) => {
      calls.push(of);
      return String(of * of);
    },
  },
});

const uses = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: script("Hello ", "ü😀.") });
    return { text: answer.choices[0].message.content, finish: answer.choices[0].finish_reason, usage: answer.usage };
  },

  async stream() {
    const stream = await client.chat.completions.create({
      model,
      messages: script("</think>", "one ", "two ", "three"),
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return { text, usage };
  },

  async helper() {
    const stream = client.chat.completions.stream({ model, messages: script("one ", "two ", "three") });
    let pieces = "";
    stream.on("content", (delta) => (pieces += delta));
    const final = await stream.finalChatCompletion();
    return { pieces, text: await stream.finalContent(), finish: final.choices[0].finish_reason };
  },

  async reasoning() {
    const stream = await client.chat.completions.create({
      model,
      messages: script("I think.\n", "</think>\n\n", "I say."),
      stream: true,
    });
    const said = { reasoning: "", content: "" };
    for await (const chunk of stream) {
      said.reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
      said.content += chunk.choices[0]?.delta.content ?? "";
    }
    return said;
  },

  async tools() {
    const calls = [];
    const runner = client.chat.completions.runTools({
      model,
      messages: plan(xml("square", "of", 12), xml("square", "of", 144), "It is 20736."),
      tools: [square(calls)],
    });
    return { text: await runner.finalContent(), calls, roles: runner.messages.map((message) => message.role) };
  },

  async streamedTools() {
    const calls = [];
    const runner = client.chat.completions.runTools({
      model,
      stream: true,
      messages: plan(`${xml("square", "of", 2)}\n${xml("square", "of", 3)}`, "Four and nine."),
      tools: [square(calls)],
    });
    return { text: await runner.finalContent(), calls };
  },

  async parse() {
    const answer = await client.chat.completions.parse({
      model,
      messages: script('```json\n{"name": "Ada"'),
      max_tokens: 400,
      response_format: personFormat,
    });
    return answer.choices[0].message.parsed;
  },

  async streamedDocument() {
    const stream = client.chat.completions.stream({
      model,
      messages: script('{"name": "Ada", ', '"age": 36}'),
      response_format: personFormat,
    });
    return JSON.parse(await stream.finalContent());
  },

  async logprobs() {
    const answer = await client.chat.completions.create({
      model,
      messages: script("abc"),
      logprobs: true,
      top_logprobs: 2,
    });
    return answer.choices[0].logprobs.content;
  },

  async choices() {
    const answer = await client.chat.completions.create({ model, messages: script("same"), n: 3 });
    return answer.choices.map((choice) => [choice.index, choice.message.content]);
  },

  async completion() {
    const answer = await client.completions.create({ model, prompt: JSON.stringify({ script: ["plain"] }) });
    return { text: answer.choices[0].text, finish: answer.choices[0].finish_reason };
  },

  async models() {
    const names = [];
    for await (const entry of client.models.list()) names.push(entry.id);
    return { names, one: (await client.models.retrieve(names[0])).id };
  },

  async errors() {
    const wrong = {
      badRequest: () => client.chat.completions.create({ model, messages: script("x"), temperature: 9 }),
      notFound: () => client.models.retrieve("no-such-model"),
      noRoute: () => client.embeddings.create({ model, input: "x" }),
      schema: () =>
        client.chat.completions.create({
          model,
          messages: script("x"),
          response_format: { type: "json_schema", json_schema: { name: "x", schema: { type: "strange" } } },
        }),
    };
    const seen = {};
    for (const [what, ask] of Object.entries(wrong)) {
      try {
        await ask();
        seen[what] = "no error";
      } catch (error) {
        const kind = Object.getPrototypeOf(error).constructor;
        seen[what] = { kind: kind === OpenAI[kind.name] ? kind.name : `not exported: ${kind.name}` };
        Object.assign(seen[what], { status: error.status, param: error.param, code: error.code });
      }
    }
    return seen;
  },

  async leaving() {
    const stream = await client.chat.completions.create({
      model,
      messages: [{ role: "user", content: JSON.stringify({ script: [{ sleep_ms: 50 }, "word "], end: false }) }],
      stream: true,
    });
    let pieces = 0;
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content && ++pieces === 3) break;
    return { pieces };
  },

  async responses() {
    const answer = await client.responses.create({ model, input: script("Hello ", "there.") });
    const parsed = await client.responses.parse({
      model,
      input: script('{"name": "Ada", "age": 36}'),
      text: { format: { type: "json_schema", name: "person", schema: PERSON, strict: true } },
    });
    return { text: answer.output_text, status: answer.status, parsed: parsed.output_parsed };
  },

  async streamedResponses() {
    const stream = client.responses.stream({ model, input: script("I think.\n", "</think>\n\n", "one ", "two") });
    const types = [];
    let text = "";
    stream.on("event", (event) => types.push(event.type));
    stream.on("response.output_text.delta", (event) => (text += event.delta));
    const final = await stream.finalResponse();
    return { types: [...new Set(types)], text, final: final.output_text, items: final.output.map((item) => item.type) };
  },

  async responsesTools() {
    const tool = {
      type: "function",
      name: "square",
      parameters: { type: "object", properties: { of: { type: "integer" } }, required: ["of"] },
      strict: false,
    };
    const input = plan(xml("square", "of", 12), "It is 144.");
    const first = await client.responses.create({ model, input, tools: [tool] });
    const call = first.output.find((item) => item.type === "function_call");
    input.push(...first.output, { type: "function_call_output", call_id: call.call_id, output: "144" });
    const second = await client.responses.create({ model, input, tools: [tool] });
    return { arguments: JSON.parse(call.arguments), name: call.name, text: second.output_text };
  },
};

console.log(JSON.stringify(await uses[name]()));
