// Noise of one decision as a pure function of seed and decision: robotrl.deploy.noise.
#pragma once

#include <cstdint>

namespace robotrl {

// Key of a sampler's noise: the seed's low and high 64 bits.
struct NoiseKey {
    uint64_t low = 0, high = 0;
};

// Writes `count` standard normal numbers: words of Philox4x64-10 under the key, in pairs through Box-Muller.
void counter_noise(NoiseKey key, uint64_t decision, float* out, int64_t count);

}  // namespace robotrl
