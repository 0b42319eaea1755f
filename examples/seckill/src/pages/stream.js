// Requests to the admin listener. The token is kept for this tab, and never part of a URL.

const KEY = "admin-token";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** The server does not take the token. */
export class NoToken extends Error {}

async function send(method, path, body, signal) {
  const headers = { authorization: "Bearer " + token.get() };
  const response = await fetch(path, { method, headers, body, signal, cache: "no-store" });
  if (response.status === 401) throw new NoToken("The token is not the one of this server.");
  return response;
}

/** Sends a request, and returns the JSON of the response, or throws what the problem says. */
export async function request(method, path, body) {
  const response = await send(method, path, body && JSON.stringify(body));
  if (response.status === 204) return null;
  const content = await response.json();
  if (!response.ok) throw new Error([content.title, content.detail].filter(Boolean).join(". "));
  return content;
}

/** Reads server-sent events. EventSource can't send the token. */
async function* events(path, signal) {
  const response = await send("GET", path, undefined, signal);
  if (!response.ok) throw new Error((await response.json()).title);
  let text = "";
  for await (const chunk of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
    text += chunk;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      yield parse(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

async function* chunks(stream) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

function parse(text) {
  const event = { name: "message", data: "" };
  for (const line of text.split("\n")) {
    const [, field, value] = /^([a-z]*): ?(.*)$/.exec(line) ?? [];
    if (field === "event") event.name = value;
    if (field === "data") event.data += value;
  }
  return event;
}

/** How long no sample may come before the connection is made again. */
const SILENCE = 5000;
const PAUSE = 1000;

/** Follows the samples until the token is refused. */
export async function follow({ onEvent, onState }) {
  for (;;) {
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), SILENCE);
    try {
      onState("Connecting …");
      for await (const { name, data } of events("/admin/live", stop.signal)) {
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), SILENCE);
        onState("Live");
        onEvent(name, JSON.parse(data));
      }
      onState("The server has ended the connection: trying again");
    } catch (error) {
      if (error instanceof NoToken) throw error;
      onState("No connection: trying again");
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
    await new Promise((done) => setTimeout(done, PAUSE));
  }
}
