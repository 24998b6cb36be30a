// Checks of an observation before an action is asked for with it: finite, fresh, plausible, its clock, its sensors.
#pragma once

#include <cstdint>
#include <vector>

#include "links.hpp"
#include "safety.hpp"
#include "sensors.hpp"
#include "settings.hpp"

namespace robotrl {

class ObservationCheck {
   public:
    ObservationCheck(const SafetyLimits& limits, const std::vector<NumberPort>& ports,
                     const std::vector<WatchedInput>& watched);
    void reset();
    // The first reason to refuse an observation, or NONE.
    //   numbers: those of all ports, one after the other; frames: of all cameras; sent: the last action sent.
    int64_t check(const float* numbers, const std::vector<CameraFrame>& frames, double age_s, double now_s,
                  const std::vector<float>& sent);
    // Tells whether no number lies beyond its plausible range.
    bool is_plausible(const float* numbers) const;
    // Index of the watched input that the last check found frozen; -1 for none.
    int frozen() const { return frozen_; }
    int64_t floats() const { return floats_; }

   private:
    const SafetyLimits& limits_;
    const std::vector<NumberPort>& ports_;
    const std::vector<WatchedInput>& watched_;
    std::vector<int64_t> starts_;  // of each port's numbers
    int64_t floats_ = 0;
    SensorWatch watch_;
    int frozen_ = -1;
};

}  // namespace robotrl
