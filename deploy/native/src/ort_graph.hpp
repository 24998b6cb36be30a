// A policy network on onnxruntime, through the C interface of the library that its Python package carries.
#pragma once

#include <string>
#include <vector>

#include "block.hpp"
#include "graph.hpp"

namespace robotrl {

class OrtGraph : public PolicyGraph {
   public:
    // Reads the library's path, the graph, the beginning of a failure in words, and names and shapes of inputs and outputs.
    // Throws std::runtime_error where the library or the graph cannot be used.
    explicit OrtGraph(BlockReader& block);
    ~OrtGraph() override;
    OrtGraph(const OrtGraph&) = delete;
    OrtGraph& operator=(const OrtGraph&) = delete;

    size_t inputs() const override { return inputs_.size(); }
    size_t outputs() const override { return outputs_.size(); }
    int64_t input_floats(size_t i) const override { return int64_t(inputs_[i].floats.size()); }
    int64_t output_floats(size_t i) const override { return int64_t(outputs_[i].floats.size()); }
    float* input(size_t i) override { return inputs_[i].floats.data(); }
    const float* output(size_t i) const override { return outputs_[i].floats.data(); }
    bool run() override;
    std::string why() const override { return why_; }

   private:
    struct Tensor {
        std::string name;
        std::vector<int64_t> shape;
        std::vector<float> floats;
    };
    static std::vector<Tensor> tensors(BlockReader& block);
    void bind(const std::vector<Tensor>& tensors, std::vector<const char*>& names, std::vector<void*>& values);
    // Throws where a call of the library failed.
    void expect(void* status, const char* what);
    std::string text_of(void* status);
    template <typename Function>
    Function at(size_t place) const {
        return reinterpret_cast<Function>(api_[place]);
    }

    void* const* api_ = nullptr;
    void *library_ = nullptr, *environment_ = nullptr, *options_ = nullptr, *session_ = nullptr, *memory_ = nullptr;
    std::vector<Tensor> inputs_, outputs_;
    std::vector<const char*> input_names_, output_names_;
    std::vector<void*> input_values_, output_values_;
    std::string failed_, why_;  // beginning of a failure in words, and the last one
};

}  // namespace robotrl
