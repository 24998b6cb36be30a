// Settings of the servo, as one flat, checked block that Python writes (robotrl.deploy.native.settings).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "block.hpp"
#include "risk.hpp"
#include "safety.hpp"

namespace robotrl {

struct NumberPort {
    std::vector<int64_t> places;  // indices into the robot's flat observation
    PlausibleRange plausible;
    std::vector<float> start_low, start_high;  // start envelope of each element of a row; empty for none
    int64_t last_word = -1;  // highest word number of an instruction; -1 for none
    bool first_is_none = false;
    int64_t row = 1;  // length of the last axis
    int64_t stack = 1;  // control ticks that the policy is given
};

struct CameraPlace {
    int64_t offset, slot_bytes, slots;
};

// An input of committed actions, or of the mask that says how many there are.
struct PrefixPort {
    bool mask;
    int64_t size;
};

struct WatchedInput {
    bool camera;
    int64_t index;  // of the number port, or of the camera
    double max_still_s;
};

SafetyLimits read_limits(BlockReader& block);

struct Settings {
    Settings(const unsigned char* block, size_t size);

    // links
    int64_t servo_handle, servo_bytes, introduction_at, summary_at, text_bytes, order_at, ring_at, slot_bytes, slots;
    int64_t max_values;
    int64_t robot_handle, robot_bytes, command_at, max_action, observation_at, max_observation;
    int64_t inference_handle, inference_bytes, failure_at, failure_bytes, request_at, max_request, answer_at, max_chunk;
    int64_t doorbell;
    std::string servo_magic, robot_magic, inference_magic;
    // time
    int64_t period_ns, steps, max_ticks, max_age_ns, chunk_length, execute, least_lead, most_lead;
    int64_t most_planned;  // actions of the last chunk that the policy takes at most
    int64_t reset_timeout_ns, supervisor_timeout_ns, idle_timeout_ns, most_lateness;
    double control_period_s, inference_s;
    bool linear, mean;  // commands between two control ticks: on the way to the action; once, the mean of that way
    bool dry_run, wake_early, fifo, accept_start;
    bool trained, guided;  // how a chunk continues the one before it
    // robot and bundle
    int64_t observation_size;
    std::vector<int64_t> action;  // index into the bundle's action for each element of the robot's
    std::vector<NumberPort> ports;
    std::vector<CameraPlace> cameras;
    std::vector<PrefixPort> prefix;
    // guided: weights of the planned actions, for each number of committed ones (row) and of known ones
    std::vector<float> overlap;
    std::vector<WatchedInput> watched;
    SafetyLimits limits;
    std::optional<RiskGuard> guard;  // the bundle's reflex
    // Motion to the start pose, empty where the driver moves the robot: largest change of a command in a control
    // period, distance within which the measured position must lie.
    std::vector<float> start_pose, start_step, start_tolerance;
    int64_t max_start_ticks;
    std::vector<std::string> reasons;  // name of each bit

   private:
    void check() const;
};

}  // namespace robotrl
