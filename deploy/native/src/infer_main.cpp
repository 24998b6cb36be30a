// The process that infers: settings in an inherited file whose number is the first argument, bells on standard input.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "inference.hpp"

namespace {

std::vector<unsigned char> read_file(int handle) {
    struct stat status;
    if (fstat(handle, &status) != 0) throw std::runtime_error("no settings");
    std::vector<unsigned char> found(size_t(status.st_size));
    for (size_t at = 0; at < found.size();) {
        const ssize_t count = pread(handle, found.data() + at, found.size() - at, off_t(at));
        if (count <= 0) throw std::runtime_error("the settings end early");
        at += size_t(count);
    }
    close(handle);
    return found;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        if (count != 2) throw std::runtime_error("expected the number of the file of the settings");
        const std::vector<unsigned char> block = read_file(std::atoi(arguments[1]));
        robotrl::InferenceSettings settings(block.data(), block.size());
        robotrl::Inference inference(settings);
        inference.serve(STDIN_FILENO);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "the native process that infers: %s\n", error.what());
        return 1;
    }
    return 0;
}
