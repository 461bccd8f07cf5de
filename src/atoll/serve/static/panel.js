// One request as a card: its pictures form, then say how long it took and where they can be had.
"use strict";

const Panel = (() => {
  const RATE = 16000;
  let number = 0;

  const image = (data, words) => {
    const made = document.createElement("img");
    made.src = `data:image/png;base64,${data}`;
    made.alt = words;
    return made;
  };

  const link = (words, address, name) => {
    const made = document.createElement("a");
    made.textContent = words;
    made.href = address;
    if (name) made.download = name;
    return made;
  };

  const described = (sample) => [...Object.values(sample.asked), `seed ${sample.seed}`].join(", ");

  class Card {
    constructor(title, request, about, select) {
      this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
      this.root.querySelector("figcaption").textContent = title;
      this.title = title;
      Object.assign(this, { request, about, select, answer: null, picked: 0 });
      this.pictures.classList.add(request.seeds.length > 1 ? "several" : "one");
    }

    get pictures() { return this.root.querySelector(".pictures"); }

    progress({ step, steps, previews }) {
      this.root.querySelector("progress").value = step / steps;
      if (!previews || this.answer) return;
      const shown = [...this.pictures.children];
      previews.forEach((data, index) => {
        if (shown[index]) shown[index].src = `data:image/png;base64,${data}`;
        else this.pictures.append(image(data, "a sample that is forming"));
      });
      this.pictures.classList.add("forming");
    }

    finish(answer, address) {
      this.answer = answer;
      this.root.querySelector("progress").hidden = true;
      this.pictures.classList.remove("forming");
      this.pictures.replaceChildren(...answer.samples.map((sample, index) => this.sample(sample, index)));
      const asked = this.request.steps === 1 ? "1 step" : `${answer.steps} steps`;
      this.root.querySelector(".facts").textContent = `${answer.seconds.toFixed(2)} s, ${answer.strategy}, ${asked}`;
      this.links(address);
      if (this.about.curve) this.curve();
    }

    sample(sample, index) {
      const words = described(sample);
      const inside = this.about.curve ? document.createElement("div") : image(sample.png, words);
      if (this.about.curve) { inside.className = "plot"; inside.id = `curve-${number += 1}`; }
      const holder = document.createElement("button");
      holder.type = "button";
      holder.className = `picture e${sample.expert % 8}`;
      holder.setAttribute("aria-pressed", String(index === this.picked));
      if (this.about.curve) holder.setAttribute("aria-label", `curve, ${words}`);
      holder.append(inside);
      holder.addEventListener("click", () => this.pick(index));
      return holder;
    }

    pick(index) {
      this.picked = index;
      [...this.pictures.children].forEach((one, place) => one.setAttribute("aria-pressed", String(place === index)));
      this.links(this.address);
      this.select(this);
    }

    links(address) {
      this.address = address;
      const sample = this.answer.samples[this.picked], place = this.root.querySelector(".links");
      const name = `${this.answer.model.replaceAll("/", "-")}-${sample.seed}`;
      const all = [link("permalink", address(sample.seed))];
      if (sample.png) all.push(link("download", `data:image/png;base64,${sample.png}`, `${name}.png`));
      if (sample.values) all.push(link("numbers", URL.createObjectURL(new Blob([JSON.stringify(sample)], { type: "application/json" })), `${name}.json`));
      if (this.about.curve) all.push(this.player(sample));
      place.replaceChildren(...all);
    }

    player(sample) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "listen";
      button.addEventListener("click", async () => {
        const { seeds, ...rest } = this.request, audio = document.createElement("audio");
        audio.controls = true;
        audio.src = URL.createObjectURL(await Ask.sound({ ...rest, seeds: [sample.seed] }, RATE));
        audio.setAttribute("aria-label", `sound of ${described(sample)}`);
        button.replaceWith(audio);
        audio.focus();
      });
      return button;
    }

    // Samples that are curves: one line for each channel.
    curve() {
      [...this.pictures.children].forEach((holder, index) => {
        const channels = this.answer.samples[index].values || [];
        Plots.draw(holder.firstElementChild, channels.map((values, channel) => (
          { name: `${index}-${channel}`, x: values.map((_, place) => place), y: values, stroke: Plots.colour(channel) })));
      });
    }
  }

  return { Card, described };
})();
