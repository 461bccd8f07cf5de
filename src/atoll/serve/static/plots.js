// Plots that follow the page: its colours, its width, dark and light.
"use strict";

const Plots = (() => {
  const drawn = new Map();

  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ink = () => variable("--ink");
  const colour = (index) => variable(`--e${index % 8}`);

  function options(place, series, about) {
    const soft = variable("--soft"), line = variable("--line");
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    const short = (value) => value === null ? "" : String(Number(value.toPrecision(3)));
    return {
      width: place.clientWidth, height: place.clientHeight || 230, legend: { show: false },
      cursor: { show: true, points: { show: false }, drag: { x: false, y: false } },
      scales: { x: { time: false, ...about.x }, y: about.log ? { distr: 3, range: (u, low, high) => [low * 0.9, high * 1.1] } : {} },
      axes: [{ ...axis, size: 34 }, { ...axis, size: 52, values: (u, splits) => splits.map((v) => v === null ? "" : short(v)) }],
      series: [{}, ...series.map((one) => ({
        label: one.name, stroke: one.stroke, width: one.width || 1.6, dash: one.dash, spanGaps: true, fill: one.fill,
        points: { show: one.x.length < 3, size: 5, fill: one.stroke },
      }))],
    };
  }

  // Each series has an x of its own: {name, x, y, stroke}.
  function draw(place, series, about = {}) {
    const shown = series.filter((one) => one.x.length);
    const before = drawn.get(place.id);
    if (!shown.length) {
      if (before) before.plot.destroy();
      drawn.delete(place.id);
      return;
    }
    const data = uPlot.join(shown.map((one) => [one.x, one.y]));
    const names = shown.map((one) => `${one.name}${one.x.length < 3}`).join();
    if (before && before.names === names) {
      before.plot.setData(data);
      return;
    }
    if (before) before.plot.destroy();
    drawn.set(place.id, { place, names, plot: new uPlot(options(place, shown, about), data, place) });
  }

  // Forget everything that was drawn, as when the colours of the page have changed.
  function clear() {
    for (const { plot } of drawn.values()) if (plot) plot.destroy();
    drawn.clear();
  }

  function resize() {
    for (const { place, plot } of drawn.values())
      if (place.isConnected) plot.setSize({ width: place.clientWidth, height: place.clientHeight || 230 });
  }

  addEventListener("resize", resize);
  return { draw, clear, colour, ink, variable };
})();
