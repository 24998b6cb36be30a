#include "settings.hpp"

#include <stdexcept>

namespace robotrl {

SafetyLimits read_limits(BlockReader& block) {
    SafetyLimits limits;
    limits.low = block.floats();
    limits.high = block.floats();
    limits.neutral = block.floats();
    limits.max_step = block.floats();
    limits.hold_last = block.whole() != 0;
    limits.chooses = block.whole() != 0;
    limits.bad_ticks_to_damp = block.whole();
    limits.ramp_ticks = block.whole();
    limits.max_observation_age_s = block.number();
    const size_t width = limits.low.size();
    if (limits.high.size() != width || limits.neutral.size() != width ||
        (!limits.max_step.empty() && limits.max_step.size() != width))
        throw std::runtime_error("the settings' limits have several lengths");
    limits.from_neutral = block.whole() == 0;
    limits.measured_at = block.wholes();
    limits.measured_factor = block.floats();
    if (limits.measured_at.size() != limits.measured_factor.size() ||
        (!limits.measured_at.empty() && limits.measured_at.size() != width))
        throw std::runtime_error("the settings' measured positions have several lengths");
    return limits;
}

Settings::Settings(const unsigned char* bytes, size_t size) {
    BlockReader block(bytes, size);
    for (int64_t* number :
         {&servo_handle, &servo_bytes, &introduction_at, &summary_at, &text_bytes, &order_at, &ring_at, &slot_bytes,
          &slots, &max_values, &robot_handle, &robot_bytes, &command_at, &max_action, &observation_at, &max_observation,
          &inference_handle, &inference_bytes, &failure_at, &failure_bytes, &request_at, &max_request, &answer_at,
          &max_chunk, &doorbell, &period_ns, &steps, &max_ticks, &max_age_ns, &chunk_length, &execute, &least_lead, &most_lead,
          &most_planned,
          &reset_timeout_ns, &supervisor_timeout_ns, &idle_timeout_ns, &most_lateness, &observation_size})
        *number = block.whole();
    servo_magic = block.text();
    robot_magic = block.text();
    inference_magic = block.text();
    control_period_s = block.number();
    inference_s = block.number();
    for (bool* flag : {&linear, &mean, &dry_run, &wake_early, &fifo, &accept_start, &trained, &guided}) *flag = block.whole() != 0;
    action = block.wholes();
    for (int64_t left = block.whole(); left > 0; --left) {
        NumberPort port;
        port.places = block.wholes();
        port.plausible.low = block.floats();
        port.plausible.high = block.floats();
        port.last_word = block.whole();
        port.first_is_none = block.whole() != 0;
        port.row = block.whole();
        port.stack = block.whole();
        port.start_low = block.floats();
        port.start_high = block.floats();
        ports.push_back(port);
    }
    for (int64_t left = block.whole(); left > 0; --left) {
        CameraPlace camera{};
        camera.offset = block.whole();
        camera.slot_bytes = block.whole();
        camera.slots = block.whole();
        cameras.push_back(camera);
    }
    for (int64_t left = block.whole(); left > 0; --left) {
        const bool mask = block.whole() != 0;
        prefix.push_back({mask, block.whole()});
    }
    overlap = block.floats();
    for (int64_t left = block.whole(); left > 0; --left) {
        WatchedInput input{};
        input.camera = block.whole() != 0;
        input.index = block.whole();
        input.max_still_s = block.number();
        watched.push_back(input);
    }
    limits = read_limits(block);
    if (block.whole() != 0) guard.emplace(block, observation_size, int64_t(limits.low.size()));
    start_pose = block.floats();
    start_step = block.floats();
    start_tolerance = block.floats();
    max_start_ticks = block.whole();
    for (int64_t left = block.whole(); left > 0; --left) reasons.push_back(block.text());
    block.end();
    check();
}

void Settings::check() const {
    const auto refuse = [](const char* why) { throw std::runtime_error(std::string("the settings: ") + why); };
    if (period_ns < 1 || steps < 1 || chunk_length < 1 || execute < 1 || slots < 1) refuse("a time is below 1");
    if (reasons.size() != size_t(REASONS)) refuse("another number of reasons");
    for (int64_t place : action)
        if (place < 0 || place >= int64_t(limits.low.size())) refuse("an action element beyond the last");
    for (const NumberPort& port : ports) {
        for (int64_t place : port.places)
            if (place < 0 || place >= observation_size) refuse("an observation element beyond the last");
        if (!port.plausible.low.empty() && (port.plausible.low.size() != port.places.size() ||
                                            port.plausible.high.size() != port.places.size()))
            refuse("a plausible range of another length");
        if (port.row < 1) refuse("an observation without a row");
        if (port.stack < 1 || int64_t(port.places.size()) > max_request / port.stack)
            refuse("an observation of more ticks than a request holds");
        if (port.start_low.size() != port.start_high.size() ||
            (!port.start_low.empty() && int64_t(port.start_low.size()) != port.row))
            refuse("a start envelope of another length");
    }
    int64_t numbers = 0;
    for (const NumberPort& port : ports) numbers += int64_t(port.places.size());
    for (int64_t at : limits.measured_at)
        if (at < -1 || at >= numbers) refuse("a measured position beyond the last number");
    if (!start_pose.empty()) {
        const size_t width = limits.low.size();
        if (start_pose.size() != width || start_step.size() != width || start_tolerance.size() != width)
            refuse("a start pose of another length");
        if (limits.measured_at.size() != width) refuse("a start pose without measured positions");
        for (int64_t at : limits.measured_at)
            if (at < 0) refuse("a start pose of an element that is not measured");
    }
    const size_t planned = most_planned < 0 ? 0 : size_t(most_planned);
    if (guided && overlap.size() != (planned + 1) * (planned + 1) * planned) refuse("weights of another length");
    for (const WatchedInput& input : watched)
        if (input.index < 0 || input.index >= int64_t(input.camera ? cameras.size() : ports.size()))
            refuse("a watched input beyond the last");
}

}  // namespace robotrl
