#include "inference.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "ort_graph.hpp"
#include "realtime.hpp"
#include "tape.hpp"

namespace robotrl {

namespace {

enum AnswerKind { CHUNK = 1, REFUSED = 2, FAILED = 3 };
constexpr int64_t SECOND_NS = 1'000'000'000;
constexpr size_t MOST_FAILED = 200;  // as robotrl.deploy.inference.worker

// A number as Python prints one that is not finite.
const char* printed(float value) { return value != value ? "nan" : value > 0.0f ? "inf" : "-inf"; }

// `text` as a JSON string.
std::string quoted(const std::string& text) {
    std::string found = "\"";
    char escape[8];
    for (char one : text) {
        const auto code = static_cast<unsigned char>(one);
        if (code < 0x20 || one == '"' || one == '\\') {
            std::snprintf(escape, sizeof escape, "\\u%04x", unsigned(code));
            found += escape;
        } else {
            found += one;
        }
    }
    return found + '"';
}

}  // namespace

InferenceSettings::InferenceSettings(const unsigned char* bytes_of_block, size_t size) {
    BlockReader block(bytes_of_block, size);
    for (int64_t* number : {&handle, &bytes, &failure_at, &failure_bytes, &request_at, &max_request, &answer_at, &max_chunk})
        *number = block.whole();
    magic = block.text();
    introduction_at = block.whole();
    warm_up_runs = block.whole();
    introduction = block.text();
    for (int64_t left = block.whole(); left > 0; --left) {
        RequestPort port;
        port.input = block.whole();
        port.size = block.whole();
        port.committed = block.whole() != 0;
        for (int64_t names = block.whole(); names > 0; --names) {
            port.before.push_back(block.text());
            port.behind.push_back(block.text());
        }
        ports.push_back(port);
    }
    noise_input = block.whole();
    draws = block.whole() != 0;
    key.low = uint64_t(block.whole());
    key.high = uint64_t(block.whole());
    output = block.whole();
    lead_ns = block.wholes();
    if (block.whole() != 0) {
        graph = std::make_unique<OrtGraph>(block);
    } else {
        const std::string tape = block.text();
        graph = std::make_unique<TapeEngine>(reinterpret_cast<const Bytes*>(tape.data()), tape.size());
    }
    block.end();
    check();
}

void InferenceSettings::check() const {
    const auto refuse = [](const char* why) { throw std::runtime_error(std::string("the settings: ") + why); };
    int64_t floats = 0;
    for (const RequestPort& port : ports) {
        if (port.size < 0 || port.size > max_request - floats) refuse("a request of more floats than it holds");
        if (port.before.empty()) refuse("an input without names");
        floats += port.size;
    }
    for (int64_t lead : lead_ns)
        if (lead < 0) refuse("a negative lead");
}

Inference::Inference(InferenceSettings& settings)
    : settings_(settings),
      memory_(int(settings.handle), size_t(settings.bytes), settings.magic),
      requests_(memory_.at(size_t(settings.request_at)), settings.max_request),
      answers_(memory_.at(size_t(settings.answer_at)), settings.max_chunk),
      introduction_(memory_.at(size_t(settings.introduction_at)), size_t(settings.failure_bytes)),
      failure_(memory_.at(size_t(settings.failure_at)), size_t(settings.failure_bytes)),
      graph_(*settings.graph) {
    const auto refuse = [] { throw std::runtime_error("the settings: inputs and outputs of another graph"); };
    const auto inputs = int64_t(graph_.inputs());
    for (const RequestPort& port : settings.ports)
        if (port.input < 0 || port.input >= inputs || graph_.input_floats(size_t(port.input)) != port.size) refuse();
    if (settings.noise_input >= inputs || settings.output < 0 || settings.output >= int64_t(graph_.outputs())) refuse();
    answer_.values.resize(size_t(graph_.output_floats(size_t(settings.output))));
    if (int64_t(answer_.values.size()) > settings.max_chunk) refuse();
    request_.values.reserve(size_t(settings.max_request));
}

void Inference::serve(int bell) {
    for (int64_t run = 0; run < settings_.warm_up_runs; ++run)
        if (!graph_.run()) throw std::runtime_error(graph_.why());
    introduction_.write(settings_.introduction);
    while (wait(bell)) {
        if (!requests_.read(request_) || request_.tick == served_) continue;
        answer();
        served_ = request_.tick;
        due_ns_ = request_.lost_ns;
    }
}

bool Inference::wait(int bell) {
    MonotonicClock clock;
    pollfd waited = {bell, POLLIN, 0};
    for (int64_t lead : settings_.lead_ns) {
        const int64_t left = due_ns_ ? due_ns_ - lead - clock.now_ns() : 0;
        if (left <= 0) continue;
        const timespec limit = {time_t(left / SECOND_NS), long(left % SECOND_NS)};
        if (ppoll(&waited, 1, &limit, nullptr) == 0) graph_.run();
    }
    unsigned char rung[4096];
    ssize_t count;
    do count = read(bell, rung, sizeof rung);
    while (count < 0 && errno == EINTR);
    return count > 0;
}

void Inference::answer() {
    MonotonicClock clock;
    const int64_t begun = clock.now_ns();
    std::string why = take();
    answer_.kind = why.empty() ? CHUNK : REFUSED;
    if (why.empty()) {
        draw(uint64_t(request_.state_id));
        if (!graph_.run()) {
            answer_.kind = FAILED;
            why = graph_.why();
        }
    }
    if (answer_.kind == CHUNK) {
        const auto output = size_t(settings_.output);
        answer_.values.resize(size_t(graph_.output_floats(output)));
        std::memcpy(answer_.values.data(), graph_.output(output), answer_.values.size() * sizeof(float));
    } else {
        if (failed_.size() == MOST_FAILED) failed_.erase(failed_.begin());
        failed_.push_back(request_.state_id);
        std::string decisions;
        for (int64_t one : failed_) decisions += (decisions.empty() ? "" : ", ") + std::to_string(one);
        failure_.write("{\"why\": " + quoted(why) + ", \"failed\": [" + decisions + "]}");
        answer_.values.clear();
    }
    answer_.stamp_ns = request_.stamp_ns;
    answer_.tick = request_.tick;
    answer_.episode = request_.episode;
    answer_.state_id = request_.state_id;
    answer_.reason = request_.reason;
    answer_.echo = request_.echo;
    answer_.mode = 0;
    answer_.lost_ns = clock.now_ns() - begun;
    answers_.write(answer_);
}

std::string Inference::take() {
    const bool committed = request_.mode != 0;
    size_t expected = 0;
    for (const RequestPort& port : settings_.ports)
        if (committed || !port.committed) expected += size_t(port.size);
    if (request_.values.size() != expected)
        return "request has " + std::to_string(request_.values.size()) + " values: expected " + std::to_string(expected);
    const float* at = request_.values.data();
    for (const RequestPort& port : settings_.ports) {
        float* input = graph_.input(size_t(port.input));
        if (port.committed && !committed) {
            std::memset(input, 0, size_t(port.size) * sizeof(float));
            continue;
        }
        for (int64_t i = 0; i < port.size; ++i)
            if (!std::isfinite(at[i])) {
                const size_t element = size_t(i) % port.before.size();
                const std::string value = port.committed ? "" : printed(at[i]);
                return port.before[element] + value + port.behind[element];
            }
        std::memcpy(input, at, size_t(port.size) * sizeof(float));
        at += port.size;
    }
    return "";
}

void Inference::draw(uint64_t decision) {
    if (settings_.noise_input < 0) return;
    float* noise = graph_.input(size_t(settings_.noise_input));
    const int64_t count = graph_.input_floats(size_t(settings_.noise_input));
    if (settings_.draws)
        counter_noise(settings_.key, decision, noise, count);
    else
        std::memset(noise, 0, size_t(count) * sizeof(float));
}

}  // namespace robotrl
