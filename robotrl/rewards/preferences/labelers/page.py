"""The page on which a person compares two clips."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>robotrl: which is better?</title>
<style>
:root { --ink: #1c2430; --dim: #667085; --line: #d9dee6; --ground: #f5f7fa; --card: #fff; --accent: #1f6feb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf2; --dim: #97a1b0; --line: #323b48; --ground: #12161c; --card: #1b2129; --accent: #6aa5ff; }
}
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; background: var(--ground); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 20px 16px 32px; }
header { display: flex; gap: 16px; align-items: baseline; justify-content: space-between; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
#count { color: var(--dim); white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { height: 6px; border-radius: 3px; background: var(--line); margin: 12px 0 20px; overflow: hidden; }
.bar i { display: block; height: 100%; width: 0; background: var(--accent); transition: width .2s; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
.clip { padding: 0; border: 2px solid var(--line); border-radius: 12px; background: var(--card); color: inherit;
  font: inherit; cursor: pointer; overflow: hidden; display: flex; flex-direction: column; }
.clip:hover { border-color: var(--accent); }
.clip:focus-visible, .other button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.clip.chosen { border-color: var(--accent); box-shadow: 0 0 0 3px var(--accent); }
canvas { width: 100%; max-height: 62vh; object-fit: contain; display: block; background: #000; }
.clip span { padding: 10px 12px; font-weight: 600; }
kbd { font: 600 .85em ui-monospace, monospace; border: 1px solid var(--line); border-bottom-width: 2px;
  border-radius: 5px; padding: 1px 7px; margin: 0 4px; background: var(--ground); }
.time { height: 3px; background: var(--line); }
.time i { display: block; height: 100%; width: 0; background: var(--accent); }
.other { display: flex; flex-wrap: wrap; gap: 12px; justify-content: center; margin-top: 18px; }
.other button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 9px 16px; cursor: pointer; }
.other button:hover { border-color: var(--accent); }
#note { text-align: center; color: var(--dim); padding: 14vh 0; font-size: 1.1rem; }
footer { color: var(--dim); font-size: .9rem; text-align: center; margin-top: 20px; }
[hidden] { display: none !important; }
@media (max-width: 560px) {
  .pair { gap: 8px; } .clip span { padding: 8px 4px; font-size: .9rem; } kbd { display: none; }
  h1 { font-size: 1.1rem; } footer { display: none; }
  .other button { flex: 1 1 40%; padding: 12px 8px; }
}
</style>
</head>
<body>
<main>
  <header><h1 id="goal">Which is better?</h1><div id="count"></div></header>
  <div class="bar" role="progressbar" aria-label="pairs answered"><i id="done"></i></div>
  <div id="ask" hidden>
    <div class="pair">
      <button class="clip" data-answer="0"><canvas></canvas><div class="time"><i></i></div>
        <span><kbd>&larr;</kbd>Left is better</span></button>
      <button class="clip" data-answer="1"><canvas></canvas><div class="time"><i></i></div>
        <span>Right is better<kbd>&rarr;</kbd></span></button>
    </div>
    <div class="other">
      <button data-answer="-1"><kbd>&darr;</kbd>No difference</button>
      <button data-answer="null"><kbd>S</kbd>Skip for now</button>
      <button id="pause"><kbd>Space</kbd><span>Pause</span></button>
    </div>
    <footer>Every answer is kept at once; you may close this page and go on later.</footer>
  </div>
  <div id="note">Loading&hellip;</div>
</main>
<script>
"use strict";
const find = id => document.getElementById(id), clips = [...document.querySelectorAll(".clip")];
let now = null, strips = [], began = 0, frozen = null, busy = false;
const KEYS = {ArrowLeft: 0, ArrowRight: 1, ArrowDown: -1, s: null, S: null};

function frame() {
  return Math.floor((frozen ?? performance.now() - began) / 1000 * now.frames_per_s) % (now.frames + 4);
}

function draw() {
  if (now && now.pair && strips.length === 2) {
    const at = Math.min(frame(), now.frames - 1);  // the last picture stands for a moment
    clips.forEach((clip, side) => {
      clip.querySelector("canvas").getContext("2d").drawImage(strips[side],
        0, at * now.height, now.width, now.height, 0, 0, now.width, now.height);
      clip.querySelector(".time i").style.width = 100 * (at + 1) / now.frames + "%";
    });
  }
  requestAnimationFrame(draw);
}

function load(pair, side) {
  return new Promise((yes, no) => {
    const image = new Image();
    image.onload = () => yes(image); image.onerror = no;
    image.src = `clip/${pair}/${side}.png`;
  });
}

async function show(next) {
  find("goal").textContent = next.goal;
  find("count").textContent = next.asked ? `${next.given} of ${next.asked} answered` : "";
  find("done").style.width = (next.asked ? 100 * next.given / next.asked : 0) + "%";
  if (!next.pair) {
    now = next; find("ask").hidden = true; find("note").hidden = false;
    find("note").textContent =
      next.given ? "All pairs are answered. New ones appear here by themselves." : "Waiting for pairs…";
    return;
  }
  strips = await Promise.all([load(next.pair, 0), load(next.pair, 1)]);
  clips.forEach(clip => {
    const canvas = clip.querySelector("canvas");
    canvas.width = next.width; canvas.height = next.height; clip.classList.remove("chosen");
  });
  now = next; frozen = null; began = performance.now();
  find("pause").lastChild.textContent = "Pause";
  find("note").hidden = true; find("ask").hidden = false;
}

function ended() {
  now = null; find("ask").hidden = true; find("note").hidden = false;
  find("note").textContent = "The labeling has ended. This page can be closed.";
}

async function poll() {
  if (!busy && (!now || !now.pair)) {
    busy = true;
    try { await show(await (await fetch("present")).json()); } catch { ended(); }
    busy = false;
  }
  setTimeout(poll, 700);
}

async function answer(value) {
  if (busy || !now || !now.pair) return;
  busy = true;
  if (value === 0 || value === 1) clips[value].classList.add("chosen");
  try {
    const said = await fetch("answer", {method: "POST", body: JSON.stringify({pair: now.pair, answer: value})});
    await show(await (said.ok ? said : await fetch("present")).json());
  } catch { ended(); }
  busy = false;
}

function pause() {
  if (!now || !now.pair) return;
  if (frozen === null) frozen = performance.now() - began;
  else { began = performance.now() - frozen; frozen = null; }
  find("pause").lastChild.textContent = frozen === null ? "Pause" : "Play";
}

document.querySelectorAll("[data-answer]").forEach(button =>
  button.addEventListener("click", () => { button.blur(); answer(JSON.parse(button.dataset.answer)); }));
find("pause").addEventListener("click", () => { find("pause").blur(); pause(); });
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.key === " ") { event.preventDefault(); pause(); }
  else if (event.key in KEYS) { event.preventDefault(); answer(KEYS[event.key]); }
});
draw(); poll();
</script>
</body>
</html>
"""
