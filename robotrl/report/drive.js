// The page of drives: list of episodes, scene, clock, charts. `#e=1&t=120` opens an episode at a step.
const data = JSON.parse(document.getElementById("drives").textContent);
const byId = (id) => document.getElementById(id);
const scrub = byId("scrub"), playButton = byId("play"), speed = byId("speed"), canvas = byId("scene"), camera = byId("camera");
const scene = makeScene(canvas);
const unpacked = [];
let episode = -1, drive = null, step = 0, running = false, last = null, stale = true;
const charts = makeCharts(byId("plots"), (share) => goTo(Math.max(0, Math.min(1, share)) * drive.n));
const seconds = (steps) => (steps * drive.dt).toFixed(1) + " s";

data.drives.forEach((d, i) => {
  const item = document.createElement("button");
  item.type = "button"; item.className = "episode";
  const share = Math.round(100 * d.completion);
  item.innerHTML = `<span class="dot ${d.ok ? "ok" : "fail"}"></span><span class="about"><b></b><span class="why"></span>
    <span class="share"><i style="width:${share}%"></i></span><small class="numbers"></small><small class="start"></small></span>`;
  item.querySelector("b").textContent = d.scenario;
  item.querySelector(".start").textContent = "start " + d.id;
  item.querySelector(".why").textContent = d.outcome;
  item.querySelector(".numbers").textContent = [`${share} %`, `${(d.n * d.dt).toFixed(1)} s`, ...(d.score === null ? [] : [`score ${d.score.toFixed(1)}`])].join(" · ");
  item.onclick = () => { open(i); goTo(0); running = true; last = null; };
  byId("episodes").append(item);
});

function open(i) {
  if (i === episode) return;
  episode = i;
  drive = unpacked[i] ??= unpackDrive(data.drives[i]);
  [...byId("episodes").children].forEach((item, k) => item.classList.toggle("chosen", k === i));
  const list = byId("episodes"), item = list.children[i];
  list.scrollTop = Math.max(0, item.offsetTop - list.clientHeight / 2);
  scene.set(drive);
  scrub.max = drive.n;
  byId("scenario").textContent = drive.scenario;
  byId("end").textContent = drive.outcome;
  byId("end").className = drive.ok ? "ok" : "fail";
  const others = drive.plans[0] ? drive.plans[0].others.length : 0, beside = others ? `, chosen among ${others + 1} (thin)` : "";
  byId("decided").textContent = drive.trajectory ? "the planned trajectory" + beside
    : drive.decided > 1 ? `the policy's plan: one chunk of ${drive.decided} steps${beside}`
    : `${((drive.plans[0] ? drive.plans[0].line.length / 2 : 0) * drive.dt).toFixed(0)} s at the present action (no plan: it is decided step by step)`;
  mark();
  plot();
  step = Math.min(step, drive.n);
  stale = true;
}
function mark() {
  const marks = byId("marks"), chips = byId("remarks");
  marks.textContent = ""; chips.textContent = "";
  for (const [at, text, role] of [...drive.remarks.map(([k, t]) => [k + 1, t, "remark"]), [drive.n, drive.outcome, drive.ok ? "ok" : "fail"]]) {
    const tick = document.createElement("i");
    tick.className = role; tick.style.left = (100 * at / drive.n) + "%"; tick.title = `${seconds(at)}: ${text}`;
    marks.append(tick);
    const chip = document.createElement("button");
    chip.type = "button"; chip.className = "chip " + role;
    chip.innerHTML = "<b></b> <span></span>";
    chip.firstChild.textContent = seconds(at); chip.lastChild.textContent = text;
    chip.onclick = () => goTo(at);
    chips.append(chip);
  }
}
function plot() {
  charts.clear();
  const speeds = Float64Array.from({ length: drive.n + 1 }, (_, k) => drive.ego[4 * k + 3]);
  charts.chart({ title: "Speed", unit: "m/s", low: 0, wide: true, lines: [{ values: drive.limit, role: "c-limit", label: "limit" }, { values: speeds, role: "c-main", label: "ego" }].reverse() });
  let sum = 0;
  const total = Float64Array.from(drive.reward, (r) => (sum += r));
  charts.chart({ title: "Cumulative reward", zero: true, wide: true, lines: [{ values: total, role: "c-main" }] });
  for (const [name, values] of Object.entries(drive.actions)) charts.chart({ title: name, unit: "action", low: -1, high: 1, zero: true, lines: [{ values, role: "c-act" }] });
  charts.chart({ title: "Route driven", low: 0, high: 1, lines: [{ values: drive.done, role: "c-main" }] });
  charts.chart({ title: "reward", unit: "each step", zero: true, lines: [{ values: drive.reward, role: "c-main" }] });
  const constant = [];
  for (const [name, values] of Object.entries(drive.terms)) {
    if (values.every((v) => v === values[0])) constant.push(`${name} ${values[0]}`);
    else charts.chart({ title: name, unit: "term", zero: true, lines: [{ values, role: "c-term" }] });
  }
  if (constant.length) charts.note(`Terms that stay as they are: ${constant.join(", ")}.`);
}
function goTo(at) {
  running = false;
  step = Math.max(0, Math.min(drive.n, at));
  stale = true;
  remember();
}
let due = 0;
function remember() {
  clearTimeout(due);
  due = setTimeout(() => { try { history.replaceState(null, "", `#e=${episode}&t=${Math.floor(step)}`); } catch { /* not allowed here: the link stays as it was */ } }, 200);
}
function fromHash() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const e = Number(asked.get("e") ?? Math.max(episode, 0)), t = asked.get("t"), view = asked.get("view");
  open(Number.isInteger(e) && data.drives[e] ? e : 0);
  if (view && [...camera.options].some((o) => o.value === view)) { camera.value = view; look(); }
  if (t !== null && Number.isFinite(Number(t))) { running = false; step = Math.max(0, Math.min(drive.n, Number(t))); }
  stale = true;
  return t !== null;
}
function look() { scene.draw(step); scene.setMode(camera.value); stale = true; }
function show() {
  scene.draw(step);
  charts.show(step, drive.n);
  const k = Math.floor(step), pose = poseAt(drive.ego, step, drive.dt);
  scrub.value = step;
  byId("done").style.width = (100 * step / drive.n) + "%";
  byId("clock").textContent = `${(step * drive.dt).toFixed(1)} / ${seconds(drive.n)}`;
  byId("speed-now").textContent = pose.v.toFixed(1);
  byId("limit-now").textContent = drive.limit[k].toFixed(1).replace(".0", "");
  byId("limit-sign").classList.toggle("over", pose.v > drive.limit[k] + 0.3);
  const shown = Math.min(k, drive.n - 1), acts = drive.actions;
  if (acts.steer) byId("wheel").style.transform = `rotate(${-110 * acts.steer[shown]}deg)`;
  if (acts.accel) {
    const a = Math.max(-1, Math.min(1, acts.accel[shown]));
    byId("gas").style.height = 100 * Math.max(a, 0) + "%"; byId("brake").style.height = 100 * Math.max(-a, 0) + "%";
  }
  byId("end").hidden = step < drive.n;
  playButton.classList.toggle("on", running);
  playButton.setAttribute("aria-label", running ? "pause" : "play");
  stale = false;
}
function tick(time) {
  const passed = last === null ? 0 : Math.min(0.2, (time - last) / 1000);
  last = time;
  if (running) {
    step += passed * Number(speed.value) / drive.dt;
    if (step >= drive.n) { step = drive.n; running = false; }
    stale = true;
  }
  if (stale) show();
  requestAnimationFrame(tick);
}
function toggle() { if (!running && step >= drive.n) step = 0; running = !running; last = null; stale = true; if (!running) remember(); }
playButton.onclick = toggle;
scrub.oninput = () => goTo(Number(scrub.value));
byId("back").onclick = () => goTo(Math.ceil(step) - 1);
byId("on").onclick = () => goTo(Math.floor(step) + 1);
camera.onchange = look;
byId("reset").onclick = () => { scene.reset(); stale = true; };
const centre = () => [canvas.clientWidth / 2, canvas.clientHeight / 2];
byId("nearer").onclick = () => { scene.zoom(1.4, ...centre()); stale = true; };
byId("farther").onclick = () => { scene.zoom(1 / 1.4, ...centre()); stale = true; };
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const r = canvas.getBoundingClientRect();
  scene.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - r.left, event.clientY - r.top);
  stale = true;
}, { passive: false });
canvas.onpointerdown = (event) => canvas.setPointerCapture(event.pointerId);
canvas.onpointermove = (event) => { if (canvas.hasPointerCapture(event.pointerId)) { scene.pan(event.movementX, event.movementY); stale = true; } };
canvas.ondblclick = () => { scene.reset(); stale = true; };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  const far = event.shiftKey ? 10 : 1, views = [...camera.options].map((o) => o.value);
  const keys = {
    " ": toggle, ArrowLeft: () => goTo(Math.ceil(step) - far), ArrowRight: () => goTo(Math.floor(step) + far),
    Home: () => goTo(0), End: () => goTo(drive.n),
    ArrowDown: () => { if (episode + 1 < data.drives.length) { open(episode + 1); goTo(0); } },
    ArrowUp: () => { if (episode > 0) { open(episode - 1); goTo(0); } },
    f: () => { camera.value = views[(views.indexOf(camera.value) + 1) % views.length]; look(); },
    "+": () => byId("nearer").click(), "-": () => byId("farther").click(), 0: () => byId("reset").click(),
  };
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("resize", () => { stale = true; });
addEventListener("hashchange", fromHash);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { scene.tones(); stale = true; });
running = !fromHash() && !matchMedia("(prefers-reduced-motion: reduce)").matches;
requestAnimationFrame(tick);
