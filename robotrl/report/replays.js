// Plays recorded episodes: each has a sheet of frames, a time line of its own, and begins again some time after its end.
(() => {
  "use strict";
  const source = document.getElementById("replays");
  const { dt, replays } = JSON.parse(source.textContent);
  const PAUSE_S = 1.2;
  const play = document.getElementById("play-all"), speed = document.getElementById("speed-all");
  let running = false;

  const players = replays.map((replay, index) => {
    const card = document.getElementById("replay-" + index), canvas = card.querySelector("canvas");
    const player = {
      ...replay, canvas, seen: true, held: false, time: 0, drawn: -1,
      context: canvas.getContext("2d"), scrub: card.querySelector("input"), clock: card.querySelector(".clock"),
      picture: new Image(),
    };
    canvas.width = replay.width;
    canvas.height = replay.height;
    player.scrub.max = replay.length - 1;
    player.scrub.oninput = () => {
      player.held = true;
      player.time = Number(player.scrub.value);
      show(player);
    };
    canvas.onclick = () => {
      player.held = running && !player.held;
      if (!running) start(true);
    };
    player.picture.onload = () => show(player);
    player.picture.src = replay.sheet;
    return player;
  });

  // The last frame that was taken at or before the player's time, which is in steps.
  function show(player) {
    if (!player.picture.complete) return;
    const step = Math.min(player.time, player.length - 1);
    let frame = player.steps.length - 1;
    while (frame > 0 && player.steps[frame] > step + 1e-6) frame--;
    player.clock.textContent = `step ${Math.floor(step + 1e-6)} of ${player.length}`;
    if (document.activeElement !== player.scrub || !player.held) player.scrub.value = step;
    if (frame === player.drawn) return;
    player.drawn = frame;
    const x = (frame % player.columns) * player.width, y = Math.floor(frame / player.columns) * player.height;
    player.context.drawImage(player.picture, x, y, player.width, player.height, 0, 0, player.width, player.height);
  }

  function start(on) {
    running = on;
    play.textContent = running ? "Pause" : "Play";
    if (running) for (const player of players) player.held = false;
  }

  let last = null;
  function tick(now) {
    const passed = last === null ? 0 : Math.min(0.2, (now - last) / 1000) * Number(speed.value);
    last = now;
    for (const player of players) {
      if (!running || player.held || !player.seen) continue;
      player.time += passed / dt;
      if (player.time > player.length - 1 + PAUSE_S / dt) player.time = 0;
      show(player);
    }
    requestAnimationFrame(tick);
  }

  play.onclick = () => start(!running);
  if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) players.find((player) => player.canvas === entry.target).seen = entry.isIntersecting;
    }, { rootMargin: "100px" });
    for (const player of players) watcher.observe(player.canvas);
  }
  // closed at first: then nothing runs
  const together = document.getElementById("together");
  together.addEventListener("toggle", () => start(together.open && !matchMedia("(prefers-reduced-motion: reduce)").matches));
  start(false);
  requestAnimationFrame(tick);
})();
