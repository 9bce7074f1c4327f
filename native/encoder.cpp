/* An encoder's layers: norms after each block, GELU, int8 products (BERT and what came of it). */
#include "encoder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "encoder_plan.h"
#include "encoder_room.h"
#include "headway.h"
#include "levels.h"
#include "pool.h"
#include "product_work.h"

using namespace headway;

namespace {

/* Rows that go through the MLP at a time, so that its wide states stay in a core's cache. */
const int MLP_ROWS = 96;
/* How long the caller waits awake for the others at a step's end, and sleeps between looks after that. */
const int AWAKE_SPINS = 200, NAP_US = 20;

} // namespace

struct headway_encoder {
    headway_encoder_shape shape;
    std::vector<headway_encoder_layer> layers;
    const EncoderKernels *kernels;
    const ProductKernels *products;
    Pool *pool;

    EncoderPlan plan;
    std::unique_ptr<Stages> stages; /* before the layers, one for each, after them */
    std::unique_ptr<Kept[]> kept;
    std::unique_ptr<Room[]> rooms;

    /* Of the step that runs. */
    const int32_t *tokens, *lengths, *seconds;
    int inputs, result;
    bool unit;
    float *out;
    std::atomic<int> next_part{0}, parts_done{0};
    std::atomic<int64_t> spent_ns[HEADWAY_ENCODER_PARTS];
    int64_t *clock_ns = nullptr;

    bool sound() const;
    void make_room();
    void run(int worker);
    void run_parts(Kept &own, Room &room);
    void run_together(int worker, const Kept &shared, Room &room);
    void enter(const Part &part, const Kept &rows, Room &room);
    void embed(const Part &part, const Kept &rows, Room &room);
    void pass(size_t layer, const Part &part, const Kept &rows, Room &room);
    void attend(size_t layer, const Part &part, const Kept &rows, Room &room, bool firsts);
    int gather_firsts(const Part &part, const Kept &rows, Room &room) const;
    int first_of(const Part &part) const { return part.input + (starts(part.input) < part.row); }
    void mlp(const headway_encoder_layer &layer, Room &room, float *residual, int rows);
    void norm(float *x, const float *weight, const float *bias, const float *scale, int rows, Room &room, float *to);
    void leave(int input, const Kept &rows);
    void multiply(const Weights &weights, const Inputs &inputs, int first, int rows, Ending ending, float *to);
    void round_rows(const float *x, int64_t size, int rows, Inputs &to, Room &room);
    void round_row(const float *x, int64_t size, int row, Inputs &to, Room &room);
    int starts(int input) const { return plan.starts[static_cast<size_t>(input)]; }
};

/* -- once per step */

bool headway_encoder::sound() const {
    int64_t at = 0;
    for (int i = 0; i < inputs; i++) {
        if (lengths[i] < 1 || (shape.places && lengths[i] > shape.positions)) return false;
        for (int j = 0; j < lengths[i]; j++, at++)
            if (tokens[at] < 0 || tokens[at] >= shape.vocab) return false;
    }
    return true;
}

void headway_encoder::make_room() {
    plan.make(lengths, inputs, pool->threads());
    const Weights &up = *layers[0].up, &down = *layers[0].down;
    const int rows = plan.largest();
    const int64_t scratch_floats = std::max(kernels->whole_floats(plan.longest, shape.hidden / shape.heads),
                                            shape.hidden + std::max(up.padded_inputs, down.padded_inputs));
    for (int i = 0; i < pool->threads(); i++) {
        rooms[static_cast<size_t>(i)].make(rows, std::min(rows, MLP_ROWS), inputs, up, down, scratch_floats);
        if (!plan.together) kept[static_cast<size_t>(i)].make(rows, shape.hidden, false);
    }
    if (plan.together) {
        kept[0].make(plan.rows(), shape.hidden, true);
        kept[0].first = 0;
        stages->reset();
    }
    next_part.store(0);
    parts_done.store(0);
}

void headway_encoder::run(int worker) {
    Room &room = rooms[static_cast<size_t>(worker)];
    room.clock.begin(clock_ns);
    if (plan.together) {
        run_together(worker, kept[0], room);
    } else {
        run_parts(kept[static_cast<size_t>(worker)], room);
        /* Another thread's last part may take milliseconds: whoever waits for it leaves the processor to others. */
        const int count = static_cast<int>(plan.parts.size());
        for (int spins = 0; !worker && parts_done.load() < count; spins++) {
            relax();
            if (spins > AWAKE_SPINS) std::this_thread::sleep_for(std::chrono::microseconds(NAP_US));
        }
        room.clock.took(HEADWAY_WAIT);
    }
    room.clock.add_to(spent_ns);
}

void headway_encoder::run_parts(Kept &own, Room &room) {
    const int count = static_cast<int>(plan.parts.size());
    for (int i; (i = next_part.fetch_add(1)) < count; parts_done.fetch_add(1)) {
        const Part &part = plan.parts[static_cast<size_t>(i)];
        own.first = part.row;
        enter(part, own, room);
        for (size_t layer = 0; layer < layers.size(); layer++) pass(layer, part, own, room);
        if (result == HEADWAY_MEANS)
            for (int input = part.input; input < part.input + part.inputs; input++) leave(input, own);
        room.clock.took(HEADWAY_NORMS);
    }
}

void headway_encoder::run_together(int worker, const Kept &shared, Room &room) {
    const int count = static_cast<int>(plan.parts.size());
    Walk walk(*stages, worker);
    const auto each_part = [&](auto does) {
        walk.share(count, [&](int i) { does(plan.parts[static_cast<size_t>(i)]); });
        room.clock.took(HEADWAY_WAIT);
    };
    each_part([&](const Part &part) { enter(part, shared, room); });
    for (size_t layer = 0; layer < layers.size(); layer++)
        each_part([&](const Part &part) { pass(layer, part, shared, room); });
    if (result == HEADWAY_MEANS) walk.share(inputs, [&](int input) { leave(input, shared); });
    room.clock.took(HEADWAY_NORMS);
}

/* -- a part */

void headway_encoder::enter(const Part &part, const Kept &rows, Room &room) {
    embed(part, rows, room);
    room.clock.took(HEADWAY_EMBED);
    multiply(*layers[0].qkv, room.narrow, 0, part.rows, PLAIN, rows.heads_of(0, part.row));
    room.clock.took(HEADWAY_QKV);
}

/* The part's rows through a layer, up to the heads that the next one begins with. */
void headway_encoder::pass(size_t layer, const Part &part, const Kept &kept_rows, Room &room) {
    const headway_encoder_layer &of = layers[layer];
    const int64_t hidden = shape.hidden;
    const bool last = layer + 1 == layers.size(), firsts = last && result == HEADWAY_FIRSTS;
    attend(layer, part, kept_rows, room, firsts);
    float *x = firsts ? room.firsts : kept_rows.residual_of(part.row);
    const int rows = firsts ? gather_firsts(part, kept_rows, room) : part.rows;
    round_rows(room.attended, hidden, rows, room.narrow, room);
    room.clock.took(HEADWAY_ATTEND);
    multiply(*of.o, room.narrow, 0, rows, ADDED, x);
    room.clock.took(HEADWAY_OUT);
    norm(x, of.attention_norm, of.attention_norm_bias, of.attention_scale, rows, room, nullptr);
    room.clock.took(HEADWAY_NORMS);
    mlp(of, room, x, rows);
    float *to = !last ? nullptr : result == HEADWAY_MEANS ? x : out + (firsts ? first_of(part) : part.row) * hidden;
    norm(x, of.mlp_norm, of.mlp_norm_bias, of.mlp_scale, rows, room, to);
    for (int row = 0; firsts && unit && row < rows; row++) kernels->unit(to + row * hidden, shape.hidden);
    room.clock.took(HEADWAY_NORMS);
    if (last) return;
    multiply(*layers[layer + 1].qkv, room.narrow, 0, rows, PLAIN, kept_rows.heads_of(layer + 1, part.row));
    room.clock.took(HEADWAY_QKV);
}

void headway_encoder::embed(const Part &part, const Kept &rows, Room &room) {
    const int64_t hidden = shape.hidden;
    NormRow norm;
    norm.weight = shape.embedding_norm;
    norm.bias = shape.embedding_norm_bias;
    norm.scale = shape.embedding_scale;
    norm.eps = shape.eps;
    norm.size = shape.hidden;
    norm.normed = room.scratch;
    for (int input = part.input, row = part.row; row < part.row + part.rows; row++) {
        if (row == starts(input + 1)) input++;
        const int position = row - starts(input);
        norm.x = shape.embedding + tokens[row] * hidden;
        norm.more = shape.places ? shape.places + position * hidden : nullptr;
        norm.most = seconds && seconds[input] && position >= seconds[input] ? shape.second : nullptr;
        norm.kept = rows.residual_of(row);
        kernels->norm(norm);
        round_row(norm.normed, hidden, row - part.row, room.narrow, room);
    }
}

/* Into room.attended: of the part's rows, or of the inputs' first positions that are among them. */
void headway_encoder::attend(size_t layer, const Part &part, const Kept &rows, Room &room, bool firsts) {
    const int64_t hidden = shape.hidden, dim = shape.hidden / shape.heads;
    Whole whole;
    whole.stride = 3 * hidden;
    whole.keys = hidden;
    whole.values = 2 * hidden;
    whole.dim = static_cast<int>(dim);
    whole.scale = shape.scale;
    whole.out_stride = hidden;
    whole.scratch = room.scratch;
    for (int input = firsts ? first_of(part) : part.input, of = 0; input < part.input + part.inputs; input++, of++) {
        const int start = starts(input), end = std::min(starts(input + 1), part.row + part.rows);
        whole.length = lengths[input];
        whole.first = std::max(part.row - start, 0);
        whole.count = firsts ? 1 : end - start - whole.first;
        const float *heads = rows.heads_of(layer, start);
        float *to = room.attended + (firsts ? of : start + whole.first - part.row) * hidden;
        for (int head = 0; head < shape.heads; head++) {
            whole.qkv = heads + head * dim;
            whole.out = to + head * dim;
            kernels->attend(whole);
        }
    }
}

/* The residuals of first positions among the part's rows, into room.firsts; how many. */
int headway_encoder::gather_firsts(const Part &part, const Kept &rows, Room &room) const {
    int count = 0;
    for (int input = first_of(part); input < part.input + part.inputs; input++, count++)
        std::copy_n(rows.residual_of(starts(input)), shape.hidden, room.firsts + count * static_cast<int64_t>(shape.hidden));
    return count;
}

void headway_encoder::mlp(const headway_encoder_layer &layer, Room &room, float *residual, int rows) {
    for (int first = 0; first < rows; first += MLP_ROWS) {
        const int count = std::min(MLP_ROWS, rows - first);
        multiply(*layer.up, room.narrow, first, count, GELU, room.wide);
        room.clock.took(HEADWAY_UP);
        round_rows(room.wide, layer.down->inputs, count, room.broad, room);
        room.clock.took(HEADWAY_ROUND_WIDE);
        multiply(*layer.down, room.broad, 0, count, ADDED, residual + static_cast<int64_t>(first) * shape.hidden);
        room.clock.took(HEADWAY_DOWN);
    }
}

/* Layer norm of `rows` rows: into `to`, which may be x; or, without it, rounded into `room.narrow`, and kept, scaled, in x. */
void headway_encoder::norm(float *x, const float *weight, const float *bias, const float *scale, int rows, Room &room,
                           float *to) {
    NormRow norm;
    norm.more = norm.most = nullptr;
    norm.weight = weight;
    norm.bias = bias;
    norm.scale = scale;
    norm.eps = shape.eps;
    norm.size = shape.hidden;
    for (int row = 0; row < rows; row++) {
        const int64_t at = static_cast<int64_t>(row) * shape.hidden;
        norm.x = x + at;
        norm.kept = to ? nullptr : x + at;
        norm.normed = to ? to + at : room.scratch;
        kernels->norm(norm);
        if (!to) round_row(norm.normed, shape.hidden, row, room.narrow, room);
    }
}

/* The mean of an input's last hidden states. */
void headway_encoder::leave(int input, const Kept &rows) {
    float *to = out + static_cast<int64_t>(input) * shape.hidden;
    kernels->mean(rows.residual_of(starts(input)), lengths[input], shape.hidden, to);
    if (unit) kernels->unit(to, shape.hidden);
}

void headway_encoder::round_rows(const float *x, int64_t size, int rows, Inputs &to, Room &room) {
    for (int row = 0; row < rows; row++) round_row(x + row * size, size, row, to, room);
}

void headway_encoder::round_row(const float *x, int64_t size, int row, Inputs &to, Room &room) {
    Rounding rounding{};
    rounding.x = x;
    rounding.norm = nullptr;
    rounding.eps = 0;
    rounding.size = size;
    rounding.to = to.rounded.from(row);
    rounding.scratch = room.scratch + shape.hidden;
    products->round(rounding);
}

/* Rows [first, first + rows) of `inputs`; `to` is that of the first of them. */
void headway_encoder::multiply(const Weights &weights, const Inputs &inputs, int first, int rows, Ending ending,
                               float *to) {
    Block block{};
    block.weights = &weights;
    block.inputs = inputs.rounded.from(first);
    block.rows = rows;
    block.first = 0;
    block.columns = PANEL;
    block.ending = ending;
    block.stride = columns_of(weights);
    block.out = to;
    for (block.panel = 0; block.panel < weights.panels; block.panel++) products->multiply(block);
}

/* -- the C interface */

int32_t headway_encoder_bytes(void) { return sizeof(headway_encoder_shape); }

headway_encoder *headway_encoder_open(const headway_encoder_shape *shape, int32_t level, int32_t dots,
                                      headway_pool *pool) {
    const EncoderKernels *kernels = encoder_of(level);
    const ProductKernels *products = products_of(dots);
    if (!kernels || !products) return nullptr;
    try {
        std::unique_ptr<headway_encoder> made(new headway_encoder);
        made->shape = *shape;
        made->layers.assign(shape->layer, shape->layer + shape->layers);
        made->kernels = kernels;
        made->products = products;
        made->pool = &pool->pool;
        for (std::atomic<int64_t> &spent : made->spent_ns) spent.store(0);
        made->kept.reset(new Kept[static_cast<size_t>(pool->pool.threads())]);
        made->rooms.reset(new Room[static_cast<size_t>(pool->pool.threads())]);
        made->stages.reset(new Stages(pool->pool.threads()));
        return made.release();
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void headway_encoder_close(headway_encoder *encoder) { delete encoder; }

void headway_encoder_clock(headway_encoder *encoder, int64_t *ns) { encoder->clock_ns = ns; }

int32_t headway_encoder_run(headway_encoder *encoder, const int32_t *tokens, const int32_t *lengths,
                            const int32_t *seconds, int32_t inputs, int32_t result, int32_t unit, float *out) {
    if (inputs < 1) return 0;
    encoder->tokens = tokens;
    encoder->lengths = lengths;
    encoder->seconds = encoder->shape.second ? seconds : nullptr;
    encoder->inputs = inputs;
    encoder->result = result;
    encoder->unit = unit;
    encoder->out = out;
    if (!encoder->sound()) return -2;
    try {
        encoder->make_room();
    } catch (const std::bad_alloc &) {
        return -1;
    }
    encoder->pool->run([](void *context, int worker) { static_cast<headway_encoder *>(context)->run(worker); }, encoder,
                       encoder->plan.parts.size() == 1);
    for (int i = 0; encoder->clock_ns && i < HEADWAY_ENCODER_PARTS; i++)
        encoder->clock_ns[i] += encoder->spent_ns[i].exchange(0);
    return 0;
}
