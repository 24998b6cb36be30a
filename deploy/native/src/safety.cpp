#include "safety.hpp"

#include <cmath>

namespace robotrl {

bool all_finite(const float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (!std::isfinite(values[i])) return false;
    return true;
}

bool implausible(const PlausibleRange& range, const float* values, int64_t count) {
    if (range.low.empty()) return false;
    for (int64_t i = 0; i < count; ++i)
        if (values[i] < range.low[size_t(i)] || values[i] > range.high[size_t(i)]) return true;
    return false;
}

SafetyChain::SafetyChain(const SafetyLimits& limits)
    : limits_(limits),
      last_(limits.neutral),
      sent_(limits.neutral),
      origin_(limits.neutral),
      wanted_(limits.neutral.size()),
      near_(limits.neutral.size()),
      before_(limits.neutral),
      known_(limits.neutral.size(), limits.from_neutral) {}

void SafetyChain::reset() {
    last_ = sent_ = origin_ = limits_.neutral;
    known_.assign(known_.size(), limits_.from_neutral);
    good_ticks_ = bad_ticks_ = 0;
    damped_ = false;
}

void SafetyChain::place(const float* numbers) {
    for (size_t i = 0; i < limits_.measured_at.size(); ++i) {
        if (known_[i] || limits_.measured_at[i] < 0) continue;
        const float found = numbers[limits_.measured_at[i]] / limits_.measured_factor[i];
        last_[i] = sent_[i] = origin_[i] = smaller_of(larger_of(found, limits_.low[i]), limits_.high[i]);
        known_[i] = true;
    }
}

bool SafetyChain::is_choice(const float* action) const {
    for (size_t i = 0; i < limits_.low.size(); ++i)
        if (action[i] != std::rint(action[i]) || !(action[i] >= limits_.low[i] && action[i] <= limits_.high[i]))
            return false;
    return true;
}

Verdict SafetyChain::judge(int64_t observed, const float* action, int64_t count, const float* recovery) {
    int64_t reason = observed;
    if (!(reason & BAD)) {
        if (action == nullptr || size_t(count) != limits_.low.size())
            reason |= ACTION_MISSING;
        else if (!all_finite(action, count))
            reason |= ACTION_NOT_FINITE;
        else if (limits_.chooses && !is_choice(action))
            reason |= ACTION_MISSING;  // rounding would select another choice
    }
    if (damped_ || reason & BAD || action == nullptr) return hold(reason);
    if (recovery != nullptr) reason |= REFLEX;
    return {ACTIVE, reason | limit(recovery != nullptr ? recovery : action)};
}

// Clamps, blends in and limits the step; returns what it did.
int64_t SafetyChain::limit(const float* action) {
    const size_t width = limits_.low.size();
    int64_t reason = NONE;
    bool clamped = false, near = false;
    for (size_t i = 0; i < width; ++i) {
        wanted_[i] = smaller_of(larger_of(action[i], limits_.low[i]), limits_.high[i]);
        clamped |= wanted_[i] != action[i];
    }
    if (clamped) reason |= CLAMPED;
    for (size_t i = 0; i < width; ++i) {
        if (known_[i]) continue;
        last_[i] = sent_[i] = origin_[i] = wanted_[i];
        known_[i] = true;
    }
    before_ = sent_;
    if (good_ticks_ < limits_.ramp_ticks) {
        const float part = float(double(good_ticks_ + 1) / double(limits_.ramp_ticks + 1));
        for (size_t i = 0; i < width; ++i) {
            const float blended = origin_[i] + part * (wanted_[i] - origin_[i]);
            // again, against rounding errors of the blend
            wanted_[i] = smaller_of(larger_of(blended, limits_.low[i]), limits_.high[i]);
        }
        reason |= RAMPED;
    }
    if (!limits_.max_step.empty()) {
        for (size_t i = 0; i < width; ++i) {
            near_[i] = wanted_[i];
            for (const float before : {last_[i], sent_[i]}) {
                const float lowest = before - limits_.max_step[i], highest = before + limits_.max_step[i];
                near_[i] = smaller_of(larger_of(near_[i], lowest), highest);
            }
            near |= near_[i] != wanted_[i];
        }
        // only then: a limit that changes nothing may still change the sign of a zero
        if (near) {
            reason |= RATE_LIMITED;
            wanted_.swap(near_);
        }
    }
    return reason;
}

Verdict SafetyChain::hold(int64_t reason) {
    const bool damped = damped_ || bad_ticks_ + 1 >= limits_.bad_ticks_to_damp || reason & STOPPED;
    // repeating a delta, velocity or torque would continue the motion; only position targets can be repeated
    wanted_ = before_ = sent_;
    if (!limits_.hold_last) wanted_ = limits_.neutral;
    if (damped) reason |= DAMPED;
    return {damped ? DAMP : HOLD, reason};
}

Verdict SafetyChain::decide(int64_t observed, const float* action, int64_t count, const float* recovery) {
    const Verdict verdict = judge(observed, action, count, recovery);
    last_ = sent_ = wanted_;
    if (verdict.mode == ACTIVE) {
        ++good_ticks_;
        bad_ticks_ = 0;
    } else {
        ++bad_ticks_;
        damped_ = verdict.mode == DAMP;
    }
    SafetyCounts& counts = verdict.reason & STARTING ? start_counts_ : counts_;
    ++counts.ticks;
    ++counts.modes[verdict.mode];
    for (int bit = 0; bit < REASONS; ++bit) counts.reasons[bit] += verdict.reason >> bit & 1;
    return verdict;
}

}  // namespace robotrl
