// A flow policy as plain loops: what one would write by hand for a robot, and the peer of the latency bench.
//
// Compiled by benchmarks/latency/bench.py with g++ -O3 -march=native. Weights come as one flat float32 file, each layer's
// matrix stored input by input, so that the inner loop runs over outputs and the compiler can vectorise it without
// changing the order of sums. The features of the denoising time are constants, one row a step.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

struct Layer {
    int in, out;
    std::vector<float> weight, bias;  // weight[i * out + o]
};

struct Network {
    int obs, chunk, action, features, steps;
    std::vector<float> in_scale, in_offset, time, out_scale, out_offset, low, high;
    std::vector<Layer> layers;
} net;

bool read(std::FILE* file, std::vector<float>& into, size_t count) {
    into.resize(count);
    return std::fread(into.data(), sizeof(float), count, file) == count;
}

void apply(const Layer& layer, const float* x, float* y) {
    const int out = layer.out;
    const float* w = layer.weight.data();
    std::copy(layer.bias.begin(), layer.bias.end(), y);
    for (int i = 0; i < layer.in; ++i, w += out) {
        const float xi = x[i];
        for (int o = 0; o < out; ++o) y[o] += w[o] * xi;
    }
}

}  // namespace

// Reads the weights; 0 when the file is whole.
extern "C" int flow_load(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) return 1;
    int head[6];
    bool whole = std::fread(head, sizeof(int), 6, file) == 6;
    net = Network{head[0], head[1], head[2], head[3], head[4], {}, {}, {}, {}, {}, {}, {}, {}};
    const int layers = head[5];
    whole = whole && read(file, net.in_scale, net.obs) && read(file, net.in_offset, net.obs);
    whole = whole && read(file, net.time, net.steps * net.features);
    whole = whole && read(file, net.out_scale, net.action) && read(file, net.out_offset, net.action);
    whole = whole && read(file, net.low, net.action) && read(file, net.high, net.action);
    for (int l = 0; whole && l < layers; ++l) {
        int shape[2];
        whole = std::fread(shape, sizeof(int), 2, file) == 2;
        Layer layer{shape[0], shape[1], {}, {}};
        whole = whole && read(file, layer.weight, size_t(layer.in) * layer.out) && read(file, layer.bias, layer.out);
        net.layers.push_back(layer);
    }
    std::fclose(file);
    return whole ? 0 : 2;
}

// One inference: raw observation and noise to clipped actions. Returns nanoseconds, without the caller's overhead.
extern "C" long flow_infer(const float* obs, const float* noise, float* actions) {
    const auto begun = std::chrono::steady_clock::now();
    float a[1024], b[1024];
    float x[256];
    std::copy(noise, noise + net.chunk, x);
    for (int k = 0; k < net.steps; ++k) {
        for (int i = 0; i < net.obs; ++i) a[i] = obs[i] * net.in_scale[i] + net.in_offset[i];
        std::copy(x, x + net.chunk, a + net.obs);
        const float* time = net.time.data() + k * net.features;
        std::copy(time, time + net.features, a + net.obs + net.chunk);
        float *from = a, *to = b;
        for (size_t l = 0; l < net.layers.size(); ++l) {
            apply(net.layers[l], from, to);
            if (l + 1 < net.layers.size())
                for (int o = 0; o < net.layers[l].out; ++o) to[o] = to[o] / (1.0f + std::exp(-to[o]));
            std::swap(from, to);
        }
        for (int i = 0; i < net.chunk; ++i) x[i] += from[i] / net.steps;
    }
    for (int i = 0; i < net.chunk; ++i) {
        const int j = i % net.action;
        actions[i] = std::min(std::max(x[i] * net.out_scale[j] + net.out_offset[j], net.low[j]), net.high[j]);
    }
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begun).count();
}
