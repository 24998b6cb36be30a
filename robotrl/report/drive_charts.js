// Small line charts over time, as SVG. One cursor goes through all of them; a click or a drag on one moves the time.
function makeCharts(host, seek) {
  const W = 300, H = 64;
  let charts = [];
  const number = (value) => Math.abs(value) < 5e-4 ? "0" : Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : Math.abs(value) >= 0.995 ? value.toFixed(2) : value.toFixed(3);
  function curve(values, low, high) {
    const last = Math.max(values.length - 1, 1);
    return "M" + Array.from(values, (v, i) => `${(W * i / last).toFixed(1)} ${(H - 3 - (H - 6) * (v - low) / (high - low)).toFixed(1)}`).join("L");
  }
  function chart({ title, unit, lines, low, high, zero, wide }) {
    const all = lines.flatMap((line) => [Math.min(...line.values), Math.max(...line.values)]);
    let bottom = Math.min(low ?? Infinity, ...all), top = Math.max(high ?? -Infinity, ...all);
    if (top - bottom < 1e-9) { bottom -= 0.5; top += 0.5; }
    const at = (v) => (H - 3 - (H - 6) * (v - bottom) / (top - bottom)).toFixed(1);
    const box = document.createElement("div");
    box.className = "plot" + (wide ? " wide" : "");
    box.innerHTML = `<div class="plot-head"><span class="plot-title"></span><span class="plot-now"></span></div>
      <div class="plot-body"><div class="area"><svg viewBox="0 0 ${W} ${H}" preserveAspectRatio="none" aria-hidden="true">
      ${zero && bottom < 0 && top > 0 ? `<line class="zero" x1="0" x2="${W}" y1="${at(0)}" y2="${at(0)}"/>` : ""}
      ${lines.map((line) => `<path class="${line.role}" d="${curve(line.values, bottom, top)}"/>`).join("")}
      </svg><i class="cursor"></i></div><span class="range top">${number(top)}</span><span class="range bottom">${number(bottom)}</span></div>`;
    const heading = box.querySelector(".plot-title");
    heading.textContent = title + (unit ? " " : "");
    if (unit) { const small = document.createElement("small"); small.textContent = unit; heading.append(small); }
    for (const line of lines) if (line.label) {
      const key = document.createElement("small");
      key.className = "key-line " + line.role; key.textContent = line.label; heading.append(key);
    }
    const body = box.querySelector(".plot-body");
    const area = box.querySelector(".area");
    const move = (event) => { const r = area.getBoundingClientRect(); seek((event.clientX - r.left) / r.width); };
    body.onpointerdown = (event) => { body.setPointerCapture(event.pointerId); move(event); };
    body.onpointermove = (event) => { if (body.hasPointerCapture(event.pointerId)) move(event); };
    host.append(box);
    charts.push({ lines, now: box.querySelector(".plot-now"), cursor: box.querySelector(".cursor") });
  }
  function note(text) {
    const line = document.createElement("p");
    line.className = "plot-note"; line.textContent = text; host.append(line);
  }
  function clear() { host.textContent = ""; charts = []; }
  function show(step, n) {
    for (const { lines, now, cursor } of charts) {
      cursor.style.left = (100 * step / n) + "%";
      // what belongs to a step has as many values as steps; states have one more
      now.textContent = lines.map(({ values }) => number(values[Math.min(Math.floor(step), values.length - 1)])).join(" / ");
    }
  }
  return { chart, note, clear, show };
}
