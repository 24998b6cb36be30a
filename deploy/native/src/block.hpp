// A flat block of fields with a checksum, as Python writes settings (robotrl.deploy.native.settings.BlockWriter).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace robotrl {

// Reads numbers and texts one after the other; throws std::runtime_error where the block is damaged or ends early.
class BlockReader {
   public:
    BlockReader(const unsigned char* block, size_t size);
    int64_t whole();
    double number();
    std::string text();
    std::vector<float> floats();
    std::vector<int64_t> wholes();
    // Throws where something is left.
    void end() const;

   private:
    const unsigned char* take(size_t size);
    const unsigned char *at_, *end_;
};

}  // namespace robotrl
