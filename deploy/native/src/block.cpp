#include "block.hpp"

#include <cstring>
#include <stdexcept>

#include "crc32.hpp"

namespace robotrl {

namespace {
constexpr char MAGIC[] = "rrlblok1";
constexpr size_t HEAD_BYTES = 24;
}  // namespace

BlockReader::BlockReader(const unsigned char* block, size_t size) : at_(block), end_(block + size) {
    const unsigned char* head = take(HEAD_BYTES);
    uint32_t checksum;
    int64_t rest;
    std::memcpy(&checksum, head + 8, sizeof checksum);
    std::memcpy(&rest, head + 16, sizeof rest);
    if (std::memcmp(head, MAGIC, 8) != 0 || rest != end_ - at_ || crc32(at_, size_t(rest)) != checksum)
        throw std::runtime_error("the settings are damaged");
}

const unsigned char* BlockReader::take(size_t size) {
    if (size > size_t(end_ - at_)) throw std::runtime_error("the settings end early");
    const unsigned char* found = at_;
    at_ += size;
    return found;
}

int64_t BlockReader::whole() {
    int64_t value;
    std::memcpy(&value, take(8), 8);
    return value;
}

double BlockReader::number() {
    double value;
    std::memcpy(&value, take(8), 8);
    return value;
}

std::string BlockReader::text() {
    const int64_t size = whole();
    if (size < 0 || size > end_ - at_) throw std::runtime_error("the settings end early");
    return std::string(reinterpret_cast<const char*>(take(size_t(size))), size_t(size));
}

std::vector<float> BlockReader::floats() {
    const int64_t count = whole();
    if (count < 0 || count > (end_ - at_) / 4) throw std::runtime_error("the settings end early");
    std::vector<float> values(static_cast<size_t>(count));
    if (count) std::memcpy(values.data(), take(size_t(count) * 4), size_t(count) * 4);
    return values;
}

std::vector<int64_t> BlockReader::wholes() {
    const int64_t count = whole();
    if (count < 0 || count > (end_ - at_) / 8) throw std::runtime_error("the settings end early");
    std::vector<int64_t> values(static_cast<size_t>(count));
    if (count) std::memcpy(values.data(), take(size_t(count) * 8), size_t(count) * 8);
    return values;
}

void BlockReader::end() const {
    if (at_ != end_) throw std::runtime_error("the settings hold more than was read: expected one version of robotrl");
}

}  // namespace robotrl
