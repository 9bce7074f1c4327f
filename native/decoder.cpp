/* A step through all layers of a decoder: one parallel region, whose threads go from stage to stage together. */
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "attention.h"
#include "headway.h"
#include "levels.h"
#include "pool.h"
#include "product_work.h"

using namespace headway;

struct headway_decoder {
    std::vector<headway_layer> layers;
    int64_t hidden;
    float norm_eps;
    const ProductKernels *kernels;
    headway_attention *attention;
    Stages stages;

    /* Of the step that runs. */
    float *x;
    int64_t rows;
    Inputs hidden_inputs, attended_inputs, gated_inputs;
    Memory qkv, attended, gated, scratch;
    int64_t scratch_floats;

    explicit headway_decoder(int threads) : stages(threads) {}
    void make(int64_t row_count);
    void run(int worker);
    Ahead ahead(const Walk &walk, const Weights &weights) const;
    void multiply(Walk &walk, const Weights &weights, const float *from, const float *norm, Inputs &inputs,
                  Ending ending, float *out, Ahead &now, Ahead &next);
};

void headway_decoder::make(int64_t row_count) {
    const headway_layer &first = layers[0]; /* all layers have its sizes */
    rows = row_count;
    hidden_inputs.make(rows, first.qkv->padded_inputs);
    attended_inputs.make(rows, first.o->padded_inputs);
    gated_inputs.make(rows, first.down->padded_inputs);
    qkv.get(rows * columns_of(*first.qkv));
    attended.get(rows * first.o->inputs);
    gated.get(rows * columns_of(*first.gate_up));
    scratch_floats = std::max(std::max(first.qkv->padded_inputs, first.o->padded_inputs), first.down->padded_inputs);
    scratch.get(scratch_floats * attention->pool->threads());
    stages.reset();
}

Ahead headway_decoder::ahead(const Walk &walk, const Weights &weights) const {
    return Ahead(weights, Cut(weights, rows, attention->pool->threads()), walk);
}

/* `now` and `next`: the weights of this product and of the one after it, which are read while others still work. */
void headway_decoder::multiply(Walk &walk, const Weights &weights, const float *from, const float *norm,
                               Inputs &inputs, Ending ending, float *out, Ahead &now, Ahead &next) {
    float *room = scratch.get(0) + walk.worker() * scratch_floats;
    const auto round = [&](int piece) {
        round_piece(*kernels, weights, from, false, norm, norm_eps, piece, inputs, room);
    };
    walk.share(rounding_pieces(rows), round, now);
    const Cut cut(weights, rows, attention->pool->threads());
    walk.share(
        cut.count, [&](int piece) { multiply_piece(*kernels, weights, cut, piece, inputs, ending, out); }, next);
}

void headway_decoder::run(int worker) {
    Walk walk(stages, worker);
    Ahead qkv_ahead = ahead(walk, *layers[0].qkv);
    for (size_t i = 0; i < layers.size(); i++) {
        const headway_layer &layer = layers[i];
        Ahead o = ahead(walk, *layer.o), gate_up = ahead(walk, *layer.gate_up), down = ahead(walk, *layer.down);
        multiply(walk, *layer.qkv, x, layer.attention_norm, hidden_inputs, PLAIN, qkv.get(0), qkv_ahead, o);
        const LayerAttention call = {static_cast<int>(i), HEADWAY_FP32, reinterpret_cast<const char *>(qkv.get(0)),
                                     attended.get(0)};
        attention->run(walk, call, o);
        multiply(walk, *layer.o, attended.get(0), nullptr, attended_inputs, ADDED, x, o, gate_up);
        multiply(walk, *layer.gate_up, x, layer.mlp_norm, hidden_inputs, GATED, gated.get(0), gate_up, down);
        qkv_ahead = ahead(walk, *layers[i + 1 < layers.size() ? i + 1 : 0].qkv);
        multiply(walk, *layer.down, gated.get(0), nullptr, gated_inputs, ADDED, x, down, qkv_ahead);
    }
}

/* -- the C interface */

int32_t headway_layer_bytes(void) { return sizeof(headway_layer); }

headway_decoder *headway_decoder_open(const headway_layer *layers, int32_t count, float norm_eps, int32_t dots,
                                      headway_attention *attention) {
    const ProductKernels *kernels = products_of(dots);
    if (!kernels || count < 1) return nullptr;
    try {
        std::unique_ptr<headway_decoder> made(new headway_decoder(attention->pool->threads()));
        made->layers.assign(layers, layers + count);
        made->hidden = layers[0].qkv->inputs;
        made->norm_eps = norm_eps;
        made->kernels = kernels;
        made->attention = attention;
        return made.release();
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void headway_decoder_close(headway_decoder *decoder) { delete decoder; }

int32_t headway_decoder_step(headway_decoder *decoder, float *x, int64_t rows) {
    if (rows != static_cast<int64_t>(decoder->attention->enters.size())) return -2;
    if (rows < 1) return 0;
    try {
        decoder->make(rows);
    } catch (const std::bad_alloc &) {
        return -1;
    }
    decoder->x = x;
    decoder->attention->pool->run(
        [](void *context, int worker) { static_cast<headway_decoder *>(context)->run(worker); }, decoder, false);
    return 0;
}
