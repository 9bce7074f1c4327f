/* Compares each level that this machine can run with `generic`, over random numbers: for processors on which the tests
 * are not run, under an emulator (see tools/check_builds.sh). Prints the largest differences; ends with 1 if one is too
 * large. The tests compare with torch, and more. */
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "headway.h"

namespace {

typedef std::vector<float> Floats;

std::mt19937 engine(20261130);
bool failed = false;

Floats random_floats(size_t count) {
    std::normal_distribution<float> normal;
    Floats made(count);
    for (float &x : made) x = normal(engine);
    return made;
}

/* The largest difference, in units of the largest number. */
float difference(const Floats &a, const Floats &b) {
    float most = 1e-30f, apart = 0.0f;
    for (size_t i = 0; i < a.size(); i++) {
        most = std::fmax(most, std::fabs(a[i]));
        const float d = std::fabs(a[i] - b[i]);
        apart = d <= apart ? apart : d; /* NaN stays */
    }
    return apart / most;
}

void judge(const char *what, int level, float apart, float most) {
    const bool wrong = !(apart <= most);
    failed |= wrong;
    std::printf("%-34s level %2d  %.1e%s\n", what, level, static_cast<double>(apart), wrong ? "  TOO LARGE" : "");
}

/* -- products */

struct Product {
    int64_t rows, outputs, inputs;
    int32_t bits, gated, ending;
};

Floats multiplied(int32_t dots, headway_pool *pool, const Product &p, const Floats &x, const Floats &w, const Floats &b) {
    headway_weights *weights = headway_weights_open(p.outputs, p.inputs, p.gated, p.bits);
    std::vector<char> memory(static_cast<size_t>(headway_weights_bytes(weights)) + 64);
    char *at = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    headway_weights_pack(weights, at, w.data(), HEADWAY_FP32, b.data());
    headway_products *products = headway_products_open(dots, pool);
    Floats out(static_cast<size_t>(p.rows * (p.gated ? p.outputs / 2 : p.outputs)), 0.5f);
    if (headway_products_multiply(products, weights, x.data(), HEADWAY_FP32, nullptr, 0.0f, p.rows, p.ending, out.data()))
        failed = true;
    headway_products_close(products);
    headway_weights_free(weights);
    return out;
}

void check_products(headway_pool *pool, int32_t dots) {
    const Product products[] = {{1, 96, 64, 8, 0, HEADWAY_PLAIN},   {7, 200, 576, 8, 0, HEADWAY_ADDED},
                                {33, 130, 100, 8, 0, HEADWAY_GELU}, {13, 256, 1536, 8, 1, HEADWAY_PLAIN},
                                {1, 96, 64, 4, 0, HEADWAY_PLAIN},   {29, 256, 576, 4, 1, HEADWAY_PLAIN}};
    float most = 0.0f;
    for (const Product &p : products) {
        Floats x = random_floats(static_cast<size_t>(p.rows * p.inputs));
        x[3] = 400.0f; /* an outlier */
        const Floats w = random_floats(static_cast<size_t>(p.outputs * p.inputs));
        const Floats b = random_floats(static_cast<size_t>(p.outputs));
        most = std::fmax(most, difference(multiplied(HEADWAY_DOTS_GENERIC, pool, p, x, w, b),
                                          multiplied(dots, pool, p, x, w, b)));
    }
    judge("products", dots, most, 1e-5f);
}

/* -- attention */

enum { HEADS = 9, KV_HEADS = 3, DIM = 64, BLOCK = 16, BLOCKS = 40 };

Floats attended(int32_t level, headway_pool *pool, int32_t format, const Floats &qkv, const std::vector<headway_span> &spans,
                const std::vector<int32_t> &blocks, const Floats &cosines, const Floats &sines) {
    std::vector<char> state(static_cast<size_t>(2 * KV_HEADS) * BLOCKS * BLOCK * DIM * 4);
    headway_attention_shape shape;
    std::memset(&shape, 0, sizeof shape);
    shape.layers = 1, shape.heads = HEADS, shape.kv_heads = KV_HEADS, shape.head_dim = DIM, shape.block_tokens = BLOCK;
    shape.state_format = format, shape.slots = BLOCKS * BLOCK, shape.state = state.data();
    shape.cosines = cosines.data(), shape.sines = sines.data(), shape.rope_positions = 512, shape.scale = 0.125f;
    headway_attention *attention = headway_attention_open(&shape, level, pool);
    int64_t rows = 0;
    for (const headway_span &span : spans) rows += span.count;
    Floats out(static_cast<size_t>(rows * HEADS * DIM));
    if (headway_attention_step(attention, spans.data(), static_cast<int32_t>(spans.size()), blocks.data(),
                               static_cast<int64_t>(blocks.size())))
        failed = true;
    headway_attention_layer(attention, 0, qkv.data(), HEADWAY_FP32, out.data());
    headway_attention_close(attention);
    return out;
}

void check_attention(headway_pool *pool, int32_t level) {
    const std::vector<headway_span> spans = {{0, 300, 0}, {0, 1, 19}, {0, 77, 20}};
    std::vector<int32_t> blocks;
    for (int32_t i = 0; i < BLOCKS; i++) blocks.push_back(BLOCKS - 1 - i);
    const Floats qkv = random_floats(378 * (HEADS + 2 * KV_HEADS) * DIM);
    Floats cosines, sines;
    for (int position = 0; position < 512; position++)
        for (int d = 0; d < DIM; d++) {
            const double angle = position * std::pow(10000.0, -2.0 * (d % (DIM / 2)) / DIM);
            cosines.push_back(static_cast<float>(std::cos(angle)));
            sines.push_back(static_cast<float>(d < DIM / 2 ? -std::sin(angle) : std::sin(angle)));
        }
    for (int32_t format : {HEADWAY_FP32, HEADWAY_BF16}) {
        const Floats wanted = attended(HEADWAY_GENERIC, pool, format, qkv, spans, blocks, cosines, sines);
        const Floats found = attended(level, pool, format, qkv, spans, blocks, cosines, sines);
        judge(format == HEADWAY_FP32 ? "attention, fp32 state" : "attention, bf16 state", level, difference(wanted, found),
              1e-5f);
    }
}

} // namespace

int main() {
    headway_pool *pool = headway_pool_open(2, 10);
    for (int32_t level = 2; level <= headway_levels(); level *= 2)
        if (headway_levels() & level) check_attention(pool, level);
    for (int32_t dots = 2; dots <= headway_dots(); dots *= 2)
        if (headway_dots() & dots) check_products(pool, dots);
    headway_pool_close(pool);
    return failed;
}
