#include "risk.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "safety.hpp"
#include "block.hpp"

namespace robotrl {

namespace {

enum Op : int64_t { CONSTANT = 0, ADD, SUB, MUL, MAX, MIN, JOIN, MATRIX, SIGMOID };

constexpr int64_t ABSENT = -1, MOST_FLOATS = int64_t(1) << 24;

[[noreturn]] void refuse(const char* why) { throw std::runtime_error(std::string("the settings' reflex: ") + why); }

// Registers that an operation takes at least and at most.
int64_t least_of(int64_t op) { return op == SIGMOID ? 1 : 2; }
int64_t most_of(int64_t op) { return op == SIGMOID ? 1 : op == MATRIX ? 3 : 2; }

// 1 / (1 + exp(-x)) in double, by arithmetic alone: mathematical libraries differ in their last bits.
double sigmoid(double x) {
    constexpr double FURTHEST = 120.0, PER_LN2 = 1.4426950408889634;
    // ln 2 in two parts, of which the first has so few bits that its small multiples are exact
    constexpr double LN2_HIGH = 0.693147180369123816490, LN2_LOW = 1.90821492927058770002e-10;
    // Taylor series of exp, highest power first
    constexpr double TERMS[] = {1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                                1.0 / 5040.0,     1.0 / 720.0,     1.0 / 120.0,    1.0 / 24.0,
                                1.0 / 6.0,        1.0 / 2.0,       1.0,            1.0};
    if (std::isnan(x)) return x;
    x = std::min(std::max(-x, -FURTHEST), FURTHEST);
    const double doublings = std::nearbyint(x * PER_LN2);
    const double rest = (x - doublings * LN2_HIGH) - doublings * LN2_LOW;
    double power = 0.0;
    for (double term : TERMS) power = power * rest + term;
    return 1.0 / (1.0 + std::ldexp(power, int(doublings)));
}

template <class F>
void pairs(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& out, F function) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = function(a[i], b[i]);
}

}  // namespace

RiskGraph::RiskGraph(BlockReader& block, int64_t measured, int64_t actions) {
    rows_.emplace_back(size_t(measured));
    rows_.emplace_back(size_t(actions));
    for (int64_t left = block.whole(); left > 0; --left) {
        const int64_t op = block.whole();
        if (op == CONSTANT)
            rows_.push_back(block.floats());
        else
            read_step(block, op);
    }
    result_ = block.whole();
    if (result_ < 0 || result_ >= int64_t(rows_.size()) || width(result_) != 1) refuse("a risk that is not one number");
}

void RiskGraph::read_step(BlockReader& block, int64_t op) {
    if (op < ADD || op > SIGMOID) refuse("an unknown operation");
    Step step{op, int64_t(rows_.size()), {block.whole(), block.whole(), block.whole()}};
    for (int64_t i = 0; i < 3; ++i) {
        const int64_t row = step.of[i];
        const bool absent = row == ABSENT && i >= least_of(op);
        if (!absent && (i >= most_of(op) || row < 0 || row >= step.result)) refuse("a register that is not known yet");
    }
    const int64_t a = width(step.of[0]), b = op == SIGMOID ? 0 : width(step.of[1]);
    int64_t found = a;
    if (op == JOIN) {
        found = a + b;
    } else if (op == MATRIX) {
        if (a == 0 || b % a != 0) refuse("weights of another length");
        found = b / a;
        if (step.of[2] != ABSENT && width(step.of[2]) != found) refuse("a bias of another length");
        products_.resize(std::max(products_.size(), size_t(b)));
    } else if (op != SIGMOID && a != b) {
        refuse("registers of several lengths");
    }
    if (found > MOST_FLOATS) refuse("a register that is too long");
    rows_.emplace_back(size_t(found));
    steps_.push_back(step);
}

float RiskGraph::risk() {
    for (const Step& step : steps_) run(step);
    return rows_[size_t(result_)][0];
}

void RiskGraph::run(const Step& step) {
    const std::vector<float>& a = rows_[size_t(step.of[0])];
    const std::vector<float>& b = rows_[size_t(step.op == SIGMOID ? step.of[0] : step.of[1])];
    std::vector<float>& out = rows_[size_t(step.result)];
    switch (step.op) {
        case ADD: return pairs(a, b, out, [](float u, float v) { return u + v; });
        case SUB: return pairs(a, b, out, [](float u, float v) { return u - v; });
        case MUL: return pairs(a, b, out, [](float u, float v) { return u * v; });
        case MAX: return pairs(a, b, out, larger_of);
        case MIN: return pairs(a, b, out, smaller_of);
        case JOIN: std::copy(b.begin(), b.end(), std::copy(a.begin(), a.end(), out.begin())); return;
        case SIGMOID: return pairs(a, a, out, [](float u, float) { return float(sigmoid(double(u))); });
        case MATRIX:
            return product(a.data(), int64_t(a.size()), b.data(),
                           step.of[2] == ABSENT ? nullptr : rows_[size_t(step.of[2])].data(), out.data(),
                           int64_t(out.size()));
    }
}

// The sum over the inputs is taken by halves: the second half of the products is added to the first, until one is left.
void RiskGraph::product(const float* x, int64_t inputs, const float* weights, const float* bias, float* out,
                        int64_t outputs) {
    float* const found = products_.data();
    for (int64_t i = 0; i < inputs; ++i)
        for (int64_t o = 0; o < outputs; ++o) found[i * outputs + o] = weights[i * outputs + o] * x[i];
    for (int64_t count = inputs; count > 1;) {
        const int64_t half = (count + 1) / 2;
        const float* const further = found + half * outputs;
        for (int64_t i = 0; i < (count - half) * outputs; ++i) found[i] += further[i];
        count = half;
    }
    for (int64_t o = 0; o < outputs; ++o) out[o] = bias ? found[o] + bias[o] : found[o];
}

RiskGuard::RiskGuard(BlockReader& block, int64_t observation_size, int64_t actions)
    : threshold_(block.number()),
      recovery_(block.floats()),
      places_(block.wholes()),
      graph_(block, int64_t(places_.size()), int64_t(recovery_.size())) {
    if (!(threshold_ >= 0.0 && threshold_ <= 1.0)) refuse("a threshold beyond 0 to 1");
    if (int64_t(recovery_.size()) != actions) refuse("a recovery of another length");
    for (int64_t place : places_)
        if (place < 0 || place >= observation_size) refuse("an observation element beyond the last");
}

const float* RiskGuard::recovery(const float* observation, const float* action) {
    if (!all_finite(action, int64_t(recovery_.size()))) return nullptr;
    for (size_t i = 0; i < places_.size(); ++i) graph_.measured()[i] = observation[places_[i]];
    std::copy(action, action + recovery_.size(), graph_.action());
    // a risk that is no number is not below the threshold
    last_risk_ = graph_.risk();
    return double(last_risk_) <= threshold_ ? nullptr : recovery_.data();
}

}  // namespace robotrl
