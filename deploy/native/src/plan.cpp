#include "plan.hpp"

#include <cmath>

namespace robotrl {

void Latency::add(int64_t measured_ns) { measured_[count_++ % REMEMBERED] = measured_ns; }

double Latency::p95_ns() const {
    if (count_ < 4) return first_ns_;
    int64_t ordered[REMEMBERED];
    const int kept = int(std::min<int64_t>(count_, REMEMBERED));
    std::copy(measured_, measured_ + kept, ordered);
    std::sort(ordered, ordered + kept);
    const double place = 0.95 * (kept - 1);
    const int below = int(place), above = std::min(below + 1, kept - 1);
    return double(ordered[below]) + (place - below) * double(ordered[above] - ordered[below]);
}

int64_t lead_ticks(double latency_ns, int64_t period_ns, int64_t most) {
    if (latency_ns <= 0.5 * double(period_ns)) return 0;
    return std::min(int64_t(std::ceil(latency_ns / double(period_ns))), most);
}

}  // namespace robotrl
