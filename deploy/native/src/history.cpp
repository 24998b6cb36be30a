#include "history.hpp"

#include <algorithm>
#include <cmath>

namespace robotrl {

ObservationHistory::ObservationHistory(const std::vector<NumberPort>& ports) : ports_(ports) {
    size_t kept = 0, size = 0;
    for (const NumberPort& port : ports_) {
        const size_t all = size_t(port.stack) * port.places.size();
        if (port.stack > 1) kept += all;
        size += all;
    }
    used_ = kept > 0;
    rows_.assign(kept, 0.0f);
    whole_.reserve(size);
}

bool ObservationHistory::finite(const std::vector<float>& numbers) const {
    const float* at = numbers.data();
    for (const NumberPort& port : ports_) {
        const float* end = at + port.places.size();
        if (port.stack > 1 && !std::all_of(at, end, [](float x) { return std::isfinite(x); })) return false;
        at = end;
    }
    return true;
}

void ObservationHistory::take(int64_t tick, const std::vector<float>& numbers) {
    if (!finite(numbers)) return;
    const float* now = numbers.data();
    float* rows = rows_.data();
    for (const NumberPort& port : ports_) {
        const int64_t width = int64_t(port.places.size());
        if (port.stack > 1) {
            const int64_t passed = tick_ < 0 ? port.stack : std::min(tick - tick_, port.stack);
            float* last = rows + (port.stack - 1) * width;
            std::copy(rows + passed * width, rows + port.stack * width, rows);
            // of the ticks in between: as before; of those before the first: as the first
            const float* between = tick_ < 0 ? now : last;
            for (int64_t row = port.stack - passed; row < port.stack - 1; ++row)
                std::copy(between, between + width, rows + row * width);
            std::copy(now, now + width, last);
            rows += port.stack * width;
        }
        now += width;
    }
    tick_ = tick;
}

const std::vector<float>& ObservationHistory::whole(const std::vector<float>& numbers) {
    whole_.clear();
    const float* now = numbers.data();
    const float* rows = rows_.data();
    for (const NumberPort& port : ports_) {
        const int64_t width = int64_t(port.places.size());
        if (port.stack > 1) {
            whole_.insert(whole_.end(), rows, rows + (port.stack - 1) * width);
            rows += port.stack * width;
        }
        // one that was left out is to be refused, not to be passed over
        whole_.insert(whole_.end(), now, now + width);
        now += width;
    }
    return whole_;
}

}  // namespace robotrl
