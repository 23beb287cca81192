// One answer on the page: reasoning, text and tool calls while they come, and what it cost.

import { button, copy, count, el, rate, seconds } from "./dom.js";
import { MarkdownView } from "./markdown.js";

export class AnswerView {
  /** actions: regenerate(), result(call, text); they are offered once the answer has ended. */
  constructor(actions) {
    this.actions = actions;
    this.message = { role: "assistant", content: "" };
    this.asked = performance.now();
    this.first = this.last = 0;
    this.usage = null;
    this.notes = [];
    this.text = el("div", { class: "text" });
    this.view = new MarkdownView(this.text);
    this.calls = el("div");
    this.under = el("div", { class: "under" }, el("span", { class: "figures wait", text: "…" }));
    this.noted = el("p", { class: "notes", hidden: true });
    this.node = el("article", { class: "turn assistant writing", "aria-label": "Answer" }, this.text, this.calls, this.under, this.noted);
    this.due = 0;
  }

  /** Show an answer that was made before. */
  restore(message, figures, last) {
    this.message = message;
    this.draw();
    this.close(figures, last);
  }

  chunk(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { delta } = choice;
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    if (delta.content || reasoning || delta.tool_calls) {
      this.last = performance.now();
      this.first ||= this.last;
    }
    if (delta.content) {
      this.message.content += delta.content;
      this.thought ??= this.message.reasoning ? this.last - this.first : undefined;
    }
    if (reasoning) this.message.reasoning = (this.message.reasoning || "") + reasoning;
    for (const part of delta.tool_calls || []) this.addCall(part);
    if (choice.finish_reason) this.finish = choice.finish_reason;
    // At most one drawing a frame, however fast tokens come; a hidden tab draws none, so a timer stands in.
    this.due ||= document.hidden ? setTimeout(() => this.draw(), 200) : requestAnimationFrame(() => this.draw());
  }

  addCall(part) {
    const calls = (this.message.tool_calls ||= []);
    const call = (calls[part.index] ||= { id: part.id, type: "function", function: { name: "", arguments: "" } });
    if (part.id) call.id = part.id;
    call.function.name += part.function?.name || "";
    call.function.arguments += part.function?.arguments || "";
  }

  draw() {
    this.due = 0;
    const { content, reasoning, tool_calls: calls } = this.message;
    if (reasoning) this.drawReasoning(reasoning, !content && !calls);
    this.view.update(content || "");
    if (calls) this.calls.replaceChildren(...calls.map((call) => this.card(call)));
    if (this.node.classList.contains("writing")) this.under.firstChild.textContent = this.figures() || "…";
    this.drawn?.();
  }

  drawReasoning(reasoning, going) {
    if (!this.thinking) {
      this.summary = el("summary");
      this.thoughts = el("div", { class: "said" });
      this.thinking = el("details", { class: "reasoning", open: going }, this.summary, this.thoughts);
      this.node.prepend(this.thinking);
      this.wasGoing = going;
    }
    if (this.wasGoing && !going) this.thinking.open = false; // the answer begins: out of its way
    this.wasGoing = going;
    this.thoughts.textContent = reasoning.trim();
    this.summary.textContent = going ? "Reasoning…" : this.thought ? `Reasoning, ${seconds(this.thought / 1000)}` : "Reasoning";
  }

  card(call) {
    let shown = call.function.arguments;
    try {
      shown = JSON.stringify(JSON.parse(shown), null, 2);
    } catch {
      // still being written
    }
    return el("div", { class: "call" }, el("div", { class: "head" }, "calls ", el("b", { text: call.function.name })), el("pre", { text: shown }));
  }

  note(text) {
    this.notes.push(text);
  }

  /** reason: complete, stopped or error. */
  end(reason, last) {
    if (this.due) cancelAnimationFrame(this.due), clearTimeout(this.due), this.draw();
    if (!this.message.content && this.message.tool_calls) this.message.content = null;
    const ended = reason === "stopped" ? "stopped" : this.finish === "length" ? "cut at the token limit" : "";
    const figures = [this.figures(), ended].filter(Boolean).join(" · ");
    this.close(figures, last);
    return figures;
  }

  figures() {
    if (!this.usage || !this.first) return "";
    const { prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details } = this.usage;
    const parts = [`${count(tokens)} token${tokens === 1 ? "" : "s"}`];
    const took = (this.last - this.first) / 1000;
    if (tokens > 1 && took > 0) parts.push(`${rate((tokens - 1) / took)} tokens/s`);
    parts.push(`first after ${seconds((this.first - this.asked) / 1000)}`);
    const cached = details?.cached_tokens;
    parts.push(`prompt ${count(prompt)}${cached ? `, ${count(cached)} cached` : ""}`);
    return parts.join(" · ");
  }

  /** Not being written any more. last: it is the last of the conversation, so it may be made again. */
  close(figures, last) {
    this.node.classList.remove("writing");
    this.view.update(this.message.content || "");
    const copier = button("Copy", () => copy(this.message.content || "", copier));
    this.under.replaceChildren(el("span", { class: "figures", text: figures }));
    if (this.message.content) this.under.append(copier);
    if (last) this.under.append(button("Regenerate", this.actions.regenerate));
    if (last && this.message.tool_calls) this.askResults();
    this.noted.textContent = this.notes.join(" ");
    this.noted.hidden = !this.notes.length;
  }

  /** No longer the last: it stays, but is not made again. */
  settle() {
    for (const node of this.under.querySelectorAll("button")) if (node.textContent === "Regenerate") node.remove();
    for (const node of this.calls.querySelectorAll(".result")) node.remove();
  }

  askResults() {
    const given = new Map();
    [...this.calls.children].forEach((card, at) => {
      const call = this.message.tool_calls[at];
      const input = el("textarea", { rows: "1", class: "code", "aria-label": `Result of ${call.function.name}`, placeholder: "result" });
      const give = button("Give result", () => {
        given.set(call.id, input.value);
        input.disabled = give.disabled = true;
        if (given.size === this.message.tool_calls.length) this.actions.results(this.message.tool_calls.map(({ id }) => [id, given.get(id)]));
      });
      card.append(el("div", { class: "result" }, input, give));
    });
  }
}
