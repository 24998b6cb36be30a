// Observations of the last control ticks, for a policy that is given several at once.
#pragma once

#include <cstdint>
#include <vector>

#include "settings.hpp"

namespace robotrl {

// The first observation of an episode stands for the ticks before it; a tick whose observation is missing or not finite
// has that of the tick before.
class ObservationHistory {
   public:
    explicit ObservationHistory(const std::vector<NumberPort>& ports);
    // Some observation holds more than one tick.
    bool used() const { return used_; }
    void reset() { tick_ = -1; }
    // Takes the numbers of a control tick, those of all ports side by side.
    void take(int64_t tick, const std::vector<float>& numbers);
    // The numbers with those of the last ticks, the oldest first, of the tick that was taken last.
    const std::vector<float>& whole(const std::vector<float>& numbers);

   private:
    bool finite(const std::vector<float>& numbers) const;

    const std::vector<NumberPort>& ports_;
    bool used_ = false;
    int64_t tick_ = -1;
    std::vector<float> rows_;   // of the ports with several ticks, side by side
    std::vector<float> whole_;
};

}  // namespace robotrl
