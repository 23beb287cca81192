// Puts the page together: panes, model picker, key, chat and engine view.

import { apiKey, getJson, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, el, memory } from "./dom.js";
import { EngineView } from "./engine.js";
import { setUpSettings } from "./settings.js";

const WIDE = matchMedia("(min-width: 901px)");
const panes = ["settings", "engine"];
let engine = null;

function show(name, open) {
  if (open && !WIDE.matches) for (const other of panes) if (other !== name) show(other, false); // one at a time lies over the chat
  byId(name).hidden = !open;
  byId(`toggle-${name}`).setAttribute("aria-expanded", String(open));
  memory.write(`pane.${name}`, open);
  if (open && name === "engine") engine?.soon();
}

for (const name of panes) {
  byId(`toggle-${name}`).addEventListener("click", () => show(name, byId(name).hidden));
  show(name, WIDE.matches && (memory.read(`pane.${name}`) ?? (name === "engine" && matchMedia("(min-width: 1100px)").matches)));
}
byId("new-chat").addEventListener("click", () => WIDE.matches || panes.forEach((name) => show(name, false)));

let wanted = memory.read("model");

async function loadModels() {
  try {
    const { data } = await getJson("v1/models");
    const options = data.map(({ id }) => el("option", { value: id, text: id }));
    byId("model").replaceChildren(...options);
    if (data.some(({ id }) => id === wanted)) byId("model").value = wanted;
  } catch {
    // the bar says what is wrong; the next look at the engine tries again
  }
}

byId("model").addEventListener("change", () => {
  memory.write("model", (wanted = byId("model").value));
  engine.changed();
});

const hint = byId("key-hint");
const hintText = hint.textContent;

function keyNeeded() {
  if (hint.classList.contains("bad")) return;
  hint.textContent = apiKey() ? "The server does not know this key." : "This server asks for an API key.";
  hint.classList.add("bad");
  show("settings", true);
  byId("api-key").focus();
}

byId("api-key").value = apiKey();
byId("api-key").addEventListener("change", () => {
  setApiKey(byId("api-key").value);
  hint.textContent = hintText;
  hint.classList.remove("bad");
  engine.soon();
});

setUpSettings();
new Chat({ model: () => byId("model").value || undefined, keyNeeded });
engine = new EngineView({
  keyNeeded,
  model: () => byId("model").value,
  lost: loadModels,
  state(kind, text) {
    byId("state").dataset.state = kind;
    if (byId("state-text").textContent !== text) byId("state-text").textContent = text;
    byId("state").title = text;
  },
  models(names) {
    const shown = [...byId("model").options].map(({ value }) => value);
    if (names.length && names.join("\n") !== shown.join("\n")) loadModels();
  },
});
