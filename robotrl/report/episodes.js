// One episode of an evaluation at a time: pictures, scrub bar and rewards share one clock, which counts steps.
const { dt, judged, replays } = JSON.parse(document.getElementById("replays").textContent);
const byId = (id) => document.getElementById(id);
const scrub = byId("scrub"), playButton = byId("play"), speed = byId("speed"), film = byId("film");
const context = film.getContext("2d"), sheets = [];
const charts = makeCharts(byId("plots"), (share) => goTo(Math.max(0, Math.min(1, share)) * episode.length));
const outcome = (one) => !judged ? "" : one.ok ? "success" : "failed";
const plain = (value) => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Math.abs(value) >= 10 ? value.toFixed(1) : Number(value.toPrecision(3)).toString();
let index = -1, episode = null, step = 0, running = false, last = null, stale = true;

replays.forEach((one, k) => {
  const item = document.createElement("button");
  item.type = "button"; item.className = "episode";
  item.innerHTML = `<span class="dot ${!judged ? "plain" : one.ok ? "ok" : "fail"}"></span><span class="about"><b></b><span class="why"></span>
    <small class="said"></small><small class="numbers"></small><small class="start"></small></span>`;
  item.querySelector("b").textContent = one.name;
  item.querySelector(".why").textContent = outcome(one);
  item.querySelector(".said").textContent = one.instruction;
  item.querySelector(".numbers").textContent = `return ${plain(one.ret)} · ${one.length} steps · ${(one.length * dt).toFixed(1)} s`;
  item.querySelector(".start").textContent = "start id " + one.id;
  item.onclick = () => { open(k); goTo(0); running = true; last = null; };
  byId("episodes").append(item);
});

function sheet(k) {
  if (!sheets[k]) {
    sheets[k] = new Image();
    sheets[k].onload = () => { stale = true; };
    sheets[k].src = replays[k].sheet;
  }
  return sheets[k];
}
function open(k) {
  if (k === index) return;
  index = k;
  episode = replays[k];
  [...byId("episodes").children].forEach((item, i) => item.classList.toggle("chosen", i === k));
  const list = byId("episodes"), item = list.children[k];
  list.scrollTop = Math.max(0, item.offsetTop - list.clientHeight / 2);
  film.width = episode.width; film.height = episode.height;
  film.style.aspectRatio = `${episode.width} / ${episode.height}`;
  scrub.max = episode.length;
  byId("scenario").textContent = episode.name;
  byId("instruction").textContent = episode.instruction;
  byId("instruction").hidden = !episode.instruction;
  byId("end").textContent = [outcome(episode), `return ${plain(episode.ret)}`].filter(Boolean).join(", ");
  byId("end").className = !judged ? "plain" : episode.ok ? "ok" : "fail";
  byId("marks").innerHTML = judged ? `<i class="${episode.ok ? "ok" : "fail"}" style="left:100%"></i>` : "";
  charts.clear();
  let sum = 0;
  const total = [0, ...episode.rewards.map((reward) => (sum += reward))];
  for (const [title, unit, values] of episode.curves) charts.chart({ title, unit, zero: true, wide: true, lines: [{ values, role: "c-main" }] });
  if (!episode.curves.length) {
    charts.chart({ title: "Return", unit: "so far", zero: true, wide: true, lines: [{ values: total, role: "c-main" }] });
    charts.chart({ title: "Reward", unit: "each step", zero: true, wide: true, lines: [{ values: episode.rewards, role: "c-term" }] });
  }
  step = Math.min(step, episode.length);
  stale = true;
}
function goTo(at) {
  running = false;
  step = Math.max(0, Math.min(episode.length, at));
  stale = true;
  remember();
}
let due = 0;
function remember() {
  clearTimeout(due);
  due = setTimeout(() => { try { history.replaceState(null, "", `#e=${index}&t=${Math.floor(step)}`); } catch { /* not allowed here: the link stays as it was */ } }, 200);
}
function fromHash() {
  const asked = new URLSearchParams(location.hash.slice(1)), e = Number(asked.get("e") ?? Math.max(index, 0)), t = asked.get("t");
  open(Number.isInteger(e) && replays[e] ? e : 0);
  if (t !== null && Number.isFinite(Number(t))) { running = false; step = Math.max(0, Math.min(episode.length, Number(t))); }
  stale = true;
  return t !== null;
}
function show() {
  const picture = sheet(index);
  if (picture.complete && picture.naturalWidth) {
    // the last frame that was taken at or before this step
    let frame = episode.steps.length - 1;
    while (frame > 0 && episode.steps[frame] > step + 1e-6) frame--;
    const { width: w, height: h } = episode;
    context.drawImage(picture, (frame % episode.columns) * w, Math.floor(frame / episode.columns) * h, w, h, 0, 0, w, h);
  }
  charts.show(step, episode.length);
  scrub.value = step;
  byId("done").style.width = (100 * step / episode.length) + "%";
  byId("clock").textContent = `step ${Math.floor(step)} of ${episode.length}, ${(step * dt).toFixed(1)} s`;
  byId("end").hidden = step < episode.length;
  playButton.classList.toggle("on", running);
  playButton.setAttribute("aria-label", running ? "pause" : "play");
  stale = false;
}
function tick(time) {
  const passed = last === null ? 0 : Math.min(0.2, (time - last) / 1000);
  last = time;
  if (running) {
    step += passed * Number(speed.value) / dt;
    if (step >= episode.length) { step = episode.length; running = false; }
    stale = true;
  }
  if (stale) show();
  requestAnimationFrame(tick);
}
function toggle() { if (!running && step >= episode.length) step = 0; running = !running; last = null; stale = true; if (!running) remember(); }
playButton.onclick = toggle;
film.onclick = toggle;
scrub.oninput = () => goTo(Number(scrub.value));
byId("back").onclick = () => goTo(Math.ceil(step) - 1);
byId("on").onclick = () => goTo(Math.floor(step) + 1);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "SUMMARY"].includes(event.target.tagName)) return;
  const far = event.shiftKey ? 10 : 1;
  const act = {
    " ": toggle, ArrowLeft: () => goTo(Math.ceil(step) - far), ArrowRight: () => goTo(Math.floor(step) + far),
    Home: () => goTo(0), End: () => goTo(episode.length),
    ArrowDown: () => { if (index + 1 < replays.length) { open(index + 1); goTo(0); } },
    ArrowUp: () => { if (index > 0) { open(index - 1); goTo(0); } },
  }[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("hashchange", fromHash);
running = !fromHash() && !matchMedia("(prefers-reduced-motion: reduce)").matches;
requestAnimationFrame(tick);
