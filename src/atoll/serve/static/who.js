// Who made a sample: shares as bars that are switches, weights over time, disagreement.
"use strict";

const Who = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 600, HIGH = 150, LOW = 60;
  const percent = (share) => share >= 0.995 || share === 0 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`;

  function element(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function drawing(height, words, ...children) {
    const title = element("title");
    title.textContent = words;
    return element("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", preserveAspectRatio: "none", class: "drawing" }, title, ...children);
  }

  const across = (times) => (index) => (times[0] === times[times.length - 1] ? 0 : (times[0] - times[index]) / (times[0] - times[times.length - 1])) * WIDTH;

  // One layer for each expert, as high as its weight; what was asked once is drawn as it stayed.
  function weights(times, rows) {
    const x = across(times), layers = [];
    let below = times.map(() => 0);
    for (let expert = 0; expert < rows[0].length; expert += 1) {
      const above = below.map((start, index) => start + rows[index][expert]);
      const up = above.map((value, index) => `${x(index).toFixed(1)},${(HIGH * (1 - value)).toFixed(2)}`);
      const down = below.map((value, index) => `${x(index).toFixed(1)},${(HIGH * (1 - value)).toFixed(2)}`).reverse();
      if (rows.some((row) => row[expert] > 0)) layers.push(element("polygon", { points: [...up, ...down].join(" "), class: `layer e${expert % 8}` }));
      below = above;
    }
    return drawing(HIGH, "weights of the experts over time", ...layers);
  }

  function apart(times, values) {
    const x = across(times), top = Math.max(...values, 1e-9);
    const points = values.map((value, index) => `${x(index).toFixed(1)},${(LOW * (1 - 0.92 * value / top)).toFixed(2)}`);
    return drawing(LOW, `disagreement of the experts, at most ${top.toPrecision(2)}`, element("polyline", { points: points.join(" "), class: "line" }));
  }

  function expert(index, share, off, toggle, title) {
    const item = document.createElement("li"), button = document.createElement("button"), bar = document.createElement("span");
    const name = document.createElement("span"), number = document.createElement("span"), fill = document.createElement("i");
    button.type = "button";
    button.className = `expert e${index % 8}`;
    button.dataset.expert = index;
    button.setAttribute("aria-pressed", String(!off));
    name.textContent = title ? `${index}: ${title}` : `expert ${index}`;
    number.textContent = off ? "off" : percent(share);
    bar.className = "bar";
    fill.style.width = `${100 * (off ? 0 : share)}%`;
    bar.append(fill);
    button.append(name, " ", bar, " ", number);
    button.addEventListener("click", () => toggle(index));
    item.append(button);
    return item;
  }

  function words(sample, off, moved) {
    const leading = sample.shares.indexOf(Math.max(...sample.shares));
    const without = off.size ? ` Without expert ${[...off].sort((a, b) => a - b).join(", ")}.` : "";
    const went = moved && Math.abs(moved[leading] - sample.shares[leading]) >= 0.0005 ? `, and its velocity went ${percent(moved[leading])} of the way` : "";
    return `Seed ${sample.seed}: mostly expert ${leading}, ${percent(sample.shares[leading])} of the weight${went}.${without} Press an expert to switch it off and see the same seed without it.`;
  }

  function show(answer, index, off, toggle, model) {
    const sample = answer.samples[index], way = answer.provenance;
    document.getElementById("who").hidden = model.parts.length < 2;
    document.getElementById("who-words").textContent = words(sample, off, way && way.moved ? way.moved[index] : null);
    const list = document.getElementById("experts"), focused = list.contains(document.activeElement) ? document.activeElement.dataset.expert : null;
    list.replaceChildren(...model.parts.map((number) => expert(number, sample.shares[number], off.has(number), toggle, model.names[number])));
    if (focused !== null) list.querySelector(`[data-expert="${focused}"]`).focus();
    if (way) {
      document.getElementById("weights").replaceChildren(weights(way.times, way.weights[index]));
      document.getElementById("apart").replaceChildren(apart(way.times, way.disagreement[index]));
    }
  }

  return { show, percent };
})();
