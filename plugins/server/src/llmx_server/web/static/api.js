// The server, as this page uses it: JSON over HTTP, answers over a WebSocket. Addresses are relative, so that a path prefix works.

import { memory } from "./dom.js";

let key = memory.read("key") || "";

export const apiKey = () => key;
export function setApiKey(value) {
  key = value.trim();
  memory.write("key", key || null);
}

/** The server asks for a key, and has none or a wrong one. */
export class KeyNeeded extends Error {}

const address = (path) => new URL(path, document.baseURI);

export async function getJson(path) {
  const answer = await fetch(address(path), { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
  if (answer.status === 401) throw new KeyNeeded("the server asks for an API key");
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error?.message || `${path}: ${answer.status} ${answer.statusText}`);
  return body;
}

const NO_KEY = 4401;

/**
 * Ask for one answer. told: chunk(object), warning(phrases), failed(error), done(reason: complete, stopped, error).
 * Gives back {stop}; after `done` nothing more is told.
 */
export function ask(body, told) {
  const url = address("v1/chat/ws");
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(url);
  let asked = false;
  let over = false;
  let opened = false;

  const end = (reason, error) => {
    if (over) return;
    over = true;
    if (error) told.failed(error);
    told.done(reason);
    socket.close();
  };

  socket.onopen = () => {
    opened = true;
    if (key) socket.send(JSON.stringify({ type: "auth", api_key: key }));
  };
  socket.onmessage = ({ data }) => {
    if (over) return;
    const message = JSON.parse(data);
    if (message.type === "ready") {
      if (!asked) socket.send(JSON.stringify(body));
      asked = true;
    } else if (message.type === "warning") told.warning(message.ignored);
    else if (message.type === "done") end(message.reason);
    else if (message.error) told.failed(new Error(message.error.message));
    else told.chunk(message);
  };
  socket.onclose = ({ code, reason }) => {
    if (code === NO_KEY) end("error", new KeyNeeded("the server asks for an API key"));
    else if (!opened) end("error", new Error("the connection could not be opened: is the server running, and does a proxy in front pass WebSockets on?"));
    else end("error", new Error(`the connection was closed before the answer ended${reason ? `: ${reason}` : ""}`));
  };
  return {
    stop() {
      if (asked && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "stop" }));
      else end("stopped");
    },
  };
}
