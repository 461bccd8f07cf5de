// Who would make a finished sample, by itself: likelihood under each expert, and its nearest training samples.
"use strict";

const Trace = (() => {
  const place = () => document.getElementById("traced");
  const button = () => document.getElementById("trace");
  let current = 0;

  function cell(name, ...children) {
    const made = document.createElement(name);
    made.append(...children);
    return made;
  }

  // Training samples by their ids; themselves where the server shows them.
  function nearest(one) {
    const words = `${one.id.slice(0, 12)} at ${one.distance.toFixed(3)}`;
    if (!one.png) return cell("small", words);
    const picture = document.createElement("img");
    Object.assign(picture, { src: `data:image/png;base64,${one.png}`, alt: `training sample ${words}`, title: words });
    return picture;
  }

  function row(answer, index) {
    const made = document.createElement("tr"), name = cell("th", `expert ${index}`), near = cell("td");
    name.scope = "row";
    made.className = `e${index % 8}`;
    if (answer.nearest) near.append(...answer.nearest[index].flatMap((one) => [nearest(one), " "]));
    near.className = "near";
    made.append(name, cell("td", Who.percent(answer.posterior[index])), cell("td", answer.bits_per_value_worse[index].toFixed(3)),
      cell("td", answer.near ? Who.percent(answer.near[index]) : "–"), near);
    return made;
  }

  function there(answer) {  // who is gone made nothing
    return answer.posterior.map((_, index) => index).filter((index) => answer.bits_per_value_worse[index] !== null);
  }

  function show(answer) {
    const head = document.createElement("tr"), table = document.createElement("table");
    const titles = ["expert", "likelihood", "bits worse", "of 15 nearest", answer.nearest ? "nearest training samples" : "nearest: the data are not here"];
    for (const title of titles) { const made = cell("th", title); made.scope = "col"; head.append(made); }
    table.append(cell("thead", head), cell("tbody", ...there(answer).map((index) => row(answer, index))));
    place().replaceChildren(table, cell("p", cell("small", answer.sentence)));
    place().hidden = false;
  }

  // Offer it for one sample of an answer; what was shown of another one goes.
  function offer(answer, index, request, complain) {
    const sample = answer.samples[index], turn = current += 1;
    place().hidden = true;
    place().replaceChildren();
    button().disabled = !(sample.values || sample.png);
    button().onclick = async () => {
      button().disabled = true;
      const given = sample.values ? { values: sample.values } : { png: sample.png };
      const told = Object.fromEntries(["label", "prompt"].filter((key) => request[key]).map((key) => [key, request[key]]));
      try {
        const found = await Ask.makers({ model: answer.model, ...given, ...told });
        if (turn === current) show(found);
      } catch (error) {
        complain(error);
      } finally {
        if (turn === current) button().disabled = false;
      }
    };
  }

  return { offer };
})();
