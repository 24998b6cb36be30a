// Detection of sensors with a wrong clock and of frozen ones: robotrl.deploy.control.sensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "safety.hpp"

namespace robotrl {

class SensorWatch {
   public:
    static constexpr int NOTHING = -1, CLOCK = -2;

    // `still_s`: longest time without a change for each watched port; `widths`: floats of each.
    SensorWatch(const SafetyLimits& limits, const std::vector<double>& still_s, const std::vector<int64_t>& widths);
    void reset();
    // Place for the numbers of watched port `i`, to be filled before `look`.
    float* numbers(size_t i) { return now_[i].data(); }
    size_t count() const { return still_s_.size(); }
    // CLOCK, the index of a frozen port, or NOTHING.
    int look(double age_s, double now_s, const std::vector<float>& sent);

   private:
    struct Port {
        bool known = false, alive = false;
        std::vector<float> numbers, command;
        double told_s = 0.0;
    };
    int still(double passed_s, const std::vector<float>& sent);
    bool told_to_move(const std::vector<float>& sent, const Port& port) const;

    const SafetyLimits limits_;
    const std::vector<double> still_s_;
    std::vector<float> least_;  // smallest motion of each action element
    std::vector<std::vector<float>> now_;
    std::vector<Port> ports_;
    double stamp_s_ = -std::numeric_limits<double>::infinity(), now_s_ = -std::numeric_limits<double>::infinity();
};

}  // namespace robotrl
