// The process that infers, without Python: a chunk for each request, as robotrl.deploy.inference.worker gives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block.hpp"
#include "graph.hpp"
#include "links.hpp"
#include "noise.hpp"

namespace robotrl {

// An input of the graph that a request fills: an observation, committed actions, or their mask.
struct RequestPort {
    int64_t input;  // of the graph
    int64_t size;
    bool committed;  // in a request only where that says so
    // of the refusal of a number that is not finite: before and behind the number; one for each element of a row
    std::vector<std::string> before, behind;
};

// Settings as one flat, checked block that Python writes (robotrl.deploy.native.inference).
struct InferenceSettings {
    InferenceSettings(const unsigned char* block, size_t size);

    int64_t handle, bytes, failure_at, failure_bytes, request_at, max_request, answer_at, max_chunk;
    std::string magic;
    int64_t introduction_at, warm_up_runs;
    std::string introduction;  // what the process tells once it is ready
    std::vector<RequestPort> ports;
    int64_t noise_input;  // of the graph; -1 for none
    bool draws;           // else the noise is zero
    NoiseKey key;
    int64_t output;                // of the graph: the actions
    std::vector<int64_t> lead_ns;  // times before a due request at which the caches are warmed
    std::unique_ptr<PolicyGraph> graph;

   private:
    void check() const;
};

class Inference {
   public:
    // Throws std::runtime_error where settings, link and tape do not fit.
    explicit Inference(InferenceSettings& settings);
    // Warms up, introduces itself, and answers requests, each announced by a byte of `bell`, until that ends.
    // Throws std::runtime_error where the graph cannot be computed.
    void serve(int bell);

   private:
    // False when nobody can ask any more.
    bool wait(int bell);
    void answer();
    // Fills the graph's inputs; the refusal in words where the request cannot be computed, else "".
    std::string take();
    void draw(uint64_t decision);

    const InferenceSettings& settings_;
    SharedMemory memory_;
    Channel requests_, answers_;
    TextSlot introduction_, failure_;
    PolicyGraph& graph_;
    Message request_, answer_;
    std::vector<int64_t> failed_;  // the last decisions that were not computed
    int64_t served_ = 0, due_ns_ = 0;
};

}  // namespace robotrl
