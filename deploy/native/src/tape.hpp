// The engine's program: checked once, then run without a library, an allocation or a branch on data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph.hpp"

namespace robotrl {

// A policy network as a tape (see tape.py).
class TapeEngine : public PolicyGraph {
   public:
    // Throws std::runtime_error where the program is damaged, or a record leaves the memory.
    TapeEngine(const unsigned char* program, size_t size);
    ~TapeEngine() override;
    TapeEngine(const TapeEngine&) = delete;
    TapeEngine& operator=(const TapeEngine&) = delete;

    size_t inputs() const override { return inputs_.size(); }
    size_t outputs() const override { return outputs_.size(); }
    int64_t input_floats(size_t i) const override { return inputs_[i].count; }
    int64_t output_floats(size_t i) const override { return outputs_[i].count; }
    float* input(size_t i) override { return memory_ + inputs_[i].at; }
    const float* output(size_t i) const override { return memory_ + outputs_[i].at; }
    bool run() override;
    std::string why() const override { return "the native engine was cancelled"; }
    // Ends a run of another thread after its current record.
    void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

   private:
    struct Place {
        int64_t at, count;
    };
    void check() const;
    void check_range(int64_t at, int64_t count) const;
    void check_result(int64_t at, int64_t count) const;
    void compute(const int32_t* record);

    int64_t memory_floats_ = 0, constant_floats_ = 0;
    float* memory_ = nullptr;
    std::vector<Place> inputs_, outputs_;
    std::vector<int32_t> records_;
    std::atomic<bool> cancelled_{false};
};

}  // namespace robotrl
