// Activation functions, a vector at a time. NaN stays NaN.
#pragma once

#include "vector.hpp"

namespace robotrl {

// exp by range reduction to [-ln 2 / 2, ln 2 / 2] and a polynomial; relative error 2e-7.
inline Vector fast_exp(Vector x) {
    x = x < -87.0f ? Vector{} - 87.0f : x;
    // beyond this the scale below is infinite, so that a sigmoid becomes 0
    x = x > 89.0f ? Vector{} + 89.0f : x;
    // adding and taking away 1.5 * 2^23 rounds to the nearest whole number
    const Vector whole = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    const Vector r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // a NaN has no whole number: its product is NaN whatever the scale
    const Wholes exponent = __builtin_convertvector(whole == whole ? whole : Vector{}, Wholes);
    const Wholes bits = (exponent + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &bits, VECTOR_BYTES);
    return p * scale;
}

inline Vector fast_sigmoid(Vector x) { return 1.0f / (1.0f + fast_exp(-x)); }

inline Vector fast_silu(Vector x) { return x * fast_sigmoid(x); }

inline Vector fast_tanh(Vector x) {
    const Vector a = x < 0.0f ? -x : x, s = x * x;
    Vector p = s * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    const Vector near = p * s * x + x;
    const Vector far = 1.0f - 2.0f / (fast_exp(2.0f * a) + 1.0f);
    return a < 0.625f ? near : (x < 0.0f ? -far : far);
}

// y = function(x), whole vectors: y is padded to them (see `Tape.value`), and x may be read beyond its end.
template <class F>
inline void each_vector(const float* x, float* y, int64_t n, F function) {
    for (int64_t i = 0; i < n; i += LANES) store(y + i, function(load(x + i)));
}

template <class F>
inline void each(const float* x, float* y, int64_t n, F function) {
    for (int64_t i = 0; i < n; ++i) y[i] = function(x[i]);
}

template <class F>
inline void pairs(const float* a, const float* b, float* y, int64_t n, F function) {
    for (int64_t i = 0; i < n; ++i) y[i] = function(a[i], b[i]);
}

}  // namespace robotrl
