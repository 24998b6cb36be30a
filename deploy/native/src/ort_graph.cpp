#include "ort_graph.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace robotrl {

namespace {

// Places in the library's table of functions, which only ever grows at its end (onnxruntime_c_api.h, "OrtApi").
enum Place : size_t {
    GET_ERROR_MESSAGE = 2,
    CREATE_ENV = 3,
    CREATE_SESSION_FROM_ARRAY = 8,
    RUN = 9,
    CREATE_SESSION_OPTIONS = 10,
    SET_INTRA_OP_NUM_THREADS = 24,
    SET_INTER_OP_NUM_THREADS = 25,
    CREATE_TENSOR_WITH_DATA = 49,
    CREATE_CPU_MEMORY_INFO = 69,
    RELEASE_ENV = 92,
    RELEASE_STATUS = 93,
    RELEASE_MEMORY_INFO = 94,
    RELEASE_SESSION = 95,
    RELEASE_VALUE = 96,
    RELEASE_SESSION_OPTIONS = 100,
};
constexpr uint32_t API_VERSION = 11;
constexpr size_t MOST_REASON = 200;
constexpr int FATAL = 4, FLOAT32 = 1, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0;

// The library's first table: the one of a version, and the version's name.
struct ApiBase {
    void* const* (*get_api)(uint32_t version);
    const char* (*get_version)();
};

using Status = void*;
using Release = void (*)(void*);

}  // namespace

std::vector<OrtGraph::Tensor> OrtGraph::tensors(BlockReader& block) {
    std::vector<Tensor> found(size_t(block.whole()));
    for (Tensor& tensor : found) {
        tensor.name = block.text();
        tensor.shape = block.wholes();
        size_t floats = 1;
        for (int64_t length : tensor.shape) floats *= size_t(length);
        tensor.floats.assign(floats, 0.0f);
    }
    return found;
}

OrtGraph::OrtGraph(BlockReader& block) {
    const std::string path = block.text(), graph = block.text();
    failed_ = block.text();
    inputs_ = tensors(block);
    outputs_ = tensors(block);
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error("onnxruntime's library cannot be loaded: " + std::string(dlerror()));
    auto* base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library_, "OrtGetApiBase"));
    api_ = base ? base()->get_api(API_VERSION) : nullptr;
    if (!api_) throw std::runtime_error(path + " is no library of onnxruntime 1.11 or newer");
    expect(at<Status (*)(int, const char*, void**)>(CREATE_ENV)(FATAL, "robotrl", &environment_), "environment");
    expect(at<Status (*)(void**)>(CREATE_SESSION_OPTIONS)(&options_), "options");
    // one thread: no pool that would spin
    expect(at<Status (*)(void*, int)>(SET_INTRA_OP_NUM_THREADS)(options_, 1), "threads");
    expect(at<Status (*)(void*, int)>(SET_INTER_OP_NUM_THREADS)(options_, 1), "threads");
    expect(at<Status (*)(void*, const void*, size_t, void*, void**)>(CREATE_SESSION_FROM_ARRAY)(
               environment_, graph.data(), graph.size(), options_, &session_),
           "graph");
    expect(at<Status (*)(int, int, void**)>(CREATE_CPU_MEMORY_INFO)(DEVICE_ALLOCATOR, DEFAULT_MEMORY, &memory_), "memory");
    bind(inputs_, input_names_, input_values_);
    bind(outputs_, output_names_, output_values_);
}

OrtGraph::~OrtGraph() {
    if (!api_) return;
    for (const auto* values : {&input_values_, &output_values_})
        for (void* value : *values) at<Release>(RELEASE_VALUE)(value);
    if (memory_) at<Release>(RELEASE_MEMORY_INFO)(memory_);
    if (session_) at<Release>(RELEASE_SESSION)(session_);
    if (options_) at<Release>(RELEASE_SESSION_OPTIONS)(options_);
    if (environment_) at<Release>(RELEASE_ENV)(environment_);
}

void OrtGraph::bind(const std::vector<Tensor>& tensors, std::vector<const char*>& names, std::vector<void*>& values) {
    for (const Tensor& tensor : tensors) {
        void* value = nullptr;
        auto* floats = const_cast<float*>(tensor.floats.data());
        expect(at<Status (*)(const void*, void*, size_t, const int64_t*, size_t, int, void**)>(CREATE_TENSOR_WITH_DATA)(
                   memory_, floats, tensor.floats.size() * sizeof(float), tensor.shape.data(), tensor.shape.size(), FLOAT32,
                   &value),
               "tensor");
        names.push_back(tensor.name.c_str());
        values.push_back(value);
    }
}

bool OrtGraph::run() {
    void* status = at<Status (*)(void*, const void*, const char* const*, const void* const*, size_t, const char* const*, size_t,
                                 void**)>(RUN)(session_, nullptr, input_names_.data(), input_values_.data(),
                                               input_values_.size(), output_names_.data(), output_values_.size(),
                                               output_values_.data());
    if (!status) return true;
    why_ = failed_ + text_of(status);
    return false;
}

void OrtGraph::expect(void* status, const char* what) {
    if (status) throw std::runtime_error("onnxruntime refuses the " + std::string(what) + ": " + text_of(status));
}

std::string OrtGraph::text_of(void* status) {
    std::string found = at<const char* (*)(const void*)>(GET_ERROR_MESSAGE)(status);
    at<Release>(RELEASE_STATUS)(status);
    found = found.substr(0, found.find('\n'));
    if (found.size() <= MOST_REASON) return found;
    size_t end = MOST_REASON;
    while (end > 0 && (static_cast<unsigned char>(found[end]) & 0xC0) == 0x80) --end;  // not inside a character
    return found.substr(0, end);
}

}  // namespace robotrl
