// The servo's time: the machine's monotonic clock, or a simulated one that advances while the servo sleeps.
#pragma once

#include <cstdint>

namespace robotrl {

class Clock {
   public:
    virtual ~Clock() = default;
    virtual int64_t now_ns() = 0;
    virtual void sleep_until(int64_t deadline_ns) = 0;
    void sleep(int64_t duration_ns) { sleep_until(now_ns() + duration_ns); }
};

}  // namespace robotrl
