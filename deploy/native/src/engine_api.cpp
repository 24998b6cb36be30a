// C interface of the engine, for ctypes. Inputs and outputs are the caller's arrays, bound once.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "noise.hpp"
#include "tape.hpp"

namespace {

struct BoundEngine {
    robotrl::TapeEngine engine;
    std::vector<const float*> inputs;
    std::vector<float*> outputs;

    BoundEngine(const unsigned char* program, size_t size)
        : engine(program, size), inputs(engine.inputs()), outputs(engine.outputs()) {}
};

}  // namespace

extern "C" {

// Opens a tape; null where it is refused, with the reason in `why`.
void* engine_open(const unsigned char* program, size_t size, char* why, size_t room) {
    try {
        return new BoundEngine(program, size);
    } catch (const std::exception& error) {
        std::snprintf(why, room, "%s", error.what());
        return nullptr;
    }
}

void engine_close(void* handle) { delete static_cast<BoundEngine*>(handle); }

// Binds the caller's array of `count` floats to input (or output) `i`; 0 where that is its size.
int engine_bind(void* handle, int output, size_t i, float* array, int64_t count) {
    auto* bound = static_cast<BoundEngine*>(handle);
    if (i >= (output ? bound->outputs.size() : bound->inputs.size())) return 1;
    if (count != (output ? bound->engine.output_floats(i) : bound->engine.input_floats(i))) return 2;
    if (output)
        bound->outputs[i] = array;
    else
        bound->inputs[i] = array;
    return 0;
}

// Computes the bound outputs of the bound inputs; nanoseconds, -1 where it was cancelled.
int64_t engine_run(void* handle) {
    auto* bound = static_cast<BoundEngine*>(handle);
    const auto begun = std::chrono::steady_clock::now();
    for (size_t i = 0; i < bound->inputs.size(); ++i)
        std::memcpy(bound->engine.input(i), bound->inputs[i], size_t(bound->engine.input_floats(i)) * sizeof(float));
    if (!bound->engine.run()) return -1;
    for (size_t i = 0; i < bound->outputs.size(); ++i)
        std::memcpy(bound->outputs[i], bound->engine.output(i), size_t(bound->engine.output_floats(i)) * sizeof(float));
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begun).count();
}

void engine_cancel(void* handle) { static_cast<BoundEngine*>(handle)->engine.cancel(); }

// Writes the noise of one decision; see counter_noise.
void engine_noise(uint64_t key_low, uint64_t key_high, uint64_t decision, float* out, int64_t count) {
    robotrl::counter_noise({key_low, key_high}, decision, out, count);
}

}  // extern "C"
