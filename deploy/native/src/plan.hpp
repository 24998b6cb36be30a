// Times of a chunk's actions, and the latency of inferences: robotrl.deploy.servo.plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace robotrl {

struct Chunk {
    bool present = false;
    int64_t decision = -1, stamp_ns = 0, zero_tick = 0;
    int64_t delay = 0;  // control ticks from the observation to the first action: the committed actions it was given
    std::vector<float> actions;  // (H, A), flat
};

class ChunkPlan {
   public:
    // `overlaps`: what a chunk plans guides the next one, which is asked for once `execute` actions are executed.
    ChunkPlan(int64_t length, int64_t execute, int64_t width, bool overlaps)
        : length(length), execute(execute), width(width), overlaps(overlaps) {}
    void drop() { chunk.present = false; }
    void start(const Chunk& next) { chunk = next; }
    // Index of a tick's action in the chunk; -1 where there is none.
    int64_t index(int64_t tick) const {
        const int64_t at = tick - chunk.zero_tick;
        return chunk.present && 0 <= at && at < length ? at : -1;
    }
    bool wants(int64_t tick, int64_t lead) const { return !chunk.present || tick - chunk.zero_tick >= asked_at(lead); }
    // Control tick at which the next chunk will be asked for, after one of that `delay`.
    int64_t due(int64_t tick, int64_t lead, int64_t delay) const {
        return tick + std::max<int64_t>(1, delay + asked_at(lead));
    }
    const float* action(int64_t index) const { return chunk.actions.data() + index * width; }

    const int64_t length, execute, width;
    const bool overlaps;
    Chunk chunk;
    int64_t expired = 0;

   private:
    int64_t asked_at(int64_t lead) const { return overlaps ? execute : execute - lead; }
};

// Sliding estimate of the time from a request to its chunk.
class Latency {
   public:
    explicit Latency(double first_s) : first_ns_(first_s * 1e9) {}
    void add(int64_t measured_ns);
    double p95_ns() const;

   private:
    static constexpr int REMEMBERED = 64;
    double first_ns_;
    int64_t measured_[REMEMBERED] = {};
    int64_t count_ = 0;
};

// Control ticks by which a chunk is asked for ahead of its need.
int64_t lead_ticks(double latency_ns, int64_t period_ns, int64_t most);

}  // namespace robotrl
