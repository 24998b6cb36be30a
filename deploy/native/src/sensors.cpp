#include "sensors.hpp"

#include <cmath>
#include <cstring>

namespace robotrl {

namespace {
constexpr double AHEAD_S = 1e-3, BACK_S = 1e-6, START_S = 0.5;
constexpr float MOVES = 0.02f;
}  // namespace

SensorWatch::SensorWatch(const SafetyLimits& limits, const std::vector<double>& still_s,
                         const std::vector<int64_t>& widths)
    : limits_(limits), still_s_(still_s), ports_(still_s.size()) {
    for (size_t i = 0; i < limits.low.size(); ++i) least_.push_back(MOVES * (limits.high[i] - limits.low[i]));
    for (size_t i = 0; i < still_s.size(); ++i) {
        now_.emplace_back(size_t(widths[i]));
        ports_[i].numbers.resize(size_t(widths[i]));
        ports_[i].command.resize(limits.low.size());
    }
}

void SensorWatch::reset() {
    for (Port& port : ports_) port.known = port.alive = false, port.told_s = 0.0;
    stamp_s_ = now_s_ = -std::numeric_limits<double>::infinity();
}

int SensorWatch::look(double age_s, double now_s, const std::vector<float>& sent) {
    const double stamp_s = now_s - age_s;
    // written so that NaN counts as a wrong clock
    if (!(age_s >= -AHEAD_S && stamp_s >= stamp_s_ - BACK_S)) return CLOCK;
    const double passed_s = std::isfinite(now_s_) ? now_s - now_s_ : 0.0;
    stamp_s_ = stamp_s;
    now_s_ = now_s;
    return still(passed_s, sent);
}

int SensorWatch::still(double passed_s, const std::vector<float>& sent) {
    int frozen = NOTHING;
    bool none_alive = true;
    double longest_s = 0.0;
    for (double limit_s : still_s_) longest_s = limit_s > longest_s ? limit_s : longest_s;
    for (size_t i = 0; i < ports_.size(); ++i) {
        Port& port = ports_[i];
        if (!port.known || std::memcmp(port.numbers.data(), now_[i].data(), now_[i].size() * sizeof(float)) != 0) {
            port.alive = port.known;
            port.known = true;
            port.numbers = now_[i];
            port.command = sent;
            port.told_s = 0.0;
        } else {
            if (told_to_move(sent, port)) port.told_s += passed_s;
            // a port without any change in this episode may belong to an untouched object
            if (port.alive && port.told_s > still_s_[i]) frozen = int(i);
        }
        none_alive = none_alive && !port.alive && port.told_s > longest_s + START_S;
    }
    return !ports_.empty() && none_alive ? 0 : frozen;
}

bool SensorWatch::told_to_move(const std::vector<float>& sent, const Port& port) const {
    const std::vector<float>& rest = limits_.hold_last ? port.command : limits_.neutral;
    for (size_t i = 0; i < sent.size(); ++i)
        if (std::fabs(sent[i] - rest[i]) > least_[i]) return true;
    return false;
}

}  // namespace robotrl
