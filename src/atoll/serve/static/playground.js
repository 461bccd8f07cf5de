// The playground: what the form says is asked for, shown, kept in the address, and remembered.
"use strict";

(() => {
  const form = document.getElementById("ask"), panels = document.getElementById("panels");
  const models = new Map(JSON.parse(form.dataset.models).map((model) => [model.id, model]));
  const first = models.values().next().value;
  const HISTORY = `atoll-history-${first.id}`, MOST = 24;
  const COMPARED = ["full", "top-1", "top-2", "ancestral"];
  let cards = [], off = new Set(), stop = new AbortController(), retry = null;

  const field = (name) => form.elements.namedItem(name);
  const value = (name) => field(name) ? field(name).value : null;
  const modelOf = (request) => models.get(request.model || first.id);
  const serving = (model) => model.parts.filter((index) => !off.has(index));

  // What the form says, as /v1/samples takes it.
  function asked() {
    const model = models.get(value("model") || first.id), seed = Number(value("seed"));
    const seeds = [...Array(Number(value("count"))).keys()].map((index) => seed + index);
    const request = { seeds, steps: Number(value("steps")) };
    if (models.size > 1) request.model = model.id;
    if (value("class") !== null) request.label = value("class");
    if (value("prompt") !== null) request.prompt = value("prompt");
    if (value("guidance") !== null && model.guided) request.guidance = Number(value("guidance"));
    if (value("strategy") !== null && model.parts.length > 1) request.strategy = value("strategy");
    if (off.size && model.parts.length > 1) request.experts = serving(model);
    return request;
  }

  // The same as an address that makes it again.
  function address(request, seeds = request.seeds) {
    const parts = new URLSearchParams({ seed: seeds[0], count: seeds.length, steps: request.steps });
    for (const [key, name] of [["model", "model"], ["label", "class"], ["prompt", "prompt"], ["guidance", "guidance"], ["strategy", "strategy"]])
      if (request[key] !== undefined) parts.set(name, request[key]);
    if (request.experts) parts.set("experts", request.experts.join("."));
    return `/?${parts}`;
  }

  function fill(search) {
    const parts = new URLSearchParams(search);
    off = new Set();
    for (const [name, text] of parts) {
      const input = field(name);
      if (name === "experts") {
        const kept = new Set(text.split(".").map(Number));
        off = new Set(first.parts.filter((index) => !kept.has(index)));
      } else if (input && input.tagName === "SELECT") {
        if (![...input.options].some((option) => option.value === text) && name !== "model" && name !== "class") input.add(new Option(text, text));
        input.value = text;
      } else if (input) input.value = text;
    }
  }

  const speak = (words) => { document.getElementById("spoken").textContent = words; };

  function complain(error) {
    if (error.name === "AbortError") return;
    const place = document.getElementById("problem");
    document.getElementById("token").hidden = error.status !== 401;
    place.textContent = error.message;
    place.hidden = false;
  }

  function begin() {
    stop.abort();
    stop = new AbortController();
    document.getElementById("problem").hidden = true;
    document.getElementById("token").hidden = true;
  }

  function card(title, request) {
    const made = new Panel.Card(title, request, modelOf(request), select);
    cards.push(made);
    panels.append(made.root);
    return made;
  }

  function clear() {
    cards = [];
    panels.replaceChildren();
  }

  async function run(one) {
    const answer = await Ask.samples(one.request, (facts) => one.progress(facts), stop.signal);
    one.finish(answer, (seed) => address(one.request, [seed]));
    return one;
  }

  function select(one) {
    for (const each of cards) each.root.classList.toggle("chosen", each === one && cards.length > 1);
    const gone = new Set(one.request.experts ? first.parts.filter((index) => !one.request.experts.includes(index)) : []);
    Who.show(one.answer, one.picked, gone, toggle, modelOf(one.request));
    Trace.offer(one.answer, one.picked, one.request, complain);
  }

  const attempt = async (work) => {
    retry = () => attempt(work);
    begin();
    try { await work(); } catch (error) { complain(error); }
  };

  function make() {
    return attempt(async () => {
      clear();
      const request = asked(), one = await run(card(title(request), request));
      select(one);
      told(one);
      remember(one);
    });
  }

  const title = (request) => [request.label || request.prompt, off.size ? `without expert ${[...off].sort((a, b) => a - b).join(", ")}` : ""].filter(Boolean).join(", ") || (first.parts.length > 1 ? "all experts" : "sample");

  function told(one) {
    const sample = one.answer.samples[one.picked];
    speak(`Made ${one.title} in ${one.answer.seconds.toFixed(1)} seconds, mostly by expert ${sample.expert}.`);
  }

  // The same seeds without some experts, beside what all of them made.
  function toggle(index) {
    if (off.has(index)) off.delete(index);
    else if (off.size + 1 < first.parts.length) off.add(index);
    else { complain(new Error("one expert at least must stay")); return; }
    attempt(async () => {
      const base = cards[0];
      clear();
      cards.push(base);
      panels.append(base.root);
      if (!off.size && !base.request.experts) { select(base); show(base); speak("All experts serve again."); return; }
      const { experts, ...rest } = base.request, request = { ...rest, experts: serving(first) };
      if (request.strategy && request.strategy.startsWith("top-") && Number(request.strategy.slice(4)) > request.experts.length) request.strategy = "full";
      const one = card(title(request), request);
      one.picked = base.picked;
      await run(one);
      select(one);
      show(one);
      told(one);
      remember(one);
    });
  }

  const show = (one) => history.replaceState(null, "", address(one.request));

  function compare(requests, words) {
    return attempt(async () => {
      clear();
      const all = requests.map(([name, request]) => card(name, request));
      const done = [];
      for (const one of all) done.push(await run(one));  // one after the other: the time of each is its own
      select(done[0]);
      speak(`${words}: ${done.map((one) => `${one.title} ${one.answer.seconds.toFixed(1)} seconds`).join(", ")}.`);
    });
  }

  function strategies() {
    off = new Set();
    const request = asked(), names = COMPARED.filter((name) => name !== "top-2" || first.parts.length > 2);
    compare(names.map((name) => [name, { ...request, strategy: name }]), "Strategies compared");
  }

  // Each model in its own way: a few-step student takes few steps.
  function students() {
    off = new Set();
    const { strategy, guidance, ...rest } = asked();
    compare([...models.values()].map((model) => {
      const request = { ...rest, model: model.id, steps: model.id === (value("model") || first.id) ? rest.steps : model.steps };
      if (model.parts.length > 1 && strategy) request.strategy = strategy;
      if (model.guided && guidance !== undefined) request.guidance = guidance;
      return [model.id, request];
    }), "Models compared");
  }

  function thumbnail(one) {
    const picture = one.pictures.querySelector("img");
    if (!picture) return null;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 64;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = picture.naturalWidth > 64;
    context.drawImage(picture, 0, 0, 64, 64);
    return canvas.toDataURL("image/png");
  }

  const recalled = () => { try { return JSON.parse(localStorage.getItem(HISTORY)) || []; } catch (error) { return []; } };

  async function remember(one) {
    const picture = one.pictures.querySelector("img");
    if (picture) await picture.decode();
    const entry = { link: address(one.request), words: `${one.title}, seed ${one.request.seeds[0]}`, picture: thumbnail(one) };
    const all = [entry, ...recalled().filter((each) => each.link !== entry.link)].slice(0, MOST);
    try { localStorage.setItem(HISTORY, JSON.stringify(all)); } catch (error) { /* full: then not */ }
    recall();
  }

  function recall() {
    const all = recalled();
    document.getElementById("earlier").hidden = !all.length;
    document.getElementById("history").replaceChildren(...all.map((entry) => {
      const item = document.createElement("li"), anchor = document.createElement("a");
      anchor.href = entry.link;
      if (entry.picture) {
        const picture = document.createElement("img");
        Object.assign(picture, { src: entry.picture, alt: entry.words });
        anchor.title = entry.words;
        anchor.append(picture);
      } else anchor.textContent = entry.words;
      item.append(anchor);
      return item;
    }));
  }

  function settle() {
    const model = models.get(value("model") || first.id);
    if (field("guidance")) field("guidance").disabled = !model.guided;
    if (field("strategy")) field("strategy").disabled = model.parts.length < 2;
  }

  function push() {
    history.pushState(null, "", address(asked()));
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); off = new Set(); push(); make(); });
  form.addEventListener("change", (event) => {
    if (event.target.name === "model") field("steps").value = models.get(value("model")).steps;
    settle();
  });
  document.getElementById("dice").addEventListener("click", () => {
    field("seed").value = crypto.getRandomValues(new Uint32Array(1))[0] % 1000000;
    off = new Set();
    push();
    make();
  });
  if (document.getElementById("compare")) document.getElementById("compare").addEventListener("click", strategies);
  if (document.getElementById("students")) document.getElementById("students").addEventListener("click", students);
  document.getElementById("token").addEventListener("submit", (event) => {
    event.preventDefault();
    Ask.enter(event.target.elements.namedItem("token").value);
    if (retry) retry();
  });
  document.getElementById("forget").addEventListener("click", () => { localStorage.removeItem(HISTORY); recall(); });
  addEventListener("popstate", () => { fill(location.search); settle(); make(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    Plots.clear();
    for (const one of cards) if (one.answer && one.about.curve) one.curve();
  });

  fill(location.search);
  settle();
  recall();
  if (form.checkValidity()) make();
})();
