// One request for samples: a POST whose answer is a stream of events.
"use strict";

const Ask = (() => {
  const KEY = "atoll-token";

  class Refused extends Error {
    constructor(status, message) { super(message); this.status = status; }
  }

  const headers = () => {
    const token = sessionStorage.getItem(KEY);
    return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  };

  async function refusal(answer) {
    let message = `the server answers ${answer.status}`;
    try { message = (await answer.json()).error.message; } catch (error) { /* no words of its own */ }
    return new Refused(answer.status, message);
  }

  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const event = { name: "message", data: "" };
        for (const line of text.slice(0, end).split("\n")) {
          if (line.startsWith("event: ")) event.name = line.slice(7);
          if (line.startsWith("data: ")) event.data += line.slice(6);
        }
        text = text.slice(end + 2);
        if (event.data) yield { name: event.name, facts: JSON.parse(event.data) };
      }
    }
  }

  // The finished answer; `progress` is called with every step that is told of.
  async function samples(request, progress, signal) {
    const every = Math.max(1, Math.round((request.steps || 50) / 16));
    const body = JSON.stringify({ ...request, provenance: true, stream: true, format: "json", preview_every: every });
    const answer = await fetch("/v1/samples", { method: "POST", headers: headers(), body, signal });
    if (!answer.ok) throw await refusal(answer);
    for await (const { name, facts } of events(answer.body)) {
      if (name === "progress") progress(facts);
      if (name === "failed") throw new Refused(503, facts.reason);
      if (name === "done") return facts;
    }
    throw new Refused(503, "the server went away before it was done");
  }

  // One sample as sound.
  async function sound(request, rate) {
    const body = JSON.stringify({ ...request, format: "wav", rate });
    const answer = await fetch("/v1/samples", { method: "POST", headers: headers(), body });
    if (!answer.ok) throw await refusal(answer);
    return answer.blob();
  }

  // Which experts would make a finished sample.
  async function makers(request) {
    const answer = await fetch("/v1/makers", { method: "POST", headers: headers(), body: JSON.stringify(request) });
    if (!answer.ok) throw await refusal(answer);
    return answer.json();
  }

  const enter = (token) => sessionStorage.setItem(KEY, token);
  return { samples, sound, makers, enter, Refused };
})();
