// The conversation: what was said, asking for the next answer, stopping, regenerating and editing.

import { KeyNeeded, ask } from "./api.js";
import { AnswerView } from "./answer.js";
import { button, byId, el, memory } from "./dom.js";
import { requestFields, systemPrompt } from "./settings.js";

const IDEAS = ["What is the capital of France?", "Explain a KV cache in three sentences.", "Write a haiku about rain."];
const NEAR_END = 60; // pixels: whoever has scrolled further up reads, and is left alone

export class Chat {
  /** host: model() names the one to ask; keyNeeded() is told when the server wants a key. */
  constructor(host) {
    this.host = host;
    this.log = byId("log");
    this.input = byId("input");
    this.messages = memory.read("chat") || []; // as the API has them; an answer's figures stand beside
    this.running = null;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.input.addEventListener("input", () => this.grow());
    byId("stop-answer").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.stop();
    });
    this.draw();
  }

  onKey(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !this.input.value && !this.running) {
      const edit = [...this.log.querySelectorAll(".turn.user .edit-button")].at(-1);
      if (edit) event.preventDefault(), edit.click();
    }
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight}px`;
  }

  send(text = this.input.value) {
    if (!text.trim() || this.running) return;
    this.input.value = "";
    this.grow();
    this.push({ role: "user", content: text });
    this.answer();
  }

  push(message) {
    this.messages.push(message);
    this.draw();
  }

  stop() {
    this.running?.stop();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.keep();
    this.draw();
    this.input.focus();
  }

  /** Drop what came after the last thing that was not an answer, and ask again. */
  regenerate() {
    while (this.messages.length && this.messages.at(-1).role === "assistant") this.messages.pop();
    this.draw();
    this.answer();
  }

  edit(at, text) {
    this.messages = this.messages.slice(0, at);
    this.push({ role: "user", content: text });
    this.answer();
  }

  /** [call id, result] of all calls of the last answer. */
  results(pairs) {
    for (const [id, content] of pairs) this.messages.push({ role: "tool", tool_call_id: id, content });
    this.draw();
    this.answer();
  }

  body() {
    const system = systemPrompt();
    const said = this.messages.map(({ figures, reasoning, ...message }) => message); // reasoning is not said again
    return {
      model: this.host.model(),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...said],
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...requestFields(),
    };
  }

  answer() {
    let body;
    try {
      body = this.body();
    } catch (error) {
      this.fail(error.message);
      return;
    }
    const view = this.answerView();
    const mine = this.messages; // another conversation may have begun when this answer ends
    view.drawn = () => this.follow();
    this.log.append(view.node);
    this.follow(true);
    this.busy(true);
    this.running = ask(body, {
      chunk: (chunk) => view.chunk(chunk),
      warning: (phrases) => view.note(`Ignored: ${phrases.join("; ")}.`),
      failed: (error) => this.failed(view, error),
      done: (reason) => {
        const figures = view.end(reason, mine === this.messages);
        if (mine !== this.messages) return;
        this.running = null;
        this.busy(false);
        const { message } = view;
        if (message.content || message.tool_calls || message.reasoning) this.messages.push({ ...message, figures });
        else view.node.remove();
        this.keep();
        this.follow();
        byId("spoken").textContent = reason === "stopped" ? "Stopped" : message.content || "";
      },
    });
  }

  answerView() {
    return new AnswerView({ regenerate: () => this.regenerate(), results: (pairs) => this.results(pairs) });
  }

  failed(view, error) {
    if (error instanceof KeyNeeded) this.host.keyNeeded();
    this.fail(error.message, view.node);
  }

  fail(text, before = null) {
    const again = el("div", { class: "under" }, button("Try again", () => this.regenerate()));
    const node = el("div", { class: "turn failed", role: "alert" }, el("p", { class: "said", text }), again);
    if (before) before.after(node);
    else this.log.append(node);
    this.follow(true);
  }

  busy(on) {
    byId("send").hidden = on;
    byId("stop-answer").hidden = !on;
    if (on && document.activeElement === byId("send")) byId("stop-answer").focus();
    if (!on && document.activeElement === byId("stop-answer")) this.input.focus();
  }

  follow(always = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.log;
    if (always) this.away = false;
    else if (this.away) return;
    this.log.scrollTop = scrollHeight;
    this.log.onscroll ??= () => (this.away = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight > NEAR_END);
    return scrollTop + clientHeight;
  }

  keep() {
    memory.write("chat", this.messages.length ? this.messages : null);
  }

  draw() {
    this.running = null;
    this.busy(false);
    this.log.replaceChildren(...(this.messages.length ? this.messages.map((message, at) => this.turn(message, at)) : [this.empty()]));
    this.keep();
    this.follow(true);
  }

  turn(message, at) {
    if (message.role === "assistant") {
      const view = this.answerView();
      const { figures, ...said } = message;
      view.restore(said, figures || "", at === this.messages.length - 1);
      return view.node;
    }
    const node = el("article", { class: `turn ${message.role}`, "aria-label": message.role === "tool" ? "Tool result" : "You" });
    node.append(el("div", { class: "said", text: message.content }));
    const last = this.messages.findLastIndex(({ role }) => role === "user");
    if (at === last) node.append(el("div", { class: "under" }, button("Edit", () => this.openEdit(node, at), { class: "edit-button" })));
    return node;
  }

  openEdit(node, at) {
    this.stop();
    const before = [...node.childNodes];
    const field = el("textarea", { rows: "3", "aria-label": "Edit your message" });
    field.value = this.messages[at].content;
    const back = () => (node.replaceChildren(...before), this.input.focus());
    const save = () => field.value.trim() && (this.edit(at, field.value), this.input.focus());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation(), back();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), save();
    });
    const row = el("div", { class: "row" }, button("Cancel", back, { class: "quiet" }), button("Send", save, { class: "primary" }));
    node.replaceChildren(el("div", { class: "edit" }, field, row));
    field.focus();
  }

  empty() {
    const ideas = IDEAS.map((idea) => button(idea, () => this.send(idea)));
    return el("div", { class: "empty" }, el("h2", { text: "Ask something" }), el("p", { text: "Everything stays between this page and your server." }), el("div", { class: "ideas" }, ...ideas));
  }
}
