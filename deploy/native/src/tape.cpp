#include "tape.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "crc32.hpp"
#include "functions.hpp"
#include "matrix.hpp"

namespace robotrl {

namespace {

enum Op { MATRIX = 1, UNARY, BINARY, SCALAR, COPY, GATHER, LAYER_NORM, SOFTMAX, PRODUCT, MEAN };
enum Unary { SIGMOID = 1, TANH, RELU, SILU, EXP, LOG, SQRT, NEG, ABS, ERF, GELU, SOFTPLUS, RECIPROCAL, SIN, COS, ELU };
enum Binary { ADD = 1, SUB, MUL, DIV, MAX, MIN };

constexpr size_t HEAD_BYTES = 16 + 5 * 8;
constexpr int64_t MOST_FLOATS = int64_t(1) << 30;

[[noreturn]] void refuse(const char* why) { throw std::runtime_error(why); }

float larger(float a, float b) { return a > b || a != a ? a : b; }
float smaller(float a, float b) { return a < b || a != a ? a : b; }

float from_bits(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

void unary(int32_t function, const float* x, float* y, int64_t n) {
    switch (function) {
        case SIGMOID: return each_vector(x, y, n, fast_sigmoid);
        case TANH: return each_vector(x, y, n, fast_tanh);
        case RELU: return each(x, y, n, [](float v) { return v < 0.0f ? 0.0f : v; });
        case SILU: return each_vector(x, y, n, fast_silu);
        case EXP: return each(x, y, n, [](float v) { return std::exp(v); });
        case LOG: return each(x, y, n, [](float v) { return std::log(v); });
        case SQRT: return each(x, y, n, [](float v) { return std::sqrt(v); });
        case NEG: return each(x, y, n, [](float v) { return -v; });
        case ABS: return each(x, y, n, [](float v) { return std::fabs(v); });
        case ERF: return each(x, y, n, [](float v) { return std::erf(v); });
        case GELU: return each(x, y, n, [](float v) { return 0.5f * v * (1.0f + std::erf(v * 0.70710678118654752f)); });
        case SOFTPLUS:
            // written so that a large number does not overflow
            return each(x, y, n, [](float v) { return (v > 0.0f ? v : 0.0f) + std::log1p(std::exp(-std::fabs(v))); });
        case RECIPROCAL: return each(x, y, n, [](float v) { return 1.0f / v; });
        case SIN: return each(x, y, n, [](float v) { return std::sin(v); });
        case COS: return each(x, y, n, [](float v) { return std::cos(v); });
        case ELU: return each(x, y, n, [](float v) { return v < 0.0f ? std::expm1(v) : v; });
    }
}

void binary(int32_t function, const float* a, const float* b, float* y, int64_t n) {
    switch (function) {
        case ADD: return pairs(a, b, y, n, [](float u, float v) { return u + v; });
        case SUB: return pairs(a, b, y, n, [](float u, float v) { return u - v; });
        case MUL: return pairs(a, b, y, n, [](float u, float v) { return u * v; });
        case DIV: return pairs(a, b, y, n, [](float u, float v) { return u / v; });
        case MAX: return pairs(a, b, y, n, larger);
        case MIN: return pairs(a, b, y, n, smaller);
    }
}

void scalar(int32_t function, const float* a, float b, float* y, int64_t n) {
    switch (function) {
        case ADD: return each(a, y, n, [b](float u) { return u + b; });
        case SUB: return each(a, y, n, [b](float u) { return u - b; });
        case MUL: return each(a, y, n, [b](float u) { return u * b; });
        case DIV: return each(a, y, n, [b](float u) { return u / b; });
        case MAX: return each(a, y, n, [b](float u) { return larger(u, b); });
        case MIN: return each(a, y, n, [b](float u) { return smaller(u, b); });
    }
}

void layer_norm(const float* x, float* y, int64_t n, const float* scale, const float* bias, float epsilon) {
    float mean = 0.0f, square = 0.0f;
    for (int64_t i = 0; i < n; ++i) mean += x[i];
    mean /= float(n);
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / std::sqrt(square / float(n) + epsilon);
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * scale[i] + (bias ? bias[i] : 0.0f);
}

void softmax(const float* x, float* y, int64_t n) {
    float most = x[0], sum = 0.0f;
    for (int64_t i = 1; i < n; ++i) most = larger(x[i], most);
    for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - most);
    for (int64_t i = 0; i < n; ++i) y[i] /= sum;
}

void product(const float* a, const float* b, float* y, int64_t m, int64_t k, int64_t n) {
    std::memset(y, 0, size_t(m * n) * sizeof(float));
    for (int64_t row = 0; row < m; ++row)
        for (int64_t i = 0; i < k; ++i)
            for (int64_t o = 0; o < n; ++o) y[row * n + o] += a[row * k + i] * b[i * n + o];
}

}  // namespace

TapeEngine::TapeEngine(const unsigned char* program, size_t size) {
    if (size < HEAD_BYTES || std::memcmp(program, "rrltape1", 8) != 0) refuse("the program is no tape");
    uint32_t checksum;
    std::memcpy(&checksum, program + 8, 4);
    if (crc32(program + 16, size - 16) != checksum) refuse("the tape is damaged");
    int64_t sizes[5];
    std::memcpy(sizes, program + 16, sizeof sizes);
    const auto [memory, constants, words, inputs, outputs] = sizes;
    for (int64_t number : sizes)
        if (number < 0 || number > MOST_FLOATS) refuse("the tape is too large");
    const size_t places = size_t(inputs + outputs) * 16, code = size_t(words) * 4;
    const size_t padded = (places + code + 7) / 8 * 8;
    if (constants > memory || size != HEAD_BYTES + padded + size_t(constants) * 4) refuse("the tape has another length");
    memory_floats_ = memory;
    constant_floats_ = constants;
    const unsigned char* at = program + HEAD_BYTES;
    for (int64_t i = 0; i < inputs + outputs; ++i, at += 16) {
        Place place;
        std::memcpy(&place, at, sizeof place);
        (i < inputs ? inputs_ : outputs_).push_back(place);
    }
    records_.resize(size_t(words));
    if (words) std::memcpy(records_.data(), at, code);
    check();
    void* block = nullptr;
    if (posix_memalign(&block, 64, size_t(memory + 16) * sizeof(float)) != 0) refuse("not enough memory");
    memory_ = static_cast<float*>(block);
    std::memcpy(memory_, program + HEAD_BYTES + padded, size_t(constants) * 4);
    std::memset(memory_ + constants, 0, size_t(memory - constants + 16) * 4);
}

TapeEngine::~TapeEngine() { std::free(memory_); }

void TapeEngine::check_range(int64_t at, int64_t count) const {
    if (at < 0 || count < 0 || at > memory_floats_ - count) refuse("a record of the tape leaves the memory");
}

void TapeEngine::check_result(int64_t at, int64_t count) const {
    check_range(at, count);
    if (at < constant_floats_) refuse("a record of the tape writes to a constant");
}

void TapeEngine::check() const {
    for (const Place& place : inputs_) check_result(place.at, place.count);
    for (const Place& place : outputs_) check_range(place.at, place.count);
    const int32_t* end = records_.data() + records_.size();
    for (const int32_t* at = records_.data(); at != end;) {
        if (end - at < 2 || at[1] < 0 || at[1] > end - at - 2) refuse("a record of the tape is cut short");
        const int32_t *v = at + 2, count = at[1];
        const auto expect = [count](int32_t wanted) {
            if (count != wanted) refuse("a record of the tape has another length");
        };
        const auto positive = [](std::initializer_list<int32_t> numbers) {
            for (int32_t number : numbers)
                if (number < 1) refuse("a record of the tape has a size below 1");
        };
        const auto in = [](int32_t number, int32_t most) {
            if (number < 1 || number > most) refuse("a record of the tape names an unknown function");
        };
        switch (at[0]) {
            case MATRIX:
                expect(7);
                positive({v[2], v[3], v[4]});
                check_range(v[0], int64_t(v[2]) * v[3]);
                check_result(v[1], int64_t(v[2]) * v[4]);
                check_range(v[5], paneled_floats(v[3], v[4]));
                if (v[6] != -1) check_range(v[6], v[4]);
                break;
            case UNARY:
                expect(4);
                in(v[0], ELU);
                check_range(v[1], v[3]);
                check_result(v[2], v[3]);
                break;
            case BINARY:
            case SCALAR:
                expect(5);
                in(v[0], MIN);
                check_range(v[1], v[4]);
                check_range(v[2], at[0] == SCALAR ? 1 : v[4]);
                check_result(v[3], v[4]);
                break;
            case COPY:
                expect(3);
                check_range(v[0], v[2]);
                check_result(v[1], v[2]);
                break;
            case GATHER:
                if (count < 2 || v[1] != count - 2) refuse("a record of the tape has another length");
                check_result(v[0], v[1]);
                for (int32_t i = 0; i < v[1]; ++i) check_range(v[2 + i], 1);
                break;
            case LAYER_NORM:
                expect(7);
                positive({v[2], v[3]});
                check_range(v[0], int64_t(v[2]) * v[3]);
                check_result(v[1], int64_t(v[2]) * v[3]);
                check_range(v[4], v[3]);
                if (v[5] != -1) check_range(v[5], v[3]);
                break;
            case SOFTMAX:
            case MEAN:
                expect(4);
                positive({v[2], v[3]});
                check_range(v[0], int64_t(v[2]) * v[3]);
                check_result(v[1], at[0] == MEAN ? v[2] : int64_t(v[2]) * v[3]);
                break;
            case PRODUCT:
                expect(7);
                positive({v[3], v[4], v[5], v[6]});
                for (int64_t size : {int64_t(v[4]) * v[5], int64_t(v[5]) * v[6], int64_t(v[4]) * v[6]})
                    if (size > MOST_FLOATS / v[3]) refuse("a record of the tape leaves the memory");
                check_range(v[0], int64_t(v[4]) * v[5] * v[3]);
                check_range(v[1], int64_t(v[5]) * v[6] * v[3]);
                check_result(v[2], int64_t(v[4]) * v[6] * v[3]);
                break;
            default: refuse("the tape holds an unknown record");
        }
        at = v + count;
    }
}

bool TapeEngine::run() {
    cancelled_.store(false, std::memory_order_relaxed);
    const int32_t* end = records_.data() + records_.size();
    for (const int32_t* at = records_.data(); at != end; at += 2 + at[1]) {
        if (cancelled_.load(std::memory_order_relaxed)) return false;
        compute(at);
    }
    return true;
}

void TapeEngine::compute(const int32_t* record) {
    const int32_t* v = record + 2;
    float* const m = memory_;
    switch (record[0]) {
        case MATRIX: return matrix(m + v[0], m + v[1], v[2], v[3], v[4], m + v[5], v[6] < 0 ? nullptr : m + v[6]);
        case UNARY: return unary(v[0], m + v[1], m + v[2], v[3]);
        case BINARY: return binary(v[0], m + v[1], m + v[2], m + v[3], v[4]);
        case SCALAR: return scalar(v[0], m + v[1], m[v[2]], m + v[3], v[4]);
        case COPY: std::memmove(m + v[1], m + v[0], size_t(v[2]) * sizeof(float)); return;
        case GATHER:
            for (int32_t i = 0; i < v[1]; ++i) m[v[0] + i] = m[v[2 + i]];
            return;
        case LAYER_NORM:
            for (int64_t row = 0; row < v[2]; ++row)
                layer_norm(m + v[0] + row * v[3], m + v[1] + row * v[3], v[3], m + v[4],
                           v[5] < 0 ? nullptr : m + v[5], from_bits(v[6]));
            return;
        case SOFTMAX:
            for (int64_t row = 0; row < v[2]; ++row) softmax(m + v[0] + row * v[3], m + v[1] + row * v[3], v[3]);
            return;
        case PRODUCT:
            for (int64_t batch = 0; batch < v[3]; ++batch)
                product(m + v[0] + batch * v[4] * v[5], m + v[1] + batch * v[5] * v[6], m + v[2] + batch * v[4] * v[6],
                        v[4], v[5], v[6]);
            return;
        case MEAN:
            for (int64_t row = 0; row < v[2]; ++row) {
                float sum = 0.0f;
                for (int64_t i = 0; i < v[3]; ++i) sum += m[v[0] + row * v[3] + i];
                m[v[1] + row] = sum / float(v[3]);
            }
            return;
    }
}

}  // namespace robotrl
