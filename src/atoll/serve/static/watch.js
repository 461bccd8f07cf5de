// The live view: after every part that comes in, the curves that have changed are fetched and drawn.
"use strict";

(() => {
  const curves = new Map();
  let version = -1, asking = false;

  const expert = (name) => name.startsWith("expert ") ? Number(name.slice(7)) : null;
  const stroke = (name) => expert(name) === null ? Plots.ink() : Plots.colour(expert(name));
  const column = (values, name, factor = 1) => (values[name] || []).map((v) => v === null ? null : v * factor);

  function series(quantity, wanted, factor) {
    return [...curves].filter(([name, values]) => wanted(name) && values[quantity]).map(([name, values]) => (
      { name, x: values.step, y: column(values, quantity, factor), stroke: stroke(name) }));
  }

  function show(id, lines, about) {
    const figure = document.getElementById(`figure-${id}`);
    if (figure) figure.hidden = !lines.length;
    Plots.draw(document.getElementById(`plot-${id}`), lines, about);
  }

  function bins() {
    const name = document.getElementById("job").value, values = curves.get(name) || { step: [] };
    const parts = Object.keys(values).filter((key) => key.startsWith("loss_t")).sort();
    return parts.map((key, index) => (
      { name: `${name} ${key}`, x: values.step, y: values[key], stroke: Plots.colour([0, 2, 6, 1][index % 4]) }));
  }

  function draw() {
    const isRouter = (name) => name === "router";
    show("loss", series("loss", (name) => !isRouter(name)), { log: true });
    show("router", series("loss", isRouter));
    show("norm", series("gradient_norm", () => true), { log: true });
    show("gpu", series("gpu_bytes", () => true, 2 ** -30));
    Plots.draw(document.getElementById("plot-bins"), bins(), { log: true });
  }

  async function refresh() {
    if (asking || !document.getElementById("job")) return;
    asking = true;
    try {
      const answer = await fetch(`/watch/curves?since=${version}`);
      if (!answer.ok) return;
      const { version: now, jobs } = await answer.json();
      version = now;
      for (const [name, values] of Object.entries(jobs)) curves.set(name, values);
      if (Object.keys(jobs).length) draw();
    } catch (error) {
      // the server is away for a moment; the next look asks again
    } finally {
      asking = false;
    }
  }

  function speak() {
    const place = document.getElementById("spoken"), words = document.getElementById("numbers").dataset.spoken;
    if (place.textContent !== words) place.textContent = words;
  }

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id !== "state") return;
    speak();
    if (Number(document.getElementById("numbers").dataset.version) > version) refresh();
  });
  document.addEventListener("change", (event) => { if (event.target.id === "job") draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { Plots.clear(); draw(); });
  speak();
  refresh();
})();
