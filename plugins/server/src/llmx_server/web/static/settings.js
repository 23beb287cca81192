// What the settings pane says, as fields of a request. An empty field is left out: the server's default holds.

import { byId, memory } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"];
const TEXTS = ["system", "stop", "tools", "tool_choice", "reasoning_effort"];
const ALL = [...NUMBERS, ...TEXTS];

export function setUpSettings() {
  const kept = memory.read("settings") || {};
  for (const name of ALL) if (typeof kept[name] === "string") byId(name).value = kept[name];
  const keep = () => memory.write("settings", Object.fromEntries(ALL.map((name) => [name, byId(name).value])));
  byId("settings-form").addEventListener("input", keep);
  byId("settings-form").addEventListener("reset", () => setTimeout(keep));
  byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
}

export const systemPrompt = () => byId("system").value.trim();

/** Fields for the request. Throws an Error that names the field when one cannot be read. */
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) {
    const input = byId(name);
    if (input.validity.badInput) throw new Error(`${name} is not a number`);
    if (input.value !== "") fields[name] = Number(input.value);
  }
  const stop = byId("stop").value.split("\n").filter((line) => line !== "");
  if (stop.length) fields.stop = stop;
  if (byId("reasoning_effort").value) fields.reasoning_effort = byId("reasoning_effort").value;
  const tools = byId("tools").value.trim();
  if (tools) {
    try {
      fields.tools = JSON.parse(tools);
    } catch (error) {
      throw new Error(`The tools in the settings are not valid JSON: ${error.message}`);
    }
    if (byId("tool_choice").value) fields.tool_choice = byId("tool_choice").value;
  }
  return fields;
}
