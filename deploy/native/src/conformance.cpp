// C interface of the servo's parts, for tests and benches that compare them with Python's: the safety chain tick by tick,
// and the whole servo on a simulated clock.

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

#include "checks.hpp"
#include "risk.hpp"
#include "servo.hpp"
#include "settings.hpp"

namespace {

using namespace robotrl;

// A chain with the checks of observations before it.
struct WholeChain {
    SafetyLimits limits;
    std::vector<NumberPort> ports;
    std::vector<WatchedInput> watched;
    std::unique_ptr<SafetyChain> chain;
    std::unique_ptr<ObservationCheck> check;
    std::vector<CameraFrame> frames;

    WholeChain(const unsigned char* bytes, size_t size) {
        BlockReader block(bytes, size);
        limits = read_limits(block);
        for (int64_t left = block.whole(); left > 0; --left) {
            NumberPort port;
            port.places.resize(size_t(block.whole()));
            port.plausible.low = block.floats();
            port.plausible.high = block.floats();
            ports.push_back(port);
        }
        frames.resize(size_t(block.whole()));
        for (int64_t left = block.whole(); left > 0; --left) {
            WatchedInput input{};
            input.camera = block.whole() != 0;
            input.index = block.whole();
            input.max_still_s = block.number();
            watched.push_back(input);
        }
        block.end();
        chain = std::make_unique<SafetyChain>(limits);
        check = std::make_unique<ObservationCheck>(limits, ports, watched);
    }
};

// A clock that another language keeps: it learns until when the servo sleeps, and says when it wakes;
// a time below 0 ends the run.
class ToldClock : public Clock {
   public:
    ToldClock(int64_t now_ns, int64_t (*sleep)(int64_t)) : now_ns_(now_ns), sleep_(sleep) {}
    int64_t now_ns() override { return now_ns_; }
    void sleep_until(int64_t deadline_ns) override {
        now_ns_ = sleep_(deadline_ns);
        if (now_ns_ < 0) throw std::runtime_error("the clock stopped");
    }

   private:
    int64_t now_ns_;
    int64_t (*sleep_)(int64_t);
};

int64_t told(const Verdict& verdict, const std::vector<float>& action, float* sent, int64_t* reason) {
    for (size_t i = 0; i < action.size(); ++i) sent[i] = action[i];
    *reason = verdict.reason;
    return verdict.mode;
}

int64_t parent_of_test = 0;
int64_t told_parent() { return parent_of_test; }

}  // namespace

extern "C" {

void* chain_open(const unsigned char* block, size_t size, char* why, size_t room) {
    try {
        return new WholeChain(block, size);
    } catch (const std::exception& error) {
        std::snprintf(why, room, "%s", error.what());
        return nullptr;
    }
}

void chain_close(void* handle) { delete static_cast<WholeChain*>(handle); }

void chain_reset(void* handle) {
    auto* whole = static_cast<WholeChain*>(handle);
    whole->chain->reset();
    whole->check->reset();
}

// Reason to refuse an observation; `frozen` is the index of a frozen input, or -1.
int64_t chain_check(void* handle, const float* numbers, const int64_t* checksums, double age_s, double now_s,
                    int64_t* frozen) {
    auto* whole = static_cast<WholeChain*>(handle);
    for (size_t i = 0; i < whole->frames.size(); ++i) whole->frames[i].checksum = checksums[i];
    const int64_t reason = whole->check->check(numbers, whole->frames, age_s, now_s, whole->chain->last());
    if (reason == NONE) whole->chain->place(numbers);
    *frozen = whole->check->frozen();
    return reason;
}

// One control tick; `count` is -1 for no action, `recovery` null for none. The action to send is written to `sent`, the
// mode returned, the reason stored.
int64_t chain_decide(void* handle, int64_t observed, const float* action, int64_t count, const float* recovery,
                     float* sent, int64_t* reason) {
    auto* whole = static_cast<WholeChain*>(handle);
    const Verdict verdict = whole->chain->decide(observed, count < 0 ? nullptr : action, count, recovery);
    return told(verdict, whole->chain->sent(), sent, reason);
}

// The same for a servo tick between two control ticks.
int64_t chain_between(void* handle, const float* action, int64_t count, const float* recovery, float* sent,
                      int64_t* reason) {
    auto* whole = static_cast<WholeChain*>(handle);
    const Verdict verdict = whole->chain->between(action, count, recovery);
    return told(verdict, whole->chain->wanted(), sent, reason);
}

// Number of ticks (0), of those in mode 0 to 2 (1 to 3), and by bit of the reason (4 and on).
int64_t chain_counter(void* handle, int which) {
    const SafetyCounts& counts = static_cast<WholeChain*>(handle)->chain->counts();
    return which == 0 ? counts.ticks : which < 4 ? counts.modes[which - 1] : counts.reasons[which - 4];
}

// Opens a reflex; null where it is refused, with the reason in `why`.
void* guard_open(const unsigned char* bytes, size_t size, int64_t actions, char* why, size_t room) {
    try {
        BlockReader block(bytes, size);
        const int64_t observation_size = block.whole();
        if (block.whole() == 0) throw std::runtime_error("the settings hold no reflex");
        auto guard = std::make_unique<RiskGuard>(block, observation_size, actions);
        block.end();
        return guard.release();
    } catch (const std::exception& error) {
        std::snprintf(why, room, "%s", error.what());
        return nullptr;
    }
}

void guard_close(void* handle) { delete static_cast<RiskGuard*>(handle); }

// 1 where the recovery takes the action's place, else 0; the risk of the last action that was finite is stored.
int64_t guard_recovers(void* handle, const float* observation, const float* action, float* risk) {
    auto* guard = static_cast<RiskGuard*>(handle);
    const bool recovers = guard->recovery(observation, action) != nullptr;
    *risk = guard->last_risk();
    return recovers;
}

// Nanoseconds of an evaluation, the mean of `count`.
double guard_time_ns(void* handle, const float* observation, const float* action, int64_t count) {
    auto* guard = static_cast<RiskGuard*>(handle);
    const auto begun = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) guard->recovery(observation, action);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begun;
    return spent.count() / double(count);
}

// Runs a servo on a simulated clock until it is ordered to end; 0, or 1 with the reason in `why`.
int servo_run(const unsigned char* block, size_t size, int64_t now_ns, int64_t parent, int64_t (*sleep)(int64_t),
              char* why, size_t room) {
    try {
        parent_of_test = parent;
        const Settings settings(block, size);
        ToldClock clock(now_ns, sleep);
        Servo servo(settings, clock, told_parent);
        servo.introduce("simulated");
        servo.run();
        return 0;
    } catch (const std::exception& error) {
        std::snprintf(why, room, "%s", error.what());
        return 1;
    }
}

}  // extern "C"
