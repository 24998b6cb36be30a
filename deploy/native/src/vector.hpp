// Vectors of float32 as wide as the processor's registers, by the compiler's own extension.
#pragma once

#include <cstdint>
#include <cstring>

namespace robotrl {

#if defined(__AVX512F__)
#define ROBOTRL_VECTOR_BYTES 64
#elif defined(__AVX__)
#define ROBOTRL_VECTOR_BYTES 32
#else
#define ROBOTRL_VECTOR_BYTES 16
#endif
constexpr int VECTOR_BYTES = ROBOTRL_VECTOR_BYTES;
constexpr int LANES = VECTOR_BYTES / 4;
typedef float Vector __attribute__((vector_size(ROBOTRL_VECTOR_BYTES)));
typedef int32_t Wholes __attribute__((vector_size(ROBOTRL_VECTOR_BYTES)));

inline Vector load(const float* from) {
    Vector value;
    std::memcpy(&value, from, VECTOR_BYTES);
    return value;
}

inline void store(float* to, Vector value) { std::memcpy(to, &value, VECTOR_BYTES); }

}  // namespace robotrl
