// The servo's process: settings on standard input, shared memory as inherited files.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "realtime.hpp"
#include "servo.hpp"

namespace {

int64_t parent() { return getppid(); }

std::vector<unsigned char> read_all(int handle) {
    std::vector<unsigned char> found;
    unsigned char part[4096];
    for (ssize_t count; (count = read(handle, part, sizeof part)) > 0;)
        found.insert(found.end(), part, part + count);
    return found;
}

}  // namespace

int main() {
    // a doorbell whose reader is gone is no reason to end
    signal(SIGPIPE, SIG_IGN);
    try {
        const std::vector<unsigned char> block = read_all(STDIN_FILENO);
        const robotrl::Settings settings(block.data(), block.size());
        robotrl::MonotonicClock clock;
        robotrl::Servo servo(settings, clock, parent);
        const std::string scheduling = robotrl::be_steady(settings.fifo);
        servo.introduce(scheduling);
        servo.run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "the native servo: %s\n", error.what());
        return 1;
    }
    return 0;
}
