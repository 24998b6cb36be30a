// Draws a drive from above on a canvas. The world is drawn in metres under a transform, y up.
function makeScene(canvas) {
  const context = canvas.getContext("2d");
  const view = { mode: "ego", scale: 7, dx: 0, dy: 0 };
  let drive = null, roads = null, tone = {};

  function tones() {
    const style = getComputedStyle(document.documentElement);
    const names = "land verge road junction paint centre zebra parked vehicle cyclist pedestrian obstacle ego plan route ink soft card red yellow green glass headlamp";
    tone = Object.fromEntries(names.split(" ").map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  }
  const pathOf = (line) => {
    const path = new Path2D();
    for (let i = 0; i < line.length; i += 2) i ? path.lineTo(line[i], line[i + 1]) : path.moveTo(line[0], line[1]);
    return path;
  };
  function shifted(line, left) {
    const out = new Float64Array(line.length), n = line.length / 2;
    for (let i = 0; i < n; i++) {
      const a = 2 * Math.max(i - 1, 0), b = 2 * Math.min(i + 1, n - 1), m = 2 * i;
      // the mitre of the two segments that meet here, so that the distance is kept
      const yaw1 = Math.atan2(line[m + 1] - line[a + 1], line[m] - line[a]), yaw2 = Math.atan2(line[b + 1] - line[m + 1], line[b] - line[m]);
      const first = i ? yaw1 : yaw2, second = i < n - 1 ? yaw2 : yaw1, half = turned(first, second, 0.5);
      const far = left / Math.max(Math.cos(turned(0, second - first, 0.5)), 0.5);
      out[m] = line[m] - far * Math.sin(half); out[m + 1] = line[m + 1] + far * Math.cos(half);
    }
    return out;
  }
  function set(next) {
    drive = next;
    roads = drive.lanes.map((lane) => ({
      ...lane, path: pathOf(lane.line),
      edges: lane.inside ? [] : [[lane.width / 2, lane.left, true], [-lane.width / 2, lane.right, false]].map(([by, open, left]) => ({ path: pathOf(shifted(lane.line, by)), open, left })),
    }));
    drive.path = pathOf(drive.route);
    Object.assign(view, { dx: 0, dy: 0 });
    if (view.mode === "fixed") fit();
  }
  function fit() {
    const xs = [], ys = [];
    for (let i = 0; i < drive.route.length; i += 2) { xs.push(drive.route[i]); ys.push(drive.route[i + 1]); }
    for (let k = 0; k <= drive.n; k++) { xs.push(drive.ego[4 * k]); ys.push(drive.ego[4 * k + 1]); }
    const x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys);
    const { clientWidth: w, clientHeight: h } = canvas;
    Object.assign(view, { scale: Math.min(w / (x1 - x0 + 40), h / (y1 - y0 + 40)), dx: 0, dy: 0, cx: (x0 + x1) / 2, cy: (y0 + y1) / 2 });
  }
  function setMode(mode) {
    const { x, y } = now;
    view.mode = mode;
    if (mode === "fixed") fit(); else Object.assign(view, { scale: 7, dx: 0, dy: 0, cx: x, cy: y });
  }
  let now = { x: 0, y: 0, yaw: 0 };
  // World to pixels of the page.
  function frame() {
    const { clientWidth: w, clientHeight: h } = canvas, follow = view.mode !== "fixed";
    const turn = view.mode === "ego" ? Math.PI / 2 - now.yaw : 0;
    const cx = follow ? now.x : view.cx, cy = follow ? now.y : view.cy;
    // heading up: more is seen ahead than behind
    return { c: Math.cos(turn), s: Math.sin(turn), cx, cy, x0: w / 2 + view.dx, y0: (view.mode === "ego" ? 0.66 : 0.5) * h + view.dy };
  }
  function project(x, y) {
    const f = frame(), dx = x - f.cx, dy = y - f.cy, k = view.scale;
    return [f.x0 + k * (dx * f.c - dy * f.s), f.y0 - k * (dx * f.s + dy * f.c)];
  }
  function zoom(factor, px, py) {
    const f = frame(), scale = Math.max(0.6, Math.min(60, view.scale * factor)), k = scale / view.scale;
    view.dx += (px - f.x0) * (1 - k); view.dy += (py - f.y0) * (1 - k); view.scale = scale;
  }

  function stroke(path, width, colour, dash = []) {
    context.lineWidth = width; context.strokeStyle = colour; context.setLineDash(dash); context.stroke(path);
  }
  function box(x, y, yaw, length, width, radius, colour, edge) {
    context.save();
    context.translate(x, y); context.rotate(yaw);
    context.beginPath();
    context.roundRect(-length / 2, -width / 2, length, width, radius);
    context.fillStyle = colour; context.fill();
    if (edge) { context.lineWidth = 0.12; context.strokeStyle = edge; context.setLineDash([]); context.stroke(); }
  }
  function car(p, [length, width], colour, braking) {
    box(p.x, p.y, p.yaw, length, width, Math.min(0.55, width / 4), colour, tone.glass);
    const l = length / 2, w = width / 2;
    context.fillStyle = tone.glass;
    context.beginPath(); // windscreen, rear window
    context.moveTo(l * 0.5, -w * 0.82); context.lineTo(l * 0.5, w * 0.82); context.lineTo(l * 0.16, w * 0.68); context.lineTo(l * 0.16, -w * 0.68);
    context.moveTo(-l * 0.78, -w * 0.72); context.lineTo(-l * 0.78, w * 0.72); context.lineTo(-l * 0.52, w * 0.62); context.lineTo(-l * 0.52, -w * 0.62);
    context.fill();
    context.fillStyle = tone.headlamp;
    context.fillRect(l - 0.28, -w * 0.86, 0.24, w * 0.42); context.fillRect(l - 0.28, w * 0.44, 0.24, w * 0.42);
    if (braking) {
      context.fillStyle = tone.red;
      context.fillRect(-l, -w * 0.9, 0.22, w * 0.5); context.fillRect(-l, w * 0.4, 0.22, w * 0.5);
    }
    context.restore();
  }
  function walker(p, [length]) {
    const r = Math.max(length, 0.6) / 2 + 0.2;
    context.beginPath(); context.arc(p.x, p.y, r, 0, 7); context.fillStyle = tone.pedestrian; context.fill();
    context.lineWidth = 0.1; context.strokeStyle = tone.glass; context.setLineDash([]); context.stroke();
    context.beginPath(); context.moveTo(p.x, p.y); context.lineTo(p.x + 1.7 * r * Math.cos(p.yaw), p.y + 1.7 * r * Math.sin(p.yaw));
    context.lineWidth = 0.16; context.strokeStyle = tone.pedestrian; context.stroke();
  }
  function cyclist(p, [length, width]) {
    box(p.x, p.y, p.yaw, length, 0.22, 0.11, tone.glass);
    context.fillRect(length * 0.22, -width / 2, 0.12, width); // handlebar
    context.beginPath(); context.ellipse(-0.1, 0, length * 0.2, width * 0.62, 0, 0, 7); context.fillStyle = tone.cyclist; context.fill();
    context.lineWidth = 0.1; context.strokeStyle = tone.glass; context.setLineDash([]); context.stroke();
    context.restore();
  }
  function obstacle(p, [length, width]) {
    box(p.x, p.y, p.yaw, length, width, 0.3, tone.obstacle, tone.glass);
    context.clip();
    context.beginPath();
    for (let u = -length; u < length; u += 1.1) { context.moveTo(u - width, -width); context.lineTo(u + width, width); }
    context.lineWidth = 0.3; context.strokeStyle = tone.glass; context.globalAlpha = 0.35; context.stroke();
    context.restore();
  }
  const DRAW = { vehicle: (p, size) => car(p, size, tone.vehicle, p.accel < -0.6 || p.v < 0.1), cyclist, pedestrian: walker, obstacle };

  function ground() {
    context.lineJoin = "round";
    for (const lane of roads) {
      // a lane that leads into a junction ends square, so that a road that just ends does so too
      context.lineCap = lane.inside ? "round" : "butt";
      stroke(lane.path, lane.width + 2.4, tone.verge);
    }
    context.lineCap = "round";
    for (const lane of roads) if (lane.inside) stroke(lane.path, lane.width, tone.road);
    context.lineCap = "butt";
    for (const lane of roads) if (!lane.inside) stroke(lane.path, lane.width + 0.05, tone.road);
    for (const lane of roads) for (const edge of lane.edges) {
      if (edge.open) { if (edge.left) stroke(edge.path, 0.14, tone.paint, [3, 3]); }
      else stroke(edge.path, 0.15, edge.left ? tone.centre : tone.paint);
    }
    for (const [x0, y0, x1, y1, width] of drive.map.walks) {
      const path = pathOf([x0, y0, x1, y1]);
      stroke(path, width, tone.road); stroke(path, width, tone.zebra, [0.5, 0.5]);
    }
  }
  function stops(step) {
    for (const [x, y, yaw, width, control, light] of drive.map.stops) {
      const nx = -Math.sin(yaw) * width * 0.46, ny = Math.cos(yaw) * width * 0.46, path = pathOf([x - nx, y - ny, x + nx, y + ny]);
      if (control === "light" && drive.lights[light]) {
        const colour = [tone.green, tone.yellow, tone.red][lightAt(drive.lights[light], step)];
        context.globalAlpha = 0.25; stroke(path, 1.5, colour);
        context.globalAlpha = 1; stroke(path, 0.55, colour);
      } else stroke(path, 0.5, tone.paint, control === "yield" ? [0.5, 0.35] : []);
      if (control === "stop" || control === "yield") sign(x - nx * 1.75, y - ny * 1.75, yaw, control);
    }
  }
  function sign(x, y, yaw, control) {
    const sides = control === "stop" ? 8 : 3, r = 0.95;
    context.beginPath();
    for (let i = 0; i < sides; i++) {
      const angle = yaw + (control === "stop" ? Math.PI / 8 : Math.PI) + i * 2 * Math.PI / sides;
      context.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
    context.closePath();
    context.fillStyle = control === "stop" ? tone.red : "#fff"; context.fill();
    context.lineWidth = 0.22; context.strokeStyle = control === "stop" ? "#fff" : tone.red; context.setLineDash([]); context.stroke();
  }
  function routeLeft(step) {
    const k = Math.min(Math.floor(step), drive.n), next = Math.min(k + 1, drive.n);
    const at = drive.near[k] + (drive.near[next] - drive.near[k]) * (step - k), { along, route } = drive, line = [];
    for (let i = 1; i < along.length; i++) {
      if (along[i] < at) continue;
      if (!line.length) {
        const u = (at - along[i - 1]) / (along[i] - along[i - 1]);
        line.push(route[2 * i - 2] + (route[2 * i] - route[2 * i - 2]) * u, route[2 * i - 1] + (route[2 * i + 1] - route[2 * i - 1]) * u);
      }
      line.push(route[2 * i], route[2 * i + 1]);
    }
    context.lineCap = "round";
    context.globalAlpha = 0.32; stroke(pathOf(line), 1.3, tone.route); context.globalAlpha = 1;
    const gx = route[route.length - 2], gy = route[route.length - 1];
    context.beginPath(); context.arc(gx, gy, 1.5, 0, 7); context.lineWidth = 0.45; context.strokeStyle = tone.route; context.setLineDash([]); context.stroke();
    context.beginPath(); context.arc(gx, gy, 0.55, 0, 7); context.fillStyle = tone.route; context.fill();
  }
  function trail(step) {
    const line = [];
    for (let k = 0; k <= Math.floor(step); k++) line.push(drive.ego[4 * k], drive.ego[4 * k + 1]);
    line.push(now.x, now.y);
    context.lineCap = "round"; context.globalAlpha = 0.75; stroke(pathOf(line), 0.22, tone.ego); context.globalAlpha = 1;
  }
  function plan(step) {
    const found = planAt(drive, Math.min(step, drive.n - 1));
    if (!found) return;
    const { line } = found, past = drive.decided > 1 ? step - found.step : 0, dots = drive.decided > 1 ? 1 : 2;
    context.lineCap = "round";
    context.globalAlpha = 0.35;
    for (const other of found.others) {
      const rest = [now.x, now.y];
      for (let i = 0; i < other.length / 2; i++) if (i + 1 > past) rest.push(other[2 * i], other[2 * i + 1]);
      stroke(pathOf(rest), 0.16, tone.plan);
    }
    context.globalAlpha = 1;
    const ahead = [now.x, now.y];
    for (let i = 0; i < line.length / 2; i++) if (i + 1 > past) ahead.push(line[2 * i], line[2 * i + 1]);
    stroke(pathOf(ahead), 0.34, tone.plan);
    context.fillStyle = tone.plan;
    for (let i = dots - 1; i < line.length / 2; i += dots) {
      if (i + 1 <= past) continue;
      context.beginPath(); context.arc(line[2 * i], line[2 * i + 1], 0.3, 0, 7); context.fill();
    }
  }
  function burst() {
    for (const [r, alpha] of [[6.5, 0.14], [4.6, 0.2]]) {
      context.beginPath(); context.arc(now.x, now.y, r, 0, 7); context.globalAlpha = alpha; context.fillStyle = tone.red; context.fill();
    }
    context.globalAlpha = 1;
    context.beginPath(); context.arc(now.x, now.y, 6.5, 0, 7); context.lineWidth = 0.3; context.strokeStyle = tone.red; context.setLineDash([]); context.stroke();
  }
  function ruler() {
    const { clientHeight: h } = canvas, metres = [5, 10, 20, 50, 100, 200].find((m) => m * view.scale > 60) || 500, length = metres * view.scale;
    context.lineCap = "butt"; context.setLineDash([]); context.strokeStyle = tone.ink; context.lineWidth = 1.5; context.globalAlpha = 0.7;
    context.beginPath(); context.moveTo(16, h - 22); context.lineTo(16, h - 16); context.lineTo(16 + length, h - 16); context.lineTo(16 + length, h - 22); context.stroke();
    context.fillStyle = tone.ink; context.font = "12px system-ui, sans-serif"; context.fillText(metres + " m", 22, h - 22); context.globalAlpha = 1;
  }
  function draw(step) {
    const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
      if (view.mode === "fixed" && !view.dx && !view.dy) fit();
    }
    now = poseAt(drive.ego, step, drive.dt);
    const f = frame(), k = view.scale * ratio;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = tone.land; context.fillRect(0, 0, canvas.width, canvas.height);
    // pixels = origin + k * (turned world), with y up
    context.setTransform(k * f.c, -k * f.s, -k * f.s, -k * f.c, f.x0 * ratio - k * (f.cx * f.c - f.cy * f.s), f.y0 * ratio + k * (f.cx * f.s + f.cy * f.c));
    ground();
    routeLeft(step);
    stops(step);
    trail(step);
    for (const [x, y, yaw, length, width] of drive.map.parked) { car({ x, y, yaw }, [length, width], tone.parked, false); }
    if (step >= drive.n && !drive.ok) burst();
    for (const one of drive.others) {
      const at = step - one.from;
      if (at >= 0 && at <= one.poses.length / 4 - 1) DRAW[one.kind](poseAt(one.poses, at, drive.dt), one.size);
    }
    plan(step);
    car(now, drive.size, tone.ego, now.accel < -0.6);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    ruler();
  }
  tones();
  return { set, setMode, draw, zoom, tones, view, project, reset: () => setMode(view.mode), pan: (dx, dy) => { view.dx += dx; view.dy += dy; } };
}
