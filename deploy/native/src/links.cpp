#include "links.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <stdexcept>

#include "crc32.hpp"

namespace robotrl {

namespace {

constexpr size_t HEAD_BYTES = 16, NUMBERS_BYTES = MESSAGE_NUMBERS * 8, RECORD_BYTES = RECORD_NUMBERS * 8;
constexpr size_t FRAME_ALIGN = 64;
constexpr int RETRIES = 50;

uint64_t load_number(const Bytes* at) {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
}

void store_number(Bytes* at, uint64_t value) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
}

uint32_t load_word(const Bytes* at) {
    uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

void store_words(Bytes* at, uint32_t first, uint32_t second) {
    std::memcpy(at, &first, sizeof first);
    std::memcpy(at + 4, &second, sizeof second);
}

// Checksum over a number and the content that it stands for.
uint32_t checksum(uint64_t number, const Bytes* body, size_t size) {
    return crc32(body, size, crc32(&number, sizeof number));
}

}  // namespace

SharedMemory::SharedMemory(int handle, size_t size, const std::string& magic) : size_(size) {
    struct stat status;
    if (fstat(handle, &status) != 0 || size_t(status.st_size) != size)
        throw std::runtime_error("a link has another size: expected both sides of one robotrl version");
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("a link cannot be mapped");
    memory_ = static_cast<Bytes*>(mapped);
    if (std::memcmp(memory_, magic.data(), magic.size()) != 0)
        throw std::runtime_error("a link is not " + magic + ": expected both sides of one robotrl version");
}

SharedMemory::~SharedMemory() {
    if (memory_) munmap(memory_, size_);
}

int64_t SharedMemory::creator_pid() const { return int64_t(load_number(memory_ + 8)); }

Channel::Channel(Bytes* at, int64_t max_values)
    : at_(at), max_values_(max_values), body_(NUMBERS_BYTES + size_t(max_values) * sizeof(float)) {}

void Channel::write(const Message& message) {
    const int64_t numbers[MESSAGE_NUMBERS] = {message.stamp_ns, message.tick,   message.episode,
                                              message.state_id, message.kind,   message.mode,
                                              message.reason,   message.echo,   message.lost_ns};
    const size_t floats = message.values.size() * sizeof(float), size = NUMBERS_BYTES + floats;
    if (int64_t(message.values.size()) > max_values_) throw std::runtime_error("a message is too long for its channel");
    std::memcpy(body_.data(), numbers, NUMBERS_BYTES);
    if (floats) std::memcpy(body_.data() + NUMBERS_BYTES, message.values.data(), floats);
    const uint64_t sequence = load_number(at_);
    // a writer that died while writing left an odd number: continue from it
    const uint64_t begun = sequence % 2 == 0 ? sequence + 1 : sequence, done = begun + 1;
    store_number(at_, begun);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    std::memcpy(at_ + HEAD_BYTES, body_.data(), size);
    store_words(at_ + 8, checksum(done, body_.data(), size), uint32_t(message.values.size()));
    store_number(at_, done);
}

bool Channel::read(Message& into) {
    for (int attempt = 0; attempt < RETRIES; ++attempt) {
        const uint64_t sequence = load_number(at_);
        const uint32_t sum = load_word(at_ + 8), count = load_word(at_ + 12);
        if (sequence == 0) return false;
        if (sequence % 2 == 0 && int64_t(count) <= max_values_) {
            const size_t size = NUMBERS_BYTES + size_t(count) * sizeof(float);
            std::memcpy(body_.data(), at_ + HEAD_BYTES, size);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (load_number(at_) == sequence && checksum(sequence, body_.data(), size) == sum) {
                int64_t numbers[MESSAGE_NUMBERS];
                std::memcpy(numbers, body_.data(), NUMBERS_BYTES);
                into.stamp_ns = numbers[0];
                into.tick = numbers[1];
                into.episode = numbers[2];
                into.state_id = numbers[3];
                into.kind = numbers[4];
                into.mode = numbers[5];
                into.reason = numbers[6];
                into.echo = numbers[7];
                into.lost_ns = numbers[8];
                into.values.resize(count);
                if (count) std::memcpy(into.values.data(), body_.data() + NUMBERS_BYTES, size - NUMBERS_BYTES);
                return true;
            }
        }
        ++torn_;
    }
    return false;
}

void TextSlot::write(const std::string& text) {
    if (text.size() > most_) throw std::runtime_error("a text is too long for its place");
    std::memcpy(at_ + 8, text.data(), text.size());
    __atomic_thread_fence(__ATOMIC_RELEASE);
    store_words(at_, uint32_t(text.size()), crc32(text.data(), text.size()));
}

std::string TextSlot::read() const {
    const uint32_t length = load_word(at_), sum = load_word(at_ + 4);
    if (length == 0 || length > most_) return "";
    std::string text(reinterpret_cast<const char*>(at_ + 8), length);
    return crc32(text.data(), text.size()) == sum ? text : "";
}

RecordRing::RecordRing(Bytes* at, int64_t slot_bytes, int64_t slots, int64_t max_values)
    : at_(at),
      slot_bytes_(slot_bytes),
      slots_(slots),
      max_values_(max_values),
      body_(RECORD_BYTES + size_t(max_values) * sizeof(float)) {}

void RecordRing::write(const int64_t (&numbers)[RECORD_NUMBERS], const std::vector<float>& values) {
    if (int64_t(values.size()) > max_values_) throw std::runtime_error("a record is too long for the ring");
    const size_t floats = values.size() * sizeof(float), size = RECORD_BYTES + floats;
    std::memcpy(body_.data(), numbers, RECORD_BYTES);
    if (floats) std::memcpy(body_.data() + RECORD_BYTES, values.data(), floats);
    Bytes* slot = at_ + int64_t((next_ - 1) % uint64_t(slots_)) * slot_bytes_;
    // 0 while it is being written
    store_number(slot, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    std::memcpy(slot + HEAD_BYTES, body_.data(), size);
    store_words(slot + 8, checksum(next_, body_.data(), size), uint32_t(values.size()));
    store_number(slot, next_++);
}

bool CameraSlots::newest(CameraFrame& into) const {
    const uint64_t number = load_number(at_);
    if (number == 0) return false;
    const Bytes* slot = at_ + FRAME_ALIGN + int64_t(number % uint64_t(slots_)) * slot_bytes_;
    CameraFrame found;
    found.number = int64_t(load_number(slot));
    std::memcpy(&found.stamp_ns, slot + 8, 8);
    std::memcpy(&found.episode, slot + 16, 8);
    found.checksum = load_word(slot + 24);
    if (found.number != int64_t(number)) return false;
    into = found;
    return true;
}

}  // namespace robotrl
