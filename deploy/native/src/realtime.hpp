// The machine's clock, and the real-time settings of a process: robotrl.deploy.control.realtime.
#pragma once

#include <string>

#include "clock.hpp"

namespace robotrl {

class MonotonicClock : public Clock {
   public:
    int64_t now_ns() override;
    void sleep_until(int64_t deadline_ns) override;
};

// Sets a timer slack of 1 ns; with `fifo` also asks for the real-time scheduler and locked memory, which need a privilege.
// Returns the active scheduling in words.
std::string be_steady(bool fifo);

}  // namespace robotrl
