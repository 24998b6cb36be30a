// Unpacks the recorded drives (see drive_pack.py) and says where everybody is at a fractional step.
function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new DataView(bytes.buffer);
}
function whole(text) {
  const view = bytesOf(text);
  return Int16Array.from({ length: view.byteLength / 2 }, (_, i) => view.getInt16(2 * i, true));
}
function floats(text) {
  const view = bytesOf(text);
  return Float32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
}
function unpackDrive(d) {
  const [ox, oy] = d.origin;
  const points = (text) => {
    const raw = whole(text), out = new Float64Array(raw.length);
    for (let i = 0; i < raw.length; i += 2) { out[i] = ox + raw[i] * d.unit; out[i + 1] = oy + raw[i + 1] * d.unit; }
    return out;
  };
  const poses = (text) => {
    const raw = whole(text), out = new Float64Array(raw.length);
    for (let i = 0; i < raw.length; i += 4) {
      out[i] = ox + raw[i] * d.unit; out[i + 1] = oy + raw[i + 1] * d.unit;
      out[i + 2] = raw[i + 2] * Math.PI / 32767; out[i + 3] = raw[i + 3] * 0.01;
    }
    return out;
  };
  const lanes = d.map.lanes.map(([line, width, inside, left, right]) => ({ line: points(line), width, inside, left, right }));
  const drive = {
    ...d, lanes, route: points(d.map.route), ego: poses(d.ego), limit: floats(d.limit),
    others: d.others.map((one) => ({ ...one, poses: poses(one.poses) })),
    reward: floats(d.reward), done: floats(d.done),
    actions: Object.fromEntries(Object.entries(d.actions).map(([name, text]) => [name, floats(text)])),
    terms: Object.fromEntries(Object.entries(d.terms).map(([name, text]) => [name, floats(text)])),
    plans: d.plans.map(([step, text, others]) => ({ step, line: points(text), others: (others || []).map(points) })),
  };
  drive.along = alongOf(drive.route);
  drive.near = nearestOf(drive);
  return drive;
}
function alongOf(line) {
  const out = new Float64Array(line.length / 2);
  for (let i = 1; i < out.length; i++) {
    out[i] = out[i - 1] + Math.hypot(line[2 * i] - line[2 * i - 2], line[2 * i + 1] - line[2 * i - 1]);
  }
  return out;
}
// For each step the metres along the route at which the ego is nearest to it, looked for from the last one onwards.
function nearestOf(drive) {
  const { route, along, ego, n } = drive, out = new Float64Array(n + 1);
  let from = 0;
  for (let k = 0; k <= n; k++) {
    let best = Infinity;
    for (let i = from; i + 3 < route.length; i += 2) {
      if (along[i / 2] > (out[k - 1] || 0) + 30) break;
      const dx = route[i + 2] - route[i], dy = route[i + 3] - route[i + 1];
      const px = ego[4 * k] - route[i], py = ego[4 * k + 1] - route[i + 1];
      const u = Math.max(0, Math.min(1, (px * dx + py * dy) / (dx * dx + dy * dy || 1)));
      const off = Math.hypot(px - u * dx, py - u * dy);
      if (off < best) { best = off; out[k] = along[i / 2] + u * Math.hypot(dx, dy); from = i; }
    }
  }
  return out;
}
const turned = (a, b, u) => a + (((b - a + 3 * Math.PI) % (2 * Math.PI)) - Math.PI) * u;
// x, y, yaw, speed and acceleration of a pose list at a fractional step.
function poseAt(poses, step, dt) {
  const last = poses.length / 4 - 1, k = Math.max(0, Math.min(last, Math.floor(step))), next = Math.min(last, k + 1), u = step - k;
  const a = 4 * k, b = 4 * next;
  return {
    x: poses[a] + (poses[b] - poses[a]) * u, y: poses[a + 1] + (poses[b + 1] - poses[a + 1]) * u,
    yaw: turned(poses[a + 2], poses[b + 2], u), v: poses[a + 3] + (poses[b + 3] - poses[a + 3]) * u,
    accel: next > k ? (poses[b + 3] - poses[a + 3]) / dt : 0,
  };
}
function lightAt(changes, step) {
  let state = changes[0][1];
  for (const [from, to] of changes) { if (from > step) break; state = to; }
  return state;
}
function planAt(drive, step) {
  let found = null;
  for (const plan of drive.plans) { if (plan.step > step) break; found = plan; }
  return found;
}
