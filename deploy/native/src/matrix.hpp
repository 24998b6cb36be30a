// Product of a row with a matrix, in panels of outputs whose sums stay in registers.
//
// The weights come panel by panel (see `paneled` in tape.py), so that they are read once and in order: a row of one policy
// is bound by reading its weights. Each sum runs over the inputs in one or a few interleaved parts.
#pragma once

#include "vector.hpp"

namespace robotrl {

constexpr int PANEL = 64, NARROW = 16;

// One panel of WIDTH outputs; PARTS interleaved sums hide the latency of narrow panels.
template <int WIDTH, int PARTS>
inline void panel(const float* weights, const float* x, const float* bias, float* y, int64_t k, int64_t valid) {
    constexpr int VECTORS = WIDTH / LANES;
    Vector sum[PARTS][VECTORS];
#pragma GCC unroll 16
    for (int part = 0; part < PARTS; ++part)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) sum[part][v] = Vector{};
    int64_t i = 0;
    for (; i + PARTS <= k; i += PARTS) {
#pragma GCC unroll 16
        for (int part = 0; part < PARTS; ++part) {
            const Vector xi = Vector{} + x[i + part];
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[part][v] += load(weights + (i + part) * WIDTH + v * LANES) * xi;
        }
    }
    for (; i < k; ++i) {
        const Vector xi = Vector{} + x[i];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) sum[0][v] += load(weights + i * WIDTH + v * LANES) * xi;
    }
    float out[WIDTH];
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) {
#pragma GCC unroll 16
        for (int part = 1; part < PARTS; ++part) sum[0][v] += sum[part][v];
        store(out + v * LANES, sum[0][v]);
    }
    for (int64_t o = 0; o < valid; ++o) y[o] = bias ? out[o] + bias[o] : out[o];
}

// y (rows, n) = x (rows, k) weights + bias; `bias` may be null.
inline void matrix(const float* x, float* y, int64_t rows, int64_t k, int64_t n, const float* weights, const float* bias) {
    constexpr int WIDE_PARTS = PANEL / LANES >= 8 ? 1 : 2;
    int64_t at = 0;
    for (; at + PANEL <= n; at += PANEL, weights += PANEL * k)
        for (int64_t row = 0; row < rows; ++row)
            panel<PANEL, WIDE_PARTS>(weights, x + row * k, bias ? bias + at : nullptr, y + row * n + at, k, PANEL);
    for (; at < n; at += NARROW, weights += NARROW * k) {
        const int64_t valid = n - at < NARROW ? n - at : NARROW;
        for (int64_t row = 0; row < rows; ++row)
            panel<NARROW, 4>(weights, x + row * k, bias ? bias + at : nullptr, y + row * n + at, k, valid);
    }
}

// Floats of the paneled weights of a (k, n) matrix.
inline int64_t paneled_floats(int64_t k, int64_t n) {
    const int64_t wide = n / PANEL * PANEL;
    return k * (wide + (n - wide + NARROW - 1) / NARROW * NARROW);
}

}  // namespace robotrl
