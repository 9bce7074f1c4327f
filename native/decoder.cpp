/* A decoder's step, from tokens to logits: one parallel region, whose threads go from stage to stage together. */
#include <algorithm>
#include <cstring>
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
    headway_decoder_shape shape;
    int64_t hidden;
    const ProductKernels *kernels;
    headway_attention *attention;
    Stages stages;

    /* Of the step that runs. */
    int64_t rows, asked_rows, logit_rows;
    const int32_t *tokens, *asked;
    float *asked_hidden, *logits;
    int32_t *largest;
    uint8_t *spoiled;
    Inputs hidden_inputs, attended_inputs, gated_inputs, head_inputs;
    Memory x, qkv, attended, gated, scratch;
    int64_t scratch_floats;

    explicit headway_decoder(int threads) : stages(threads) {}
    bool sound() const;
    void make();
    void run(int worker);
    Ahead ahead(const Walk &walk, const Weights &weights, int64_t row_count) const;
    void multiply(Walk &walk, const Weights &weights, const float *from, const float *norm, Inputs &inputs,
                  Ending ending, float *out, Ahead &now, Ahead &next);
    void embed(int piece);
    void leave(int piece);
    void look(int row);
};

namespace {

/* Rows that are embedded, or looked at, at a time. */
const int64_t ROWS = 4;

int pieces(int64_t rows) { return static_cast<int>((rows + ROWS - 1) / ROWS); }

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

bool all_finite(const float *x, int64_t count) {
    const uint32_t all = 0x7f800000;
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) found |= (bits_of(x[i]) & all) == all;
    return !found;
}

/* The first place of the largest of x, of which none is NaN. */
int32_t place_of_largest(const float *x, int64_t count) {
    enum { LANES = 16 };
    float lanes[LANES], largest = x[0];
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = x[0];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    for (; i < count; i++) largest = std::max(largest, x[i]);
    for (int lane = 0; lane < LANES; lane++) largest = std::max(largest, lanes[lane]);
    int64_t place = 0;
    while (place + 1 < count && x[place] != largest) place++;
    return static_cast<int32_t>(place);
}

} // namespace

bool headway_decoder::sound() const {
    if (rows != static_cast<int64_t>(attention->enters.size()) || logit_rows > asked_rows) return false;
    for (int64_t row = 0; row < rows; row++)
        if (tokens[row] < 0 || tokens[row] >= shape.vocab) return false;
    for (int64_t i = 0; i < asked_rows; i++)
        if (asked[i] < 0 || asked[i] >= rows) return false;
    return true;
}

void headway_decoder::make() {
    const headway_layer &first = layers[0]; /* all layers have its sizes */
    hidden_inputs.make(rows, first.qkv->padded_inputs);
    attended_inputs.make(rows, first.o->padded_inputs);
    gated_inputs.make(rows, first.down->padded_inputs);
    head_inputs.make(logit_rows, shape.head->padded_inputs);
    x.get(rows * hidden);
    qkv.get(rows * columns_of(*first.qkv));
    attended.get(rows * first.o->inputs);
    gated.get(rows * columns_of(*first.gate_up));
    scratch_floats = std::max(std::max(first.qkv->padded_inputs, first.o->padded_inputs), first.down->padded_inputs);
    scratch.get(scratch_floats * attention->pool->threads());
    stages.reset();
}

Ahead headway_decoder::ahead(const Walk &walk, const Weights &weights, int64_t row_count) const {
    return Ahead(weights, Cut(weights, row_count, attention->pool->threads()), walk);
}

/* `now` and `next`: the weights of this product and of the one after it, which are read while others still work. */
void headway_decoder::multiply(Walk &walk, const Weights &weights, const float *from, const float *norm,
                               Inputs &inputs, Ending ending, float *out, Ahead &now, Ahead &next) {
    float *room = scratch.get(0) + walk.worker() * scratch_floats;
    const auto round = [&](int piece) {
        round_piece(*kernels, weights, from, false, norm, shape.norm_eps, piece, inputs, room);
    };
    walk.share(rounding_pieces(inputs.rows), round, now);
    const Cut cut(weights, inputs.rows, attention->pool->threads());
    walk.share(
        cut.count, [&](int piece) { multiply_piece(*kernels, weights, cut, piece, inputs, ending, out); }, next);
}

void headway_decoder::embed(int piece) {
    for (int64_t row = piece * ROWS; row < std::min(rows, (piece + 1) * ROWS); row++) {
        float *to = x.get(0) + row * hidden;
        const int64_t from = tokens[row] * hidden;
        if (shape.format == HEADWAY_FP32) {
            std::memcpy(to, static_cast<const float *>(shape.embedding) + from, static_cast<size_t>(hidden) * 4);
            continue;
        }
        const uint16_t *upper = static_cast<const uint16_t *>(shape.embedding) + from;
        for (int64_t i = 0; i < hidden; i++) {
            const uint32_t bits = static_cast<uint32_t>(upper[i]) << 16;
            std::memcpy(to + i, &bits, sizeof bits);
        }
    }
}

/* Rows of the step are looked at, and those that are asked for leave. */
void headway_decoder::leave(int piece) {
    for (int64_t row = piece * ROWS; row < std::min(rows, (piece + 1) * ROWS); row++)
        spoiled[row] = !all_finite(x.get(0) + row * hidden, hidden);
    for (int64_t i = piece * ROWS; i < std::min(asked_rows, (piece + 1) * ROWS); i++)
        std::memcpy(asked_hidden + i * hidden, x.get(0) + asked[i] * hidden, static_cast<size_t>(hidden) * 4);
}

void headway_decoder::look(int row) {
    const float *mine = logits + row * shape.vocab;
    spoiled[rows + row] = !all_finite(mine, shape.vocab);
    largest[row] = spoiled[rows + row] ? 0 : place_of_largest(mine, shape.vocab);
}

void headway_decoder::run(int worker) {
    Walk walk(stages, worker);
    Ahead first = ahead(walk, *layers[0].qkv, rows), none;
    walk.share(pieces(rows), [&](int piece) { embed(piece); }, first);
    float *const states = x.get(0);
    for (size_t i = 0; i < layers.size(); i++) {
        const headway_layer &layer = layers[i];
        const bool last = i + 1 == layers.size();
        Ahead o = ahead(walk, *layer.o, rows), gate_up = ahead(walk, *layer.gate_up, rows);
        Ahead down = ahead(walk, *layer.down, rows);
        multiply(walk, *layer.qkv, states, layer.attention_norm, hidden_inputs, PLAIN, qkv.get(0), first, o);
        const LayerAttention call = {static_cast<int>(i), HEADWAY_FP32, reinterpret_cast<const char *>(qkv.get(0)),
                                     attended.get(0)};
        attention->run(walk, call, o);
        multiply(walk, *layer.o, attended.get(0), nullptr, attended_inputs, ADDED, states, o, gate_up);
        multiply(walk, *layer.gate_up, states, layer.mlp_norm, hidden_inputs, GATED, gated.get(0), gate_up, down);
        if (!last) first = ahead(walk, *layers[i + 1].qkv, rows);
        else first = logit_rows ? ahead(walk, *shape.head, logit_rows) : none;
        multiply(walk, *layer.down, gated.get(0), nullptr, gated_inputs, ADDED, states, down, first);
    }
    walk.share(pieces(std::max(rows, asked_rows)), [&](int piece) { leave(piece); }, first);
    if (!logit_rows) return;
    multiply(walk, *shape.head, asked_hidden, shape.norm, head_inputs, PLAIN, logits, first, none);
    walk.share(static_cast<int>(logit_rows), [&](int row) { look(row); });
}

/* -- the C interface */

int32_t headway_layer_bytes(void) { return sizeof(headway_layer); }

int32_t headway_decoder_bytes(void) { return sizeof(headway_decoder_shape); }

headway_decoder *headway_decoder_open(const headway_decoder_shape *shape, int32_t dots, headway_attention *attention) {
    const ProductKernels *kernels = products_of(dots);
    if (!kernels || shape->layers < 1) return nullptr;
    try {
        std::unique_ptr<headway_decoder> made(new headway_decoder(attention->pool->threads()));
        made->layers.assign(shape->layer, shape->layer + shape->layers);
        made->shape = *shape;
        made->hidden = made->layers[0].qkv->inputs;
        made->kernels = kernels;
        made->attention = attention;
        return made.release();
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void headway_decoder_close(headway_decoder *decoder) { delete decoder; }

int32_t headway_decoder_step(headway_decoder *decoder, const int32_t *tokens, int64_t rows, const int32_t *asked,
                             int64_t asked_rows, int64_t logit_rows, float *hidden, float *logits, int32_t *largest,
                             uint8_t *spoiled) {
    decoder->rows = rows, decoder->asked_rows = asked_rows, decoder->logit_rows = logit_rows;
    decoder->tokens = tokens, decoder->asked = asked;
    decoder->asked_hidden = hidden, decoder->logits = logits;
    decoder->largest = largest, decoder->spoiled = spoiled;
    if (!decoder->sound()) return -2;
    if (rows < 1) return 0;
    try {
        decoder->make();
    } catch (const std::bad_alloc &) {
        return -1;
    }
    decoder->attention->pool->run(
        [](void *context, int worker) { static_cast<headway_decoder *>(context)->run(worker); }, decoder, false);
    return static_cast<int32_t>(std::count(spoiled, spoiled + rows + logit_rows, 1));
}
