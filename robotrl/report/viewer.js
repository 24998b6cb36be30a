// Draws recorded rollouts: a small software renderer (depth buffer, smooth shading, flat shadows), so that the page
// needs neither WebGL nor a library. All pictures share one clock and one camera; dragging turns them all.
(() => {
  "use strict";
  const source = document.getElementById("rollouts");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const [[lookX, lookY, lookZ], distance, azimuth0, elevation0, fovy] = data.camera;
  let azimuth = azimuth0, elevation = elevation0;

  // Meshes: vertices, normals and triangles of each geom in its own frame.
  function grid(rows, columns, vertex) {
    const v = [], n = [], t = [];
    for (let i = 0; i <= rows; i++) for (let j = 0; j <= columns; j++) {
      const [p, q] = vertex(i / rows, j / columns);
      v.push(...p); n.push(...q);
      if (i < rows && j < columns) {
        const a = i * (columns + 1) + j, b = a + columns + 1;
        t.push(a, a + 1, b, b, a + 1, b + 1);
      }
    }
    return { v, n, t };
  }
  function join(parts) {
    const out = { v: [], n: [], t: [] };
    for (const part of parts) {
      const base = out.v.length / 3;
      out.v.push(...part.v); out.n.push(...part.n); out.t.push(...part.t.map((k) => k + base));
    }
    return out;
  }
  function boxMesh(x, y, z) {
    const parts = [];
    for (let axis = 0; axis < 3; axis++) for (const sign of [1, -1]) {
      parts.push(grid(1, 1, (a, b) => {
        const p = [0, 0, 0], n = [0, 0, 0], half = [x, y, z], u = (axis + 1) % 3, w = (axis + 2) % 3;
        p[axis] = sign * half[axis]; n[axis] = sign;
        p[u] = (2 * (sign > 0 ? b : a) - 1) * half[u]; p[w] = (2 * (sign > 0 ? a : b) - 1) * half[w];
        return [p, n];
      }));
    }
    return join(parts);
  }
  // A surface of revolution round z through points [radius, z, normal radius, normal z], from top to bottom.
  function lathe(profile, segments) {
    return grid(profile.length - 1, segments, (i, j) => {
      const [r, z, nr, nz] = profile[Math.round(i * (profile.length - 1))];
      const c = Math.cos(2 * Math.PI * j), s = -Math.sin(2 * Math.PI * j);
      return [[r * c, r * s, z], [nr * c, nr * s, nz]];
    });
  }
  function mesh(kind, a, b, c) {
    const arc = (from, to, steps, z) => Array.from({ length: steps + 1 }, (_, i) => {
      const angle = (from + (to - from) * i / steps) * Math.PI / 2;
      return [a * Math.cos(angle), z + a * Math.sin(angle), Math.cos(angle), Math.sin(angle)];
    });
    if (kind === "box") return boxMesh(a, b, c);
    if (kind === "sphere") return lathe(arc(1, -1, 10, 0), 16);
    if (kind === "capsule") return lathe([...arc(1, 0, 4, b), ...arc(0, -1, 4, -b)], 16);
    if (kind === "cylinder") {
      return join([lathe([[a, b, 1, 0], [a, -b, 1, 0]], 20), lathe([[0, b, 0, 1], [a, b, 0, 1]], 20),
        lathe([[a, -b, 0, -1], [0, -b, 0, -1]], 20)]);
    }
    if (kind === "ellipsoid") {
      const m = lathe(arc(1, -1, 10, 0).map((p) => p.map((k, i) => (i < 2 ? k / a : k))), 16);
      m.v = m.v.map((k, i) => k * [a, b, c][i % 3]);
      m.n = m.n.map((k, i) => k / [a, b, c][i % 3]);
      return m;
    }
    const x = a || 1, y = b || 1;
    return grid(10, 10, (i, j) => [[(2 * i - 1) * x, (1 - 2 * j) * y, 0], [0, 0, 1]]);
  }
  const geoms = data.geoms.map(([kind, a, b, c, red, green, blue]) => {
    const m = mesh(kind, a, b, c);
    return { v: new Float64Array(m.v), n: new Float64Array(m.n), t: m.t, rgb: [red, green, blue], tiles: kind === "plane" };
  });

  // Rollouts: 16-bit poses, see the packing in Python.
  function unpack(rollout) {
    const bytes = Uint8Array.from(atob(rollout.data), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer), all = new Float64Array(bytes.length / 2);
    for (let i = 0; i < all.length; i++) {
      all[i] = view.getInt16(2 * i, true) / 32767;
      if (i % 7 < 3) all[i] = all[i] * data.half + data.centre[i % 7];
    }
    const still = geoms.map((_, g) => g).filter((g) => !rollout.moving.includes(g));
    return { ...rollout, all, still, pose: new Float64Array(7) };
  }
  function poseAt(r, slot, frame) {
    const low = Math.min(Math.floor(frame), r.n - 1), high = Math.min(low + 1, r.n - 1), part = frame - low;
    const m = r.moving.length, a = 7 * (geoms.length + low * m + slot), b = 7 * (geoms.length + high * m + slot);
    let dot = 0;
    for (let k = 3; k < 7; k++) dot += r.all[a + k] * r.all[b + k];
    for (let k = 0; k < 7; k++) {
      const end = k > 2 && dot < 0 ? -r.all[b + k] : r.all[b + k];
      r.pose[k] = low === high ? r.all[a + k] : r.all[a + k] * (1 - part) + end * part;
    }
    return r.pose;
  }

  // The camera, as MuJoCo has it.
  let eye, right, up, forward;
  function aim() {
    const az = azimuth * Math.PI / 180, el = elevation * Math.PI / 180;
    forward = [Math.cos(el) * Math.cos(az), Math.cos(el) * Math.sin(az), Math.sin(el)];
    right = [Math.sin(az), -Math.cos(az), 0];
    up = [right[1] * forward[2], -right[0] * forward[2], right[0] * forward[1] - right[1] * forward[0]];
    eye = [lookX - distance * forward[0], lookY - distance * forward[1], lookZ - distance * forward[2]];
  }
  let lamp = 1;
  const key = [0.45, -0.25, 0.86], fill = [-0.7, 0.5, 0.3];

  // Screen vertices of the geom being drawn: x, y, 1/depth, light.
  const sx = new Float64Array(4096), sy = new Float64Array(4096), sw = new Float64Array(4096), sl = new Float64Array(4096);
  function place(pic, geom, pose, flat) {
    const [px, py, pz, qw, qx, qy, qz] = pose;
    const n2 = 2 / (qw * qw + qx * qx + qy * qy + qz * qz);
    const r00 = 1 - n2 * (qy * qy + qz * qz), r01 = n2 * (qx * qy - qw * qz), r02 = n2 * (qx * qz + qw * qy);
    const r10 = n2 * (qx * qy + qw * qz), r11 = 1 - n2 * (qx * qx + qz * qz), r12 = n2 * (qy * qz - qw * qx);
    const r20 = n2 * (qx * qz - qw * qy), r21 = n2 * (qy * qz + qw * qx), r22 = 1 - n2 * (qx * qx + qy * qy);
    const focal = pic.height / 2 / Math.tan(fovy * Math.PI / 360);
    for (let i = 0, k = 0; i < geom.v.length; i += 3, k++) {
      const a = geom.v[i], b = geom.v[i + 1], c = geom.v[i + 2];
      let x = px + r00 * a + r01 * b + r02 * c, y = py + r10 * a + r11 * b + r12 * c, z = pz + r20 * a + r21 * b + r22 * c;
      if (flat) {
        const fall = (z - data.shadow) / key[2];
        x -= fall * key[0]; y -= fall * key[1]; z = data.shadow + 1e-4;
      } else {
        const u = geom.n[i], v = geom.n[i + 1], w = geom.n[i + 2], size = Math.hypot(u, v, w) || 1;
        const nx = (r00 * u + r01 * v + r02 * w) / size, ny = (r10 * u + r11 * v + r12 * w) / size;
        const nz = (r20 * u + r21 * v + r22 * w) / size;
        const light = Math.max(0, nx * key[0] + ny * key[1] + nz * key[2]);
        sl[k] = lamp * (0.5 + 0.52 * light + 0.2 * Math.max(0, nx * fill[0] + ny * fill[1] + nz * fill[2]) + 0.06 * nz);
      }
      x -= eye[0]; y -= eye[1]; z -= eye[2];
      const depth = x * forward[0] + y * forward[1] + z * forward[2];
      sw[k] = depth > 0.02 ? 1 / depth : -1;
      sx[k] = pic.width / 2 + focal * (x * right[0] + y * right[1]) / depth;
      sy[k] = pic.height / 2 - focal * (x * up[0] + y * up[1] + z * up[2]) / depth;
    }
  }
  function draw(pic, geom, pose, flat) {
    place(pic, geom, pose, flat);
    const { width, height, colour, depth } = pic, [red, green, blue] = geom.rgb;
    for (let i = 0; i < geom.t.length; i += 3) {
      const a = geom.t[i];
      let b = geom.t[i + 2], c = geom.t[i + 1]; // the screen's y points down, which turns the winding round
      const tile = geom.tiles && (Math.floor(i / 6) % 10 + Math.floor(i / 60)) % 2 ? 0.955 : 1;
      if (sw[a] < 0 || sw[b] < 0 || sw[c] < 0) continue;
      let area = (sx[b] - sx[a]) * (sy[c] - sy[a]) - (sx[c] - sx[a]) * (sy[b] - sy[a]);
      if (flat && area < 0) { [b, c] = [c, b]; area = -area; }
      if (area <= 1e-6) continue;
      const x0 = Math.max(0, Math.ceil(Math.min(sx[a], sx[b], sx[c]) - 0.5));
      const x1 = Math.min(width - 1, Math.floor(Math.max(sx[a], sx[b], sx[c]) - 0.5));
      const y0 = Math.max(0, Math.ceil(Math.min(sy[a], sy[b], sy[c]) - 0.5));
      const y1 = Math.min(height - 1, Math.floor(Math.max(sy[a], sy[b], sy[c]) - 0.5));
      const bx = (sy[c] - sy[a]) / area, by = -(sx[c] - sx[a]) / area;
      const cx = -(sy[b] - sy[a]) / area, cy = (sx[b] - sx[a]) / area;
      for (let y = y0; y <= y1; y++) {
        let wb = (x0 + 0.5 - sx[a]) * bx + (y + 0.5 - sy[a]) * by, wc = (x0 + 0.5 - sx[a]) * cx + (y + 0.5 - sy[a]) * cy;
        for (let x = x0, at = y * width + x0; x <= x1; x++, at++, wb += bx, wc += cx) {
          const wa = 1 - wb - wc;
          if (wa < 0 || wb < 0 || wc < 0) continue;
          const near = wa * sw[a] + wb * sw[b] + wc * sw[c];
          if (flat) {
            // Only the surface itself takes the shadow: what was drawn there lies at the same depth.
            if (Math.abs(near - pic.backDepth[at]) < 0.003 * near) {
              const p = pic.back[at];
              colour[at] = 0xff000000 | (((p >> 16 & 255) * 0.74) << 16) | (((p >> 8 & 255) * 0.72) << 8) | ((p & 255) * 0.7);
            }
          } else if (near > depth[at]) {
            depth[at] = near;
            const light = tile * (wa * sl[a] + wb * sl[b] + wc * sl[c]);
            colour[at] = 0xff000000 | (Math.min(255, 255 * blue * light) << 16)
              | (Math.min(255, 255 * green * light) << 8) | Math.min(255, 255 * red * light);
          }
        }
      }
    }
  }

  const pictures = [...document.querySelectorAll("canvas[data-side]")].map((canvas) => {
    const r = unpack(data[canvas.dataset.side][canvas.dataset.index]);
    return { canvas, r, mark: canvas.parentElement.querySelector(".mark"), context: canvas.getContext("2d"), seen: true };
  });
  let ratio = 2; // twice the page's pixels: smooth edges; less on a machine that cannot keep up
  function resize(pic) {
    const width = Math.max(16, Math.round(pic.canvas.clientWidth * ratio)), height = Math.round(width * 0.75);
    if (width === pic.width) return;
    pic.canvas.width = pic.width = width; pic.canvas.height = pic.height = height;
    pic.image = pic.context.createImageData(width, height);
    pic.colour = new Uint32Array(pic.image.data.buffer);
    pic.back = new Uint32Array(width * height);
    pic.depth = new Float32Array(width * height);
    pic.backDepth = new Float32Array(width * height);
    pic.ready = false;
  }
  // What never moves is drawn once for a view and copied under every frame.
  function background(pic) {
    const style = getComputedStyle(document.documentElement);
    const tone = (name) => style.getPropertyValue(name).trim().match(/\d+/g).map(Number);
    lamp = tone("--lamp")[0] / 100;
    const top = tone("--sky-top"), bottom = tone("--sky-bottom");
    for (let y = 0; y < pic.height; y++) {
      const [red, green, blue] = top.map((k, i) => Math.round(k + (bottom[i] - k) * y / pic.height));
      pic.colour.fill((0xff000000 | (blue << 16) | (green << 8) | red) >>> 0, y * pic.width, (y + 1) * pic.width);
    }
    pic.depth.fill(0);
    const poses = pic.r.still.map((g) => [g, pic.r.all.subarray(7 * g, 7 * g + 7)]);
    for (const [g, pose] of poses) draw(pic, geoms[g], pose, false);
    pic.back.set(pic.colour); pic.backDepth.set(pic.depth);
    if (data.shadow !== null) for (const [g, pose] of poses) if (pose[2] > data.shadow + 0.004) draw(pic, geoms[g], pose, true);
    pic.still = pic.colour.slice();
    pic.ready = true;
  }
  function paint(pic, time) {
    resize(pic);
    if (!pic.ready) background(pic);
    const frame = Math.min(time / data.dt, pic.r.n - 1);
    pic.colour.set(pic.still); pic.depth.set(pic.backDepth);
    if (data.shadow !== null) pic.r.moving.forEach((g, slot) => draw(pic, geoms[g], poseAt(pic.r, slot, frame), true));
    pic.r.moving.forEach((g, slot) => draw(pic, geoms[g], poseAt(pic.r, slot, frame), false));
    pic.context.putImageData(pic.image, 0, 0);
    pic.mark.classList.toggle("over", time >= (pic.r.n - 1) * data.dt);
  }

  const play = document.getElementById("play"), scrub = document.getElementById("scrub");
  const speed = document.getElementById("speed"), clock = document.getElementById("clock");
  const end = Math.max(...pictures.map((pic) => (pic.r.n - 1) * data.dt));
  const pause = 1.2;
  let time = 0, running = !matchMedia("(prefers-reduced-motion: reduce)").matches, last = null, stale = true;
  scrub.max = end;
  scrub.step = "any";
  let cost = 0;
  function show() {
    const began = performance.now(), settled = pictures.every((pic) => pic.ready || !pic.seen);
    for (const pic of pictures) if (pic.seen) paint(pic, Math.min(time, end));
    if (settled) cost = 0.8 * cost + 0.2 * (performance.now() - began);
    if (cost > 40 && ratio > 1) { ratio -= 0.5; cost = 0; }
    scrub.value = Math.min(time, end);
    clock.textContent = Math.min(time, end).toFixed(1) + " s";
    play.textContent = running ? "Pause" : "Play";
    stale = false;
  }
  function tick(now) {
    if (last === null || now - last > 30) {
      const passed = last === null ? 0 : Math.min(0.2, (now - last) / 1000);
      last = now;
      if (running && pictures.some((pic) => pic.seen)) {
        time += passed * Number(speed.value);
        if (time > end + pause * Number(speed.value)) time = 0;
        stale = true;
      }
      if (stale) show();
    }
    requestAnimationFrame(tick);
  }
  play.onclick = () => { running = !running; if (running && time >= end) time = 0; stale = true; };
  scrub.oninput = () => { running = false; time = Number(scrub.value); stale = true; };
  const forget = () => { for (const pic of pictures) pic.ready = false; stale = true; };
  addEventListener("resize", forget);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
  if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) pictures.find((pic) => pic.canvas === entry.target).seen = entry.isIntersecting;
      stale = true;
    }, { rootMargin: "100px" });
    for (const pic of pictures) watcher.observe(pic.canvas);
  }
  for (const { canvas } of pictures) {
    canvas.onpointerdown = (event) => canvas.setPointerCapture(event.pointerId);
    canvas.onpointermove = (event) => {
      if (!canvas.hasPointerCapture(event.pointerId)) return;
      azimuth -= event.movementX * 0.5;
      elevation = Math.max(-85, Math.min(-3, elevation - event.movementY * 0.4));
      aim(); forget();
    };
  }
  aim();
  requestAnimationFrame(tick);
})();
