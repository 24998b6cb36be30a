// Both ends of shared memory that the servo uses: channels, texts, the ring of records, and the cameras' frames.
//
// The layouts are those of robotrl.deploy.robots.channel, .cameras, .shared_memory and .servo.ring; offsets come with the
// settings. Neither side ever waits for a lock, and checksums guard against torn and reordered writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace robotrl {

using Bytes = unsigned char;

// A whole file of shared memory, mapped.
class SharedMemory {
   public:
    // Throws std::runtime_error where it is another block than `magic` names, or has another size.
    SharedMemory(int handle, size_t size, const std::string& magic);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    Bytes* at(size_t offset) const { return memory_ + offset; }
    int64_t creator_pid() const;

   private:
    Bytes* memory_ = nullptr;
    size_t size_ = 0;
};

constexpr int MESSAGE_NUMBERS = 9;

// A message of a channel; see robotrl.deploy.robots.channel.Message.
struct Message {
    int64_t stamp_ns = 0, tick = 0, episode = 0, state_id = 0, kind = 0, mode = 0, reason = 0, echo = 0, lost_ns = 0;
    std::vector<float> values;
};

// The latest message from one writer to one reader, under a sequence lock.
class Channel {
   public:
    Channel(Bytes* at, int64_t max_values);
    void write(const Message& message);
    // False if there is none yet, or no consistent copy; `into` keeps its capacity, so that nothing is allocated.
    bool read(Message& into);
    int64_t torn() const { return torn_; }

   private:
    Bytes* at_;
    int64_t max_values_, torn_ = 0;
    std::vector<Bytes> body_;
};

// A JSON text.
class TextSlot {
   public:
    TextSlot(Bytes* at, size_t size) : at_(at), most_(size - 8) {}
    void write(const std::string& text);
    // "" if there is none.
    std::string read() const;

   private:
    Bytes* at_;
    size_t most_;
};

constexpr int RECORD_NUMBERS = 16;

// Writer of the ring of records.
class RecordRing {
   public:
    RecordRing(Bytes* at, int64_t slot_bytes, int64_t slots, int64_t max_values);
    void write(const int64_t (&numbers)[RECORD_NUMBERS], const std::vector<float>& values);

   private:
    Bytes* at_;
    int64_t slot_bytes_, slots_, max_values_;
    uint64_t next_ = 1;
    std::vector<Bytes> body_;
};

struct CameraFrame {
    int64_t number = 0, stamp_ns = 0, episode = 0, checksum = 0;
};

// Reader of the newest frame's description.
class CameraSlots {
   public:
    CameraSlots(Bytes* at, int64_t slot_bytes, int64_t slots) : at_(at), slot_bytes_(slot_bytes), slots_(slots) {}
    bool newest(CameraFrame& into) const;

   private:
    Bytes* at_;
    int64_t slot_bytes_, slots_;
};

}  // namespace robotrl
