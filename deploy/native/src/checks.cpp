#include "checks.hpp"

#include <cstring>

namespace robotrl {

namespace {

std::vector<double> still_of(const std::vector<WatchedInput>& watched) {
    std::vector<double> limits;
    for (const WatchedInput& input : watched) limits.push_back(input.max_still_s);
    return limits;
}

// Floats of each watched input; the checksum of a camera's frame has the bits of two.
std::vector<int64_t> widths_of(const std::vector<NumberPort>& ports, const std::vector<WatchedInput>& watched) {
    std::vector<int64_t> widths;
    for (const WatchedInput& input : watched)
        widths.push_back(input.camera ? 2 : int64_t(ports[size_t(input.index)].places.size()));
    return widths;
}

}  // namespace

ObservationCheck::ObservationCheck(const SafetyLimits& limits, const std::vector<NumberPort>& ports,
                                   const std::vector<WatchedInput>& watched)
    : limits_(limits), ports_(ports), watched_(watched), watch_(limits, still_of(watched), widths_of(ports, watched)) {
    for (const NumberPort& port : ports) {
        starts_.push_back(floats_);
        floats_ += int64_t(port.places.size());
    }
}

void ObservationCheck::reset() {
    watch_.reset();
    frozen_ = -1;
}

bool ObservationCheck::is_plausible(const float* numbers) const {
    for (size_t i = 0; i < ports_.size(); ++i)
        if (implausible(ports_[i].plausible, numbers + starts_[i], int64_t(ports_[i].places.size()))) return false;
    return true;
}

int64_t ObservationCheck::check(const float* numbers, const std::vector<CameraFrame>& frames, double age_s,
                                double now_s, const std::vector<float>& sent) {
    frozen_ = -1;
    if (!all_finite(numbers, floats_)) return OBS_NOT_FINITE;
    // not `age_s > limit`: a NaN age counts as stale
    if (!(age_s <= limits_.max_observation_age_s)) return OBS_STALE;
    if (!is_plausible(numbers)) return OBS_IMPLAUSIBLE;
    for (size_t i = 0; i < watched_.size(); ++i) {
        const WatchedInput& input = watched_[i];
        if (input.camera)
            std::memcpy(watch_.numbers(i), &frames[size_t(input.index)].checksum, 8);
        else
            std::memcpy(watch_.numbers(i), numbers + starts_[size_t(input.index)],
                        ports_[size_t(input.index)].places.size() * sizeof(float));
    }
    const int found = watch_.look(age_s, now_s, sent);
    if (found == SensorWatch::CLOCK) return OBS_TIME;
    if (found == SensorWatch::NOTHING) return NONE;
    frozen_ = found;
    return OBS_FROZEN;
}

}  // namespace robotrl
