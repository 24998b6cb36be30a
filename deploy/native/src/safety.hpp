// The safety chain between a policy and a robot: robotrl.deploy.control.safety, bit for bit.
//
// Compiled without fused arithmetic and never with -ffast-math, which removes the tests for NaN.
#pragma once

#include <cstdint>
#include <vector>

namespace robotrl {

enum Mode : int64_t { ACTIVE = 0, HOLD = 1, DAMP = 2 };

enum Reason : int64_t {
    NONE = 0,
    OBS_NOT_FINITE = 1,
    OBS_STALE = 2,
    OBS_IMPLAUSIBLE = 4,
    ACTION_MISSING = 8,
    ACTION_NOT_FINITE = 16,
    CLAMPED = 32,
    RAMPED = 64,
    RATE_LIMITED = 128,
    DAMPED = 256,
    OBS_TIME = 512,
    OBS_FROZEN = 1024,
    INFERENCE_FAILED = 2048,
    ACTION_LATE = 4096,
    STOPPED = 8192,
    REFLEX = 16384,
    OBS_MISFIT = 32768,
    OBS_REFUSED = 65536,
    STARTING = 131072,
};
constexpr int REASONS = 18;
constexpr int64_t BAD = OBS_NOT_FINITE | OBS_STALE | OBS_IMPLAUSIBLE | OBS_TIME | OBS_FROZEN | OBS_MISFIT |
                        OBS_REFUSED | ACTION_MISSING | ACTION_NOT_FINITE | INFERENCE_FAILED | ACTION_LATE | STOPPED;

struct SafetyLimits {
    std::vector<float> low, high, neutral;
    std::vector<float> max_step;  // empty for none
    bool hold_last = false;
    bool chooses = false;
    int64_t bad_ticks_to_damp = 1, ramp_ticks = 0;
    double max_observation_age_s = 0.0;
    // Blend-in and rate limit start from the neutral action; else from where the robot stands: where each action element
    // is measured, in the numbers of all observations, and the number of its units in one of the action's. -1: not
    // measured, they start from the first action.
    bool from_neutral = true;
    std::vector<int64_t> measured_at;
    std::vector<float> measured_factor;
};

// Plausible range of an observation; empty for no limit.
struct PlausibleRange {
    std::vector<float> low, high;
};

// Maximum and minimum as numpy's on x86: NaN of either side stays, and of two equal ones the second is taken.
inline float larger_of(float a, float b) { return a > b || a != a ? a : b; }
inline float smaller_of(float a, float b) { return a < b || a != a ? a : b; }

bool all_finite(const float* values, int64_t count);

// Tells whether a number lies beyond a plausible range.
bool implausible(const PlausibleRange& range, const float* values, int64_t count);

struct Verdict {
    int64_t mode = HOLD, reason = NONE;
};

// Ticks in total, by mode and by reason.
struct SafetyCounts {
    int64_t ticks = 0, modes[3] = {}, reasons[REASONS] = {};
};

// State and counters of the chain; `decide` is one control tick.
class SafetyChain {
   public:
    explicit SafetyChain(const SafetyLimits& limits);
    // Starts an episode: releases a latched DAMP. The counters continue.
    void reset();
    // Starts from where the robot stands, as good observations tell, unless that is known.
    void place(const float* numbers);
    // One tick: `action` of `count` floats, or null; `recovery` is the reflex's action, which takes the place of a good
    // one, or null. The action to send is `sent` afterwards.
    Verdict decide(int64_t observed, const float* action, int64_t count, const float* recovery);
    // Verdict of a servo tick between two control ticks, which is not counted: limited from the last control tick and
    // from what was sent since. The action to send is `sent` afterwards.
    Verdict between(const float* action, int64_t count, const float* recovery) {
        const Verdict verdict = judge(NONE, action, count, recovery);
        if (verdict.mode == ACTIVE) sent_ = wanted_;
        return verdict;
    }

    // Lets the policy take over a robot that was moved to its start.
    void hand_over() {
        origin_ = sent_;
        good_ticks_ = 0;
    }

    // The last action sent, also between two control ticks; and that of the last control tick.
    const std::vector<float>& sent() const { return sent_; }
    const std::vector<float>& last() const { return last_; }
    // The action of the last verdict.
    const std::vector<float>& wanted() const { return wanted_; }
    // What was sent before it, from which a robot that interpolates goes on; where the robot stands at first.
    const std::vector<float>& before() const { return before_; }
    const SafetyCounts& counts() const { return counts_; }
    // Those of the ticks of a motion to a start pose, which are none of the others.
    const SafetyCounts& start_counts() const { return start_counts_; }

   private:
    bool is_choice(const float* action) const;
    // Finds mode, reason and `wanted_`, and changes no state.
    Verdict judge(int64_t observed, const float* action, int64_t count, const float* recovery);
    Verdict hold(int64_t reason);
    int64_t limit(const float* action);

    const SafetyLimits limits_;
    std::vector<float> last_, sent_, origin_, wanted_, near_, before_;
    std::vector<char> known_;  // elements whose last action and origin are known
    int64_t good_ticks_ = 0, bad_ticks_ = 0;
    bool damped_ = false;
    SafetyCounts counts_, start_counts_;
};

// Tells whether an action may still be sent.
inline bool in_time(const SafetyLimits& limits, double age_s, int64_t periods, double control_period_s) {
    return age_s - double(periods) * control_period_s <= limits.max_observation_age_s;
}

}  // namespace robotrl
