// The live view of the engine: asks /engine/state once a second while somebody looks.

import { KeyNeeded, getJson } from "./api.js";
import { blockMap, sparkline } from "./charts.js";
import { byId, bytes, count, el, percent, rate, seconds, span } from "./dom.js";

const EVERY_MS = 1000;
const HIDDEN_MS = 5000; // the panel is closed: only the state in the bar is shown
const KEPT = 90; // values of a history
const MINUTE = 60;
const WORDS = { first_token: "First token", between_tokens: "Between tokens", whole_answer: "Whole answer" };

export class EngineView {
  /** told: model() names the one whose engine is shown; state(kind, text) for the bar; models(names) when they are known; lost(): the model is not there; keyNeeded(). */
  constructor(told) {
    this.told = told;
    this.pane = byId("engine");
    this.forget();
    this.timer = 0;
    document.addEventListener("visibilitychange", () => document.hidden || this.soon());
    new ResizeObserver(() => this.drawMap()).observe(this.pane);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawMap());
    this.look();
  }

  forget() {
    this.before = null;
    this.history = { running: [], waiting: [], speed: [], prompt: [] };
    this.hits = [];
  }

  /** Another model was picked: its engine is another one. */
  changed() {
    this.forget();
    this.soon();
  }

  /** Look now, and go on from there. */
  soon() {
    clearTimeout(this.timer);
    this.look();
  }

  async look() {
    const turn = (this.turn = (this.turn || 0) + 1);
    try {
      const model = this.told.model();
      const state = await getJson(model ? `engine/state?model=${encodeURIComponent(model)}` : "engine/state");
      if (turn !== this.turn) return;
      this.show(state);
    } catch (error) {
      if (turn !== this.turn) return;
      this.pane.classList.add("stale");
      this.told.state("bad", error instanceof KeyNeeded ? "needs a key" : "not reached");
      if (error instanceof KeyNeeded) {
        this.told.keyNeeded();
        return; // asked again when a key is given
      }
      this.told.lost();
    }
    if (!document.hidden) this.timer = setTimeout(() => this.look(), this.pane.hidden ? HIDDEN_MS : EVERY_MS);
  }

  show(state) {
    this.told.models(state.models);
    const { engine } = state;
    this.pane.classList.toggle("stale", !engine);
    if (!engine) {
      this.told.state(state.phase === "loading" ? "busy" : "bad", state.phase);
      return;
    }
    const { running, waiting } = engine.requests;
    const busy = waiting ? `${running} running, ${waiting} waiting` : running ? `${running} running` : "ready";
    this.told.state(state.phase === "draining" ? "bad" : running ? "busy" : "ready", state.phase === "draining" ? "shutting down" : busy);
    this.state = state;
    this.note(state);
    if (!this.pane.hidden) this.draw(state);
    this.before = state;
  }

  /** Rates are differences between two looks. A counter that fell means that the engine was started again. */
  note({ time, engine }) {
    const { before, history } = this;
    const took = before ? time - before.time : 0;
    const per = (now, then) => (took > 0 && now >= then ? (now - then) / took : 0);
    const add = (name, value) => {
      history[name].push(value);
      if (history[name].length > KEPT) history[name].shift();
    };
    add("running", engine.requests.running);
    add("waiting", engine.requests.waiting);
    add("speed", per(engine.tokens.generated, before?.engine.tokens.generated));
    add("prompt", per(engine.tokens.prompt, before?.engine.tokens.prompt));
    this.hits.push({ time, ...engine.prefix_cache });
    while (this.hits.length > 1 && time - this.hits[0].time > MINUTE) this.hits.shift();
  }

  draw(state) {
    const { engine, info, latency } = state;
    const { history } = this;
    const set = (id, text) => (byId(id).textContent = text);
    set("running", count(engine.requests.running));
    set("waiting", count(engine.requests.waiting));
    set("speed", rate(history.speed.at(-1)));
    set("prompt-speed", rate(history.prompt.at(-1)));
    sparkline(byId("running-spark"), history.running, KEPT);
    sparkline(byId("waiting-spark"), history.waiting, KEPT);
    sparkline(byId("speed-spark"), history.speed, KEPT);
    sparkline(byId("prompt-spark"), history.prompt, KEPT);
    this.drawMap();
    const { kv } = engine;
    for (const name of ["held", "cached", "free"]) set(`kv-${name}`, count(kv[name]));
    set("kv-size", `${count(kv.blocks)} blocks${info.kv_bytes ? `, ${bytes(info.kv_bytes)}` : ""}`);
    byId("kv-map").setAttribute("aria-label", `KV blocks: ${kv.held} held, ${kv.cached} cached, ${kv.free} free`);
    this.drawPrefix(engine.prefix_cache);
    byId("latency").replaceChildren(...Object.entries(latency).map(([name, row]) => latencyRow(WORDS[name] || name, row)));
    this.drawFacts(state);
  }

  drawMap() {
    const kv = this.state?.engine.kv;
    if (!kv || this.pane.hidden) return;
    const perCell = blockMap(byId("kv-map"), kv.map, kv.blocks);
    byId("kv-scale").textContent = perCell > 1 ? `a cell is ${perCell} blocks` : "";
  }

  drawPrefix({ hits, queries }) {
    const [first, last] = [this.hits[0], this.hits.at(-1)];
    const recent = [last.hits - first.hits, last.queries - first.queries];
    byId("prefix-recent").textContent = recent[1] > 0 ? `${percent(...recent)} of ${count(recent[1])} tokens` : "no prompts";
    byId("prefix-all").textContent = queries ? `${percent(hits, queries)} of ${count(queries)} tokens` : "no prompts";
    byId("prefix-fill").style.width = queries ? `${(100 * hits) / queries}%` : "0";
  }

  drawFacts({ engine, info, version, started, time }) {
    const { steps } = engine;
    const ended = Object.values(engine.requests.ended).reduce((sum, one) => sum + one, 0);
    const rows = {
      "Device busy": `${Math.round(100 * steps.device_busy)}%`,
      "Step budget used": `${Math.round(100 * steps.budget_used)}%`,
      "Steps": count(steps.count),
      "Preemptions": count(steps.preemptions),
      "Drafts accepted": engine.drafts.made ? `${percent(engine.drafts.accepted, engine.drafts.made)} of ${count(engine.drafts.made)}` : "",
      "Answers ended": count(ended),
      "Tokens in, out": `${count(engine.tokens.prompt)}, ${count(engine.tokens.generated)}`,
      "Platform": [info.platform, info.threads && `${info.threads} thread${info.threads === 1 ? "" : "s"}`].filter(Boolean).join(", "),
      "Numbers": [info.dtype, info.kv_dtype && `KV ${info.kv_dtype}`].filter(Boolean).join(", "),
      "Context": info.max_model_len ? `${count(info.max_model_len)} tokens` : "",
      "Batch": info.max_num_seqs ? `up to ${count(info.max_num_seqs)} requests` : "",
      "Up": span(time - started),
      "Version": version,
    };
    const nodes = Object.entries(rows).filter(([, value]) => value).flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]);
    byId("facts").replaceChildren(...nodes);
  }
}

function latencyRow(name, { p50, p90, p99 }) {
  return el("tr", {}, el("th", { scope: "row", text: name }), ...[p50, p90, p99].map((value) => el("td", { text: seconds(value) })));
}
