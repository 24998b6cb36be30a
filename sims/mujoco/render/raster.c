/* Pixel loops of the raster camera: see raster_pixels.py, which does the same in numpy, operation by operation. Compiled
   without contraction to fused multiply-adds, so that both give the same bits. Lengths are in pixels; x right, y down,
   z towards the camera; all coordinates of a geom are relative to its centre. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND, BOX, CAPSULE, CYLINDER, FLOOR, TERRAIN };
enum { COLUMNS = 27 }; /* of params, laid out as raster_scene.py says */
#define BACK (-1e30f)
#define DARKEST 0.5f
#define TINY 1e-12f

typedef struct {
    float *z, *r, *g, *b;
} Planes;

static inline float least(float a, float b) { return a < b ? a : b; }
static inline float most(float a, float b) { return a > b ? a : b; }

/* How much of a pixel at distance x from the middle line a strip of half width s covers. */
static inline float strip(float x, float s) {
    float covered = least(x + 0.5f, s) - most(x - 0.5f, -s);
    return most(covered, 0.0f);
}

/* Coverage of a pixel at signed distance d from the edge of a shape whose narrowest half width is s. */
static inline float edge(float d, float s) { return least(strip(most(d + s, 0.0f), s), 1.0f); }

static inline float bulge(float x) { return sqrtf(most(x, 0.0f)); }

static inline float tile(float u, float px) {
    float t = u * 0.5f;
    t = t - floorf(t);
    float wave = fabsf(t * 2.0f - 1.0f);
    return least(most(0.5f + (wave - 0.5f) * px, 0.0f), 1.0f);
}

/* Factor of the floor's colour at tile coordinates (u, v): p[0] contrast, p[1] pixels of a tile. */
static inline float tiles(const float *p, float u, float v) {
    float a = tile(u, p[1]), b = tile(v, p[1]);
    return 1.0f - p[0] * (a * (1.0f - b) + b * (1.0f - a));
}

#define PIXELS(x0, x1, y0, y1)                      \
    for (int y = y0; y < y1; y++) {                 \
        const float dy = ((float)y + 0.5f) - p[1];  \
        float *restrict zs = to.z + (size_t)y * width; \
        float *restrict rs = to.r + (size_t)y * width; \
        float *restrict gs = to.g + (size_t)y * width; \
        float *restrict bs = to.b + (size_t)y * width; \
        for (int x = x0; x < x1; x++) {             \
            const float dx = ((float)x + 0.5f) - p[0];

#define PUT(cover, depth, light)                    \
            const float a_ = (depth) >= zs[x] ? (cover) : 0.0f; \
            const float l_ = DARKEST + (1.0f - DARKEST) * (light); \
            rs[x] = rs[x] + a_ * (red * l_ - rs[x]);  \
            gs[x] = gs[x] + a_ * (green * l_ - gs[x]); \
            bs[x] = bs[x] + a_ * (blue * l_ - bs[x]); \
            zs[x] = a_ >= 0.5f ? (depth) : zs[x];   \
        }                                           \
    }

static void round_(Planes to, int width, const int32_t *w, const float *p) {
    const float red = p[3], green = p[4], blue = p[5];
    const float *q = p + 6;
    PIXELS(w[0], w[1], w[2], w[3])
        const float gx = q[0] * dx + q[1] * dy, gy = q[1] * dx + q[2] * dy;
        const float k2 = gx * dx + gy * dy;
        const float k0 = sqrtf(most(k2, 0.0f));
        const float k1 = sqrtf(most(gx * gx + gy * gy, TINY * TINY));
        const float d = k2 > 1e-6f ? k0 * (k0 - 1.0f) / k1 : -q[6];
        const float up = bulge(1.0f - k2);
        const float depth = p[2] + q[3] * dx + q[4] * dy + q[5] * up;
        const float cover = edge(d, q[6]);
        PUT(cover, depth, up)
}

static void box(Planes to, int width, const int32_t *w, const float *p) {
    const float red = p[3], green = p[4], blue = p[5];
    const float *q = p + 6, *f = p + 15;
    const float light0 = f[3], light1 = f[7], light2 = f[11]; /* read before the loop, or it is not vectorised */
    PIXELS(w[0], w[1], w[2], w[3])
        const float c0 = least(strip(fabsf(q[0] * dx + q[1] * dy), q[2]), 1.0f);
        const float c1 = least(strip(fabsf(q[3] * dx + q[4] * dy), q[5]), 1.0f);
        const float c2 = least(strip(fabsf(q[6] * dx + q[7] * dy), q[8]), 1.0f);
        const float cover = c0 * c1 * c2;
        const float w0 = f[0] + f[1] * dx + f[2] * dy;
        const float w1 = f[4] + f[5] * dx + f[6] * dy;
        const float w2 = f[8] + f[9] * dx + f[10] * dy;
        const float w01 = least(w0, w1), l01 = w1 < w0 ? light1 : light0;
        const float depth = p[2] + least(w01, w2), light = w2 < w01 ? light2 : l01;
        PUT(cover, depth, light)
}

static void capsule(Planes to, int width, const int32_t *w, const float *p) {
    const float red = p[3], green = p[4], blue = p[5];
    const float *q = p + 6;
    const float flat = q[2], steep = q[3], half = q[4], radius = q[5];
    const float shade = q[6], stretch = q[7], bound = q[9]; /* read here, or the loop is not vectorised */
    const float end = half * flat, top = half * steep, square = radius * radius;
    PIXELS(w[0], w[1], w[2], w[3])
        const float s = q[0] * dx + q[1] * dy, h = q[0] * dy - q[1] * dx;
        const float beyond = s - least(most(s, -end), end);
        const float cover = edge(sqrtf(h * h + beyond * beyond) - radius, radius);
        const float up = bulge(square - h * h);
        const float body = (s * steep + up) * stretch;
        const float along = s * flat + body * steep;
        const float above = bulge(square - h * h - (s - end) * (s - end));
        const float below = bulge(square - h * h - (s + end) * (s + end));
        const float bent = along > half ? top + above : (along < -half ? below - top : body);
        const float light = along > half ? above * shade : (along < -half ? below * shade : up * shade * flat);
        const float depth = p[2] + least(most(bent, -bound), bound);
        PUT(cover, depth, light)
}

static void cylinder(Planes to, int width, const int32_t *w, const float *p) {
    const float red = p[3], green = p[4], blue = p[5];
    const float *q = p + 6;
    const float flat = q[2], steep = q[3], half = q[4], radius = q[5];
    const float shade = q[6], stretch = q[7], narrow = q[8], bound = q[9], tilt = q[10];
    const float end = half * flat, top = half * steep, square = radius * radius;
    const float minor = most(radius * steep, 1e-3f);
    PIXELS(w[0], w[1], w[2], w[3])
        const float s = q[0] * dx + q[1] * dy, h = q[0] * dy - q[1] * dx;
        const float over = fabsf(s) - end, width_left = fabsf(h) - radius;
        const float root = bulge(square - h * h);
        const float u = over / minor, v = h * shade;
        const float k0 = sqrtf(u * u + v * v);
        const float ku = u / minor, kv = v * shade;
        const float k1 = sqrtf(most(ku * ku + kv * kv, TINY * TINY));
        const float bent_edge = k0 > 1e-3f ? k0 * (k0 - 1.0f) / k1 : -radius;
        const float outer = over > 0.0f ? most(bent_edge, width_left) : width_left;
        const float d = outer < 0.0f ? most(outer, over - steep * root) : outer;
        const float cover = edge(d, narrow);
        const float cap = top - (s - end) * flat * tilt;
        const float body = (s * steep + root) * stretch;
        /* beyond the lid's middle only the lid and its smooth edge are left */
        const int lid = s > end || (s - end) * (s - end) <= steep * steep * (square - h * h);
        const float bent = lid ? cap : body;
        const float light = lid ? steep : root * shade * flat;
        const float depth = p[2] + least(most(bent, -bound), bound);
        PUT(cover, depth, light)
}

static void plain_floor(Planes to, int width, const int32_t *w, const float *p) {
    const float red = p[3], green = p[4], blue = p[5];
    const float *q = p + 6;
    PIXELS(w[0], w[1], w[2], w[3])
        const float cover = most(least(0.5f - (q[0] + q[1] * dx + q[2] * dy), 1.0f), 0.0f);
        const float depth = p[2] + q[3] + q[4] * dx + q[5] * dy;
        PUT(cover, depth, q[6])
}

static void tiled_floor(Planes to, int width, const int32_t *w, const float *p) {
    const float *q = p + 6;
    PIXELS(w[0], w[1], w[2], w[3])
        const float cover = most(least(0.5f - (q[0] + q[1] * dx + q[2] * dy), 1.0f), 0.0f);
        const float depth = p[2] + q[3] + q[4] * dx + q[5] * dy;
        const float f = tiles(q + 7, q[9] + q[10] * dx + q[11] * dy, q[12] + q[13] * dx + q[14] * dy);
        const float red = p[3] * f, green = p[4] * f, blue = p[5] * f;
        PUT(cover, depth, q[6])
}

static void terrain(Planes to, int width, const int32_t *w, const float *p, const int32_t *grid, const float *heights) {
    const float *q = p + 6, *cells = heights + grid[0];
    const float last_u = (float)(grid[2] - 1), last_v = (float)(grid[1] - 1);
    const int columns = grid[2];
    PIXELS(w[0], w[1], w[2], w[3])
        const float u = q[7] + q[8] * dx + q[9] * dy, v = q[10] + q[11] * dx + q[12] * dy;
        const int inside = u >= 0.0f && u <= last_u && v >= 0.0f && v <= last_v;
        const float i = floorf(least(most(u, 0.0f), last_u - 1.0f)), j = floorf(least(most(v, 0.0f), last_v - 1.0f));
        const float a = least(most(u - i, 0.0f), 1.0f), b = least(most(v - j, 0.0f), 1.0f);
        const float *cell = cells + (int)j * columns + (int)i;
        const float h00 = cell[0], h01 = cell[1], h10 = cell[columns], h11 = cell[columns + 1];
        const float low = h00 + a * (h01 - h00), high = h10 + a * (h11 - h10);
        const float h = (low + b * (high - low)) * q[13];
        const float rise_u = ((h01 - h00) + b * ((h11 - h10) - (h01 - h00))) * q[14];
        const float rise_v = (high - low) * q[15];
        const float light = 1.0f / sqrtf(1.0f + (rise_u * rise_u + rise_v * rise_v));
        const float section = most(least(0.5f - (q[0] + q[1] * dy - q[2] * h), 1.0f), 0.0f);
        const float cover = inside ? section : 0.0f;
        const float depth = p[2] + q[3] + q[4] * h;
        const float f = tiles(q + 5, u * q[16], v * q[17]);
        const float red = p[3] * f, green = p[4] * f, blue = p[5] * f;
        PUT(cover, depth, light)
}

void raster(const int32_t *kind, const int32_t *window, const int32_t *order, const float *params,
            const int32_t *grid, const float *heights, const float *background, const int64_t *rows, int32_t first, int32_t last, int32_t geoms, int32_t width,
            int32_t height, uint8_t *out) {
    const size_t size = (size_t)width * height;
    float *memory = (float *)malloc(4 * size * sizeof(float));
    if (!memory) abort();
    const Planes to = {memory, memory + size, memory + 2 * size, memory + 3 * size};
    for (int env = first; env < last; env++) {
        for (size_t i = 0; i < size; i++) {
            to.z[i] = BACK;
            to.r[i] = background[0];
            to.g[i] = background[1];
            to.b[i] = background[2];
        }
        for (int k = 0; k < geoms; k++) {
            const size_t at = (size_t)env * geoms + order[(size_t)env * geoms + k];
            const int32_t *w = window + at * 4;
            const float *p = params + at * COLUMNS;
            if (w[0] >= w[1] || w[2] >= w[3]) continue;
            switch (kind[at % geoms]) {
                case ROUND: round_(to, width, w, p); break;
                case BOX: box(to, width, w, p); break;
                case CAPSULE: capsule(to, width, w, p); break;
                case CYLINDER: cylinder(to, width, w, p); break;
                case TERRAIN: terrain(to, width, w, p, grid + 3 * (at % geoms), heights); break;
                case FLOOR: (p[13] > 0.0f ? tiled_floor : plain_floor)(to, width, w, p); break;
            }
        }
        uint8_t *pixel = out + (size_t)rows[env] * size * 3;
        for (size_t i = 0; i < size; i++) {
            pixel[3 * i] = (uint8_t)(to.r[i] * 255.0f + 0.5f);
            pixel[3 * i + 1] = (uint8_t)(to.g[i] * 255.0f + 0.5f);
            pixel[3 * i + 2] = (uint8_t)(to.b[i] * 255.0f + 0.5f);
        }
    }
    free(memory);
}
