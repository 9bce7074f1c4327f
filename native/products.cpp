/* Products of int8 weights and inputs: packing, and the work of a product shared out among threads. */
#include <algorithm>
#include <cmath>
#include <cstring>

#include "headway.h"
#include "levels.h"
#include "pool.h"
#include "product_work.h"

using namespace headway;

namespace {

/* A sum of products of low digits and weights fits into 32 bits: 127 * (127 * inputs + inputs / 16) is below 2^31, since
 * only a step with a far input holds digits of -128. So does -128 times the sum of digits. */
const int64_t MOST_INPUTS = 131072;
/* A thread's part of a product is cut into so many pieces at least, so that threads end together. */
const int PIECES_PER_THREAD = 4;
/* No fewer rows than that are a piece, where they are cut at all, and they are a multiple of those that are multiplied at a
 * time. */
const int64_t PIECE_ROWS = 24, TILE_ROWS = 12;
/* Weights that are read ahead of a product: they and a thread's own numbers stay in its second cache. */
const int64_t AHEAD_BYTES = 128 << 10;
/* Below so many bytes of weights, multiplied by rows, waking another thread costs more than it gives. */
const int64_t LEAST_SHARED = 1 << 15;

float wide(const void *values, int32_t format, int64_t i) {
    if (format == HEADWAY_FP32) return static_cast<const float *>(values)[i];
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(values)[i]) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

/* Which row of the weight is a panel's column; none, if negative. */
int64_t row_of(const Weights &weights, int64_t panel, int column) {
    const int64_t half = weights.outputs / 2, gate = panel * HALF + column % HALF;
    if (weights.gated) return gate < half ? gate + (column < HALF ? 0 : half) : -1;
    const int64_t row = panel * PANEL + column;
    return row < weights.outputs ? row : -1;
}

/* To IEEE 754's half precision, to nearest, ties to even; magnitudes beyond its largest finite number become that. */
uint16_t to_half(float x) {
    uint32_t bits;
    const float scaled = std::min(std::fabs(x), 65504.0f) * 0x1p-112f; /* its exponents are then those of a half */
    std::memcpy(&bits, &scaled, sizeof bits);
    const uint32_t half = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
    return static_cast<uint16_t>(half | (x < 0 ? 0x8000 : 0));
}

float from_half(uint16_t half) {
    const uint32_t bits = (half & 0x7fffu) << 13;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return half & 0x8000 ? x * -0x1p112f : x * 0x1p112f;
}

/* How many steps lead from the least to the largest of a group: 15, or fewer if all of it lies on such a grid, within a
 * twentieth of a step (numbers in bf16 are that near). What was rounded to 4 bits by another rule (GGUF's Q4_0, Q4_K) and
 * does not reach both ends of its grid keeps its steps so. */
int steps_of(const float *values, int count, float low, float high) {
    if (count < GROUP) return 15; /* too few to tell */
    for (int steps = 15; steps > 1 && low < high; steps--) {
        const float scale = (high - low) / static_cast<float>(steps);
        const auto off_grid = [=](float x) {
            const float at = (x - low) / scale;
            return std::fabs(at - std::nearbyint(at)) > 0.05f;
        };
        if (std::none_of(values, values + count, off_grid)) return steps;
    }
    return 15;
}

/* Rounds a row of the weight into its column of the panels, group by group: what was rounded to 4 bits before, in groups
 * of that size, comes out as it was, but for the half precision of scales and least values. */
void pack_groups(const Weights &to, int64_t column, const void *weight, int32_t format, int64_t row) {
    uint8_t *at = reinterpret_cast<uint8_t *>(const_cast<int8_t *>(to.panel_weights)) + column / PANEL * to.panel_bytes;
    for (int64_t first = 0; first < to.inputs; first += GROUP, at += GROUP_BYTES) {
        const int count = static_cast<int>(std::min<int64_t>(GROUP, to.inputs - first));
        float values[GROUP], low = INFINITY, high = -INFINITY;
        for (int k = 0; k < count; k++) {
            values[k] = wide(weight, format, row * to.inputs + first + k);
            low = std::min(low, values[k]), high = std::max(high, values[k]);
        }
        uint16_t *scales = reinterpret_cast<uint16_t *>(at + PANEL * GROUP / 2) + column % PANEL;
        scales[0] = to_half((high - low) / static_cast<float>(steps_of(values, count, low, high)));
        scales[PANEL] = to_half(low);
        const float scale = from_half(scales[0]), least = from_half(scales[PANEL]);
        for (int k = 0; k < count; k++) {
            const float steps = scale > 0 ? (values[k] - least) / scale : 0.0f;
            const long whole = std::lrint(std::min(15.0f, std::max(0.0f, steps)));
            const int pair = k / (2 * STEP), second = k / STEP % 2;
            at[(pair * PANEL + column % PANEL) * STEP + k % STEP] |= static_cast<uint8_t>(whole << 4 * second);
        }
    }
    const_cast<float *>(to.scales)[column] = 1.0f;
}

/* Rounds a row of the weight into its column of the panels. */
void pack_row(const Weights &to, int64_t column, const void *weight, int32_t format, int64_t row) {
    int8_t *packed = const_cast<int8_t *>(to.panel_weights) + column / PANEL * to.panel_bytes;
    packed += column % PANEL / HALF * HALF * to.padded_inputs + column % HALF * STEP;
    float top = 1e-30f;
    for (int64_t k = 0; k < to.inputs; k++) top = std::max(top, std::fabs(wide(weight, format, row * to.inputs + k)));
    const float factor = 127.0f / top;
    for (int64_t k = 0; k < to.inputs; k++) {
        const float scaled = wide(weight, format, row * to.inputs + k) * factor;
        const long whole = std::lrint(std::min(127.0f, std::max(-127.0f, scaled)));
        packed[k / STEP * HALF * STEP + k % STEP] = static_cast<int8_t>(whole ^ -128);
    }
    const_cast<float *>(to.scales)[column] = top / 127.0f;
}

} // namespace

namespace headway {

void Inputs::make(int64_t row_count, int64_t padded_inputs) {
    const int64_t groups = padded_inputs / GROUP, most_far = padded_inputs / STEP / STEPS_PER_FAR;
    const int64_t row_bytes = padded_inputs + sizeof(RowScale) + most_far * sizeof(Far) + groups * sizeof(float);
    const int64_t need = row_count * row_bytes + 64;
    if (need > size) {
        memory.reset();
        size = 0;
        memory.reset(new char[static_cast<size_t>(need)]);
        size = need;
    }
    rows = row_count;
    char *at = aligned(memory.get());
    RowScale *scales = reinterpret_cast<RowScale *>(at + rows * padded_inputs);
    Far *far = reinterpret_cast<Far *>(scales + rows);
    float *sums = reinterpret_cast<float *>(far + rows * most_far);
    rounded = {reinterpret_cast<int8_t *>(at), padded_inputs, groups, most_far, scales, far, sums};
}

Cut::Cut(const Weights &weights, int64_t rows, int threads) {
    const int64_t wanted = static_cast<int64_t>(threads) * PIECES_PER_THREAD;
    /* Few rows: halves of panels, where that makes the pieces more equal. */
    halves = rows < 2 * PIECE_ROWS && !weights.gated && weights.panels < 4 * wanted ? 2 : 1;
    const int64_t columns = halves > 1 ? (weights.outputs + HALF - 1) / HALF : weights.panels;
    const int64_t parts = std::max<int64_t>(1, std::min((2 * wanted + columns - 1) / columns, rows / PIECE_ROWS));
    const int64_t even = (rows + parts - 1) / parts;
    rows_each = static_cast<int>(parts > 1 ? (even + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS : even);
    row_pieces = static_cast<int>((rows + rows_each - 1) / rows_each);
    count = static_cast<int>(columns) * row_pieces;
}

Ahead::Ahead(const Weights &weights, const Cut &cut, const Walk &walk) {
    const int first = walk.first(cut.count) / cut.row_pieces, columns = cut.count / cut.row_pieces;
    if (first >= columns) return;
    const int64_t column_bytes = weights.panel_bytes / cut.halves;
    at_ = weights.panel_weights + first * column_bytes;
    end_ = at_ + std::min(AHEAD_BYTES, (columns - first) * column_bytes);
}

void multiply_piece(const ProductKernels &kernels, const Weights &weights, const Cut &cut, int piece,
                    const Inputs &inputs, Ending ending, float *out) {
    const int column = piece / cut.row_pieces;
    const int64_t row = static_cast<int64_t>(piece % cut.row_pieces) * cut.rows_each;
    Block block;
    block.weights = &weights;
    block.inputs = inputs.rounded.from(row);
    block.panel = column / cut.halves;
    block.rows = static_cast<int>(std::min<int64_t>(cut.rows_each, inputs.rows - row));
    block.first = column % cut.halves * HALF;
    block.columns = PANEL / cut.halves;
    block.ending = weights.gated ? GATED : ending;
    block.stride = columns_of(weights);
    block.out = out + row * block.stride;
    kernels.multiply(block);
}

void round_piece(const ProductKernels &kernels, const Weights &weights, const void *x, bool bf16, const float *norm,
                 float eps, int piece, Inputs &inputs, float *scratch) {
    const int64_t first = static_cast<int64_t>(piece) * ROUNDED_ROWS;
    for (int64_t row = first; row < std::min<int64_t>(first + ROUNDED_ROWS, inputs.rows); row++) {
        Rounding rounding;
        rounding.x = static_cast<const char *>(x) + row * weights.inputs * (bf16 ? 2 : 4);
        rounding.norm = norm;
        rounding.eps = eps;
        rounding.size = weights.inputs;
        rounding.bf16 = bf16;
        rounding.in_groups = weights.four_bits;
        rounding.to = inputs.rounded.from(row);
        rounding.scratch = scratch;
        kernels.round(rounding);
    }
}

} // namespace headway

struct headway_products {
    const ProductKernels *kernels;
    Pool *pool;
    Inputs inputs;
    std::unique_ptr<char[]> scratch;
    int64_t scratch_bytes = 0, padded = 0;
    Stages stages;

    explicit headway_products(Pool &of) : pool(&of), stages(of.threads()) {}

    /* Of the product that runs. */
    const Weights *weights;
    const void *x;
    const float *norm;
    float eps;
    bool bf16;
    Ending ending;
    float *out;

    float *scratch_of(int worker) {
        return reinterpret_cast<float *>(aligned(scratch.get()) + worker * padded * 4);
    }
    void make(int64_t rows, int64_t padded_inputs);
    void run(int worker);
};

void headway_products::make(int64_t rows, int64_t padded_inputs) {
    padded = padded_inputs;
    inputs.make(rows, padded);
    const int64_t need = padded * 4 * pool->threads() + 64;
    if (need <= scratch_bytes) return;
    scratch_bytes = 0;
    scratch.reset(new char[static_cast<size_t>(need)]);
    scratch_bytes = need;
}

void headway_products::run(int worker) {
    Walk walk(stages, worker);
    const Cut cut(*weights, inputs.rows, pool->threads());
    Ahead own(*weights, cut, walk);
    const auto round = [&](int piece) {
        round_piece(*kernels, *weights, x, bf16, norm, eps, piece, inputs, scratch_of(worker));
    };
    walk.share(rounding_pieces(inputs.rows), round, own);
    walk.share(cut.count, [&](int piece) { multiply_piece(*kernels, *weights, cut, piece, inputs, ending, out); });
}

/* -- the C interface */

headway_weights *headway_weights_open(int64_t outputs, int64_t inputs, int32_t gated, int32_t bits) {
    if (inputs > MOST_INPUTS || (bits != 8 && bits != 4)) return nullptr;
    headway_weights *made = new (std::nothrow) headway_weights;
    if (!made) return nullptr;
    made->inputs = inputs;
    made->padded_inputs = (inputs + INPUTS - 1) / INPUTS * INPUTS;
    made->outputs = outputs;
    made->panels = gated ? (outputs / 2 + HALF - 1) / HALF : (outputs + PANEL - 1) / PANEL;
    made->gated = gated;
    made->four_bits = bits == 4;
    made->panel_bytes = bits == 4 ? made->padded_inputs / GROUP * GROUP_BYTES : made->padded_inputs * PANEL;
    made->bytes = made->panels * (made->panel_bytes + PANEL * 8);
    return made;
}

void headway_weights_pack(headway_weights *to, void *memory, const void *weight, int32_t format, const float *bias) {
    char *at = static_cast<char *>(memory);
    const int64_t columns = to->panels * PANEL;
    float *floats = reinterpret_cast<float *>(at + to->panels * to->panel_bytes);
    to->panel_weights = reinterpret_cast<int8_t *>(at);
    to->scales = floats;
    to->biases = floats + columns;
    for (int64_t column = 0; column < columns; column++) {
        const int64_t row = row_of(*to, column / PANEL, static_cast<int>(column % PANEL));
        if (row < 0) continue;
        (to->four_bits ? pack_groups : pack_row)(*to, column, weight, format, row);
        if (bias) floats[columns + column] = bias[row];
    }
}

void headway_weights_free(headway_weights *weights) { delete weights; }

int64_t headway_weights_bytes(const headway_weights *weights) { return weights->bytes; }

headway_products *headway_products_open(int32_t dots, headway_pool *pool) {
    const ProductKernels *kernels = products_of(dots);
    headway_products *made = kernels ? new (std::nothrow) headway_products(pool->pool) : nullptr;
    if (made) made->kernels = kernels;
    return made;
}

void headway_products_close(headway_products *products) { delete products; }

int32_t headway_products_multiply(headway_products *products, const headway_weights *weights, const void *x,
                                  int32_t format, const float *norm, float norm_eps, int64_t rows, int32_t ending,
                                  float *out) {
    if (rows < 1) return 0;
    try {
        products->make(rows, weights->padded_inputs);
    } catch (const std::bad_alloc &) {
        return -1;
    }
    products->weights = weights;
    products->x = x;
    products->norm = norm;
    products->eps = norm_eps;
    products->bf16 = format == HEADWAY_BF16;
    products->ending = ending == HEADWAY_GELU ? GELU : ending == HEADWAY_ADDED ? ADDED : PLAIN;
    products->out = out;
    products->stages.reset();
    products->pool->run([](void *context, int worker) { static_cast<headway_products *>(context)->run(worker); },
                        products, rows * weights->bytes < LEAST_SHARED);
    return 0;
}
