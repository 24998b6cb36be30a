// Reflex of the servo: robotrl.deploy.servo.reflex and .bundle.risk_graph, bit for bit.
//
// A risk graph is a list of registers, each a row of floats: the measurements, the action, and then constants and results
// of registers before them. Compiled without fused arithmetic; sums are taken by halves, as numpy takes them there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace robotrl {

class BlockReader;

// The graph. Its numbers are checked when it is read, and its memory is taken then.
class RiskGraph {
   public:
    // Throws std::runtime_error where the registers do not fit one another.
    RiskGraph(BlockReader& block, int64_t measured, int64_t actions);
    // Rows to be filled before `risk`.
    float* measured() { return rows_[0].data(); }
    float* action() { return rows_[1].data(); }
    // Risk of the action where that is measured, 0 to 1; NaN where a number is NaN.
    float risk();

   private:
    struct Step {
        int64_t op, result, of[3];
    };
    void read_step(BlockReader& block, int64_t op);
    int64_t width(int64_t row) const { return int64_t(rows_[size_t(row)].size()); }
    void run(const Step& step);
    void product(const float* x, int64_t inputs, const float* weights, const float* bias, float* out, int64_t outputs);

    std::vector<std::vector<float>> rows_;
    std::vector<Step> steps_;
    std::vector<float> products_;
    int64_t result_ = 0;
};

// The reflex of a bundle.
class RiskGuard {
   public:
    // Throws std::runtime_error where the settings of the reflex are none.
    RiskGuard(BlockReader& block, int64_t observation_size, int64_t actions);
    // The recovery action where an action is risky or its risk no number; null where it may be sent, and where it is not
    // finite, which is left to the safety chain. `observation` is the robot's, whole.
    const float* recovery(const float* observation, const float* action);
    // Risk of the last action that was judged.
    float last_risk() const { return last_risk_; }

   private:
    double threshold_;
    std::vector<float> recovery_;
    std::vector<int64_t> places_;  // of the graph's measurements in the robot's flat observation
    RiskGraph graph_;
    float last_risk_ = 0.0f;
};

}  // namespace robotrl
