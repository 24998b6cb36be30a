// A policy network that can be computed: by the engine's tape, or by onnxruntime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace robotrl {

// Fill the inputs, run, read the outputs; all are float32 and stay where they are.
class PolicyGraph {
   public:
    virtual ~PolicyGraph() = default;
    virtual size_t inputs() const = 0;
    virtual size_t outputs() const = 0;
    virtual int64_t input_floats(size_t i) const = 0;
    virtual int64_t output_floats(size_t i) const = 0;
    virtual float* input(size_t i) = 0;
    virtual const float* output(size_t i) const = 0;
    // False where it cannot be computed for these inputs, or was cancelled.
    virtual bool run() = 0;
    // Reason of the last `run` that returned false.
    virtual std::string why() const = 0;
};

}  // namespace robotrl
