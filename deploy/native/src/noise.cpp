#include "noise.hpp"

#include <cmath>

namespace robotrl {

namespace {

constexpr uint64_t MULTIPLY_0 = 0xD2E7470EE14C6C93u, MULTIPLY_1 = 0xCA5A826395121157u;
constexpr uint64_t WEYL_0 = 0x9E3779B97F4A7C15u, WEYL_1 = 0xBB67AE8584CAA73Bu;
constexpr int ROUNDS = 10;
constexpr double TURN = 6.283185307179586476925286766559;

// The four words of one counter (Salmon et al. 2011).
struct Philox {
    uint64_t words[4];

    Philox(NoiseKey key, uint64_t block, uint64_t decision) : words{block, 0, decision, 0} {
        for (int round = 0; round < ROUNDS; ++round) {
            const auto first = static_cast<unsigned __int128>(MULTIPLY_0) * words[0];
            const auto second = static_cast<unsigned __int128>(MULTIPLY_1) * words[2];
            const uint64_t high_0 = uint64_t(first >> 64), high_1 = uint64_t(second >> 64);
            words[0] = high_1 ^ words[1] ^ key.low;
            words[2] = high_0 ^ words[3] ^ key.high;
            words[1] = uint64_t(second);
            words[3] = uint64_t(first);
            key.low += WEYL_0;
            key.high += WEYL_1;
        }
    }
};

// Uniform numbers in (0, 1], read one after the other from any place.
class Uniform {
   public:
    Uniform(NoiseKey key, uint64_t decision, int64_t at)
        : key_(key), decision_(decision), at_(at), words_(key, block(), decision) {}
    double next() {
        const uint64_t word = words_.words[at_ % 4];
        if (++at_ % 4 == 0) words_ = Philox(key_, block(), decision_);
        return (double(word >> 11) + 1.0) * 0x1p-53;
    }

   private:
    // numpy advances the counter before it makes a block
    uint64_t block() const { return uint64_t(at_ / 4) + 1; }

    NoiseKey key_;
    uint64_t decision_;
    int64_t at_;
    Philox words_;
};

}  // namespace

void counter_noise(NoiseKey key, uint64_t decision, float* out, int64_t count) {
    const int64_t pairs = (count + 1) / 2;
    Uniform lengths(key, decision, 0), angles(key, decision, pairs);
    for (int64_t i = 0; i < pairs; ++i) {
        const double radius = std::sqrt(-2.0 * std::log(lengths.next())), angle = TURN * angles.next();
        out[i] = float(radius * std::cos(angle));
        if (pairs + i < count) out[pairs + i] = float(radius * std::sin(angle));
    }
}

}  // namespace robotrl
