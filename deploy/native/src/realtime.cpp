#include "realtime.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include <cerrno>
#include <cstring>

namespace robotrl {

namespace {
constexpr int FIFO_PRIORITY = 80;
constexpr int64_t SECOND_NS = 1'000'000'000;
}  // namespace

int64_t MonotonicClock::now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * SECOND_NS + now.tv_nsec;
}

void MonotonicClock::sleep_until(int64_t deadline_ns) {
    if (deadline_ns <= now_ns()) return;
    const timespec until = {time_t(deadline_ns / SECOND_NS), long(deadline_ns % SECOND_NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) continue;
}

std::string be_steady(bool fifo) {
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    if (!fifo) return "normal";
    sched_param priority{};
    priority.sched_priority = FIFO_PRIORITY;
    std::string found = "fifo " + std::to_string(FIFO_PRIORITY);
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0)
        found = "normal (fifo refused: " + std::string(std::strerror(errno)) + ")";
    const bool locked = mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
    return found + (locked ? ", memory locked" : ", memory not locked");
}

}  // namespace robotrl
