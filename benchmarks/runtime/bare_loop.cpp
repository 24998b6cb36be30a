// A loop that only sleeps until each deadline: what a servo's lateness is compared with.
//
// Compiled by benchmarks/runtime/bench.py. Arguments: rate in Hz, seconds. Prints the lateness of each tick, microseconds.

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) return 2;
    const int64_t period = int64_t(1e9 / std::atof(arguments[1])), length = int64_t(std::atof(arguments[2]) * 1e9);
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    std::vector<double> late;
    late.reserve(size_t(length / period + 1));
    const int64_t start = now_ns() + 5'000'000;
    for (int64_t step = 0; step * period < length;) {
        const int64_t deadline = start + step * period;
        const timespec until = {time_t(deadline / 1'000'000'000), long(deadline % 1'000'000'000)};
        if (deadline > now_ns())
            while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) continue;
        const int64_t woke = now_ns();
        late.push_back(double(woke - deadline) * 1e-3);
        // missed periods are skipped, as the servo does
        step = std::max(step, (woke - start) / period) + 1;
    }
    for (double one : late) std::printf("%.3f\n", one);
    return 0;
}
