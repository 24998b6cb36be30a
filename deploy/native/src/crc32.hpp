// CRC-32 as zlib computes it (polynomial 0xEDB88320, reflected), four bytes at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace robotrl {

using CrcTables = std::array<std::array<uint32_t, 256>, 4>;

constexpr CrcTables crc_tables() {
    CrcTables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
        tables[0][byte] = value;
    }
    for (size_t row = 1; row < 4; ++row)
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t before = tables[row - 1][byte];
            tables[row][byte] = tables[0][before & 0xFF] ^ (before >> 8);
        }
    return tables;
}

// Checksum of `size` bytes, continued from `before` (0 at the start).
inline uint32_t crc32(const void* data, size_t size, uint32_t before = 0) {
    static constexpr CrcTables tables = crc_tables();
    const auto* bytes = static_cast<const unsigned char*>(data);
    uint32_t value = ~before;
    while (size >= 4) {
        uint32_t word;
        std::memcpy(&word, bytes, 4);
        value ^= word;
        value = tables[3][value & 0xFF] ^ tables[2][(value >> 8) & 0xFF] ^ tables[1][(value >> 16) & 0xFF] ^
                tables[0][value >> 24];
        bytes += 4;
        size -= 4;
    }
    for (; size > 0; --size) value = tables[0][(value ^ *bytes++) & 0xFF] ^ (value >> 8);
    return ~value;
}

}  // namespace robotrl
