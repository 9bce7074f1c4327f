/* An encoder's layers: norms after each block, GELU, int8 products (BERT and what came of it). */
#include "encoder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "headway.h"
#include "levels.h"
#include "pool.h"
#include "product_work.h"

using namespace headway;

namespace {

/* Parts of a step for each thread: more, and a thread that was disturbed leaves its share to the others; fewer, and
 * weights are read less often. */
const int PARTS_PER_THREAD = 3;
/* Positions that are worth a part of their own. */
const int LEAST_ROWS = 64;
/* Rows that go through the MLP at a time, so that its wide states stay in a core's cache. */
const int MLP_ROWS = 96;
/* Rows that are normalised at a time. */
const int NORM_ROWS = 4;
/* Positions whose attention, in one head, is one piece of work. */
const int ATTENTION_ROWS = 256;
/* How long the caller waits awake for the others at a step's end, and sleeps between looks after that. */
const int AWAKE_SPINS = 200, NAP_US = 20;
/* Stages of one layer, and those before the first. */
const int LAYER_STAGES = 10, FIRST_STAGES = 1;

/* Inputs one after another that go through all layers together. */
struct Part {
    int input, inputs, row, rows, longest;
};

/* Memory of what one part goes through. */
struct Room {
    std::unique_ptr<char[]> memory;
    int64_t size = 0;
    float *residual, *attended, *wide, *firsts;
    Inputs narrow, broad; /* rounded: [rows, hidden], [MLP rows, intermediate] */

    void make(int64_t rows, int64_t mlp_rows, int64_t inputs, int64_t hidden, const Weights &up, const Weights &down);
};

void Room::make(int64_t rows, int64_t mlp_rows, int64_t inputs, int64_t hidden, const Weights &up,
                const Weights &down) {
    const int64_t most_wide = std::max(rows * 3 * hidden, mlp_rows * up.outputs);
    const int64_t floats = (2 * rows + inputs) * hidden + most_wide + 64;
    if (floats > size) {
        memory.reset();
        size = 0;
        memory.reset(new char[static_cast<size_t>(floats) * sizeof(float)]);
        size = floats;
    }
    residual = reinterpret_cast<float *>(aligned(memory.get()));
    attended = residual + rows * hidden;
    wide = attended + rows * hidden;
    firsts = wide + most_wide;
    narrow.make(rows, up.padded_inputs);
    broad.make(mlp_rows, down.padded_inputs);
}

/* Those who do a part together: one thread by itself, or all of them, stage after stage. */
class Crew {
  public:
    Crew(int worker, Stage *stages) : worker_(worker), stages_(stages) {}

    int worker() const { return worker_; }
    bool alone() const { return !stages_; }

    template <typename Piece> void share(int count, Piece piece) {
        if (stages_) return (stages_++)->share(count, piece);
        for (int i = 0; i < count; i++) piece(i);
    }

  private:
    const int worker_;
    Stage *stages_;
};

} // namespace

struct headway_encoder {
    headway_encoder_shape shape;
    std::vector<headway_encoder_layer> layers;
    const EncoderKernels *kernels;
    const ProductKernels *products;
    Pool *pool;

    std::unique_ptr<Stage[]> stages;
    std::vector<Part> parts;
    std::vector<int> starts; /* first rows of the inputs */
    std::unique_ptr<Room[]> rooms;
    std::unique_ptr<char[]> scratch;
    int64_t scratch_floats = 0, scratch_size = 0;
    bool together = false;

    /* Of the step that runs. */
    const int32_t *tokens, *lengths, *seconds;
    bool firsts_only;
    float *out;
    std::atomic<int> next_part{0}, parts_done{0};

    bool sound(int inputs) const;
    void plan(int inputs);
    void run(int worker);
    void evaluate(const Part &part, Room &room, Crew crew);
    void embed(const Part &part, Room &room, Crew &crew);
    void attend(const Part &part, const Room &room, bool firsts, Crew &crew);
    void mlp(const headway_encoder_layer &layer, Room &room, float *residual, int rows, Crew &crew);
    void norm(float *x, const float *weight, const float *bias, const float *scale, int rows, Room &room, float *result,
              Crew &crew);
    void round(const float *x, int64_t size, int rows, Inputs &to, Crew &crew);
    void multiply(const Weights &weights, const Inputs &inputs, int first, int rows, Ending ending, float *to,
                  Crew &crew);
    void round_row(const float *x, int64_t size, int row, Inputs &to, int worker);
    float *scratch_of(int worker) {
        return reinterpret_cast<float *>(aligned(scratch.get())) + scratch_floats * worker;
    }
    const Weights &weights(const headway_weights *packed) const { return *packed; }
};

/* -- once per step */

bool headway_encoder::sound(int inputs) const {
    int64_t at = 0;
    for (int i = 0; i < inputs; i++) {
        if (lengths[i] < 1 || (shape.places && lengths[i] > shape.positions)) return false;
        for (int j = 0; j < lengths[i]; j++, at++)
            if (tokens[at] < 0 || tokens[at] >= shape.vocab) return false;
    }
    return true;
}

void headway_encoder::plan(int inputs) {
    const int threads = pool->threads();
    int total = 0, longest = 0, largest = 0;
    starts.clear();
    parts.clear();
    for (int i = 0; i < inputs; i++) {
        starts.push_back(total);
        total += lengths[i];
        longest = std::max(longest, lengths[i]);
    }
    const int wanted = std::max(LEAST_ROWS, (total + threads * PARTS_PER_THREAD - 1) / (threads * PARTS_PER_THREAD));
    for (int i = 0; i < inputs; i++) {
        if (parts.empty() || parts.back().rows + lengths[i] / 2 > wanted) parts.push_back({i, 0, starts[i], 0, 0});
        Part &part = parts.back();
        part.inputs++;
        part.rows += lengths[i];
        part.longest = std::max(part.longest, lengths[i]);
    }
    for (const Part &part : parts) largest = std::max(largest, part.rows);
    /* What cannot be shared out as it is takes all threads, stage by stage. */
    together = threads > 1 && static_cast<int64_t>(largest) * threads * 2 > static_cast<int64_t>(total) * 3;
    if (together) parts.assign(1, {0, inputs, 0, total, longest});
    const Weights &up = *layers[0].up, &down = *layers[0].down;
    for (int i = 0; i < (together ? 1 : threads); i++) {
        const int rows = together ? total : largest;
        rooms[static_cast<size_t>(i)].make(rows, together ? rows : std::min(rows, MLP_ROWS), inputs, shape.hidden, up, down);
    }
    scratch_floats = std::max(kernels->whole_floats(longest, shape.hidden / shape.heads),
                              shape.hidden + std::max(up.padded_inputs, down.padded_inputs));
    scratch_floats = (scratch_floats + 63) / 64 * 64;
    if (scratch_floats * threads > scratch_size) {
        scratch_size = 0;
        scratch.reset(new char[static_cast<size_t>(scratch_floats * threads) * sizeof(float) + 64]);
        scratch_size = scratch_floats * threads;
    }
    next_part.store(0);
    parts_done.store(0);
    if (together)
        for (size_t i = 0; i < FIRST_STAGES + layers.size() * LAYER_STAGES; i++) stages[i].reset();
}

void headway_encoder::run(int worker) {
    if (together) return evaluate(parts[0], rooms[0], Crew(worker, stages.get()));
    const int count = static_cast<int>(parts.size());
    for (int part; (part = next_part.fetch_add(1)) < count; parts_done.fetch_add(1))
        evaluate(parts[static_cast<size_t>(part)], rooms[static_cast<size_t>(worker)], Crew(worker, nullptr));
    /* Another thread's last part may take milliseconds: whoever waits for it leaves the processor to other processes. */
    for (int spins = 0; !worker && parts_done.load() < count; spins++) {
        relax();
        if (spins > AWAKE_SPINS) std::this_thread::sleep_for(std::chrono::microseconds(NAP_US));
    }
}

/* -- a part */

void headway_encoder::evaluate(const Part &part, Room &room, Crew crew) {
    const int hidden = shape.hidden;
    float *residual = room.residual;
    int rows = part.rows;
    embed(part, room, crew);
    for (size_t i = 0; i < layers.size(); i++) {
        const headway_encoder_layer &layer = layers[i];
        const bool last = i + 1 == layers.size(), firsts = last && firsts_only;
        multiply(*layer.qkv, room.narrow, 0, rows, PLAIN, room.wide, crew);
        attend(part, room, firsts, crew);
        if (firsts) {
            rows = part.inputs;
            crew.share(rows, [&](int input) {
                const int64_t row = starts[static_cast<size_t>(part.input + input)] - part.row;
                std::copy_n(room.residual + row * hidden, hidden, room.firsts + static_cast<int64_t>(input) * hidden);
            });
            residual = room.firsts;
        }
        round(room.attended, hidden, rows, room.narrow, crew);
        multiply(*layer.o, room.narrow, 0, rows, ADDED, residual, crew);
        norm(residual, layer.attention_norm, layer.attention_norm_bias, layer.attention_scale, rows, room, nullptr, crew);
        mlp(layer, room, residual, rows, crew);
        float *result = last ? out + static_cast<int64_t>(firsts ? part.input : part.row) * hidden : nullptr;
        norm(residual, layer.mlp_norm, layer.mlp_norm_bias, layer.mlp_scale, rows, room, result, crew);
    }
}

void headway_encoder::embed(const Part &part, Room &room, Crew &crew) {
    const int64_t hidden = shape.hidden;
    crew.share(part.inputs, [&](int of) {
        const int input = part.input + of, start = starts[static_cast<size_t>(input)];
        NormRow norm;
        norm.weight = shape.embedding_norm;
        norm.bias = shape.embedding_norm_bias;
        norm.scale = shape.embedding_scale;
        norm.eps = shape.eps;
        norm.size = shape.hidden;
        norm.normed = scratch_of(crew.worker());
        for (int position = 0; position < lengths[input]; position++) {
            const int row = start - part.row + position;
            norm.x = shape.embedding + tokens[start + position] * hidden;
            norm.more = shape.places ? shape.places + position * hidden : nullptr;
            norm.most = seconds && seconds[input] && position >= seconds[input] ? shape.second : nullptr;
            norm.kept = room.residual + row * hidden;
            kernels->norm(norm);
            round_row(norm.normed, hidden, row, room.narrow, crew.worker());
        }
    });
}

void headway_encoder::attend(const Part &part, const Room &room, bool firsts, Crew &crew) {
    const int dim = shape.hidden / shape.heads, tiles = firsts ? 1 : (part.longest + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    const int64_t hidden = shape.hidden;
    crew.share(part.inputs * shape.heads * tiles, [&](int piece) {
        const int head = piece % shape.heads, tile = piece / shape.heads % tiles, of = piece / shape.heads / tiles;
        const int input = part.input + of, row = starts[static_cast<size_t>(input)] - part.row;
        Whole whole;
        whole.length = lengths[input];
        whole.first = tile * ATTENTION_ROWS;
        whole.count = firsts ? 1 : std::min(ATTENTION_ROWS, whole.length - whole.first);
        if (whole.count < 1) return;
        whole.qkv = room.wide + row * 3 * hidden + head * dim;
        whole.stride = 3 * hidden;
        whole.keys = hidden;
        whole.values = 2 * hidden;
        whole.dim = dim;
        whole.scale = shape.scale;
        whole.out = room.attended + (firsts ? of : row + whole.first) * hidden + head * dim;
        whole.out_stride = hidden;
        whole.scratch = scratch_of(crew.worker());
        kernels->attend(whole);
    });
}

void headway_encoder::mlp(const headway_encoder_layer &layer, Room &room, float *residual, int rows, Crew &crew) {
    const int each = crew.alone() ? MLP_ROWS : rows;
    for (int first = 0; first < rows; first += each) {
        const int count = std::min(each, rows - first);
        multiply(*layer.up, room.narrow, first, count, GELU, room.wide, crew);
        round(room.wide, layer.down->inputs, count, room.broad, crew);
        multiply(*layer.down, room.broad, 0, count, ADDED, residual + static_cast<int64_t>(first) * shape.hidden, crew);
    }
}

/* Layer norm of `rows` rows. Into `result`; or, without it, rounded into `room.narrow`, and kept, scaled, in x. */
void headway_encoder::norm(float *x, const float *weight, const float *bias, const float *scale, int rows, Room &room,
                           float *result, Crew &crew) {
    crew.share((rows + NORM_ROWS - 1) / NORM_ROWS, [&](int piece) {
        NormRow norm;
        norm.more = norm.most = nullptr;
        norm.weight = weight;
        norm.bias = bias;
        norm.scale = scale;
        norm.eps = shape.eps;
        norm.size = shape.hidden;
        for (int row = piece * NORM_ROWS; row < std::min(rows, (piece + 1) * NORM_ROWS); row++) {
            const int64_t at = static_cast<int64_t>(row) * shape.hidden;
            norm.x = x + at;
            norm.kept = result ? nullptr : x + at;
            norm.normed = result ? result + at : scratch_of(crew.worker());
            kernels->norm(norm);
            if (!result) round_row(norm.normed, shape.hidden, row, room.narrow, crew.worker());
        }
    });
}

void headway_encoder::round(const float *x, int64_t size, int rows, Inputs &to, Crew &crew) {
    crew.share((rows + NORM_ROWS - 1) / NORM_ROWS, [&](int piece) {
        for (int row = piece * NORM_ROWS; row < std::min(rows, (piece + 1) * NORM_ROWS); row++)
            round_row(x + row * size, size, row, to, crew.worker());
    });
}

void headway_encoder::round_row(const float *x, int64_t size, int row, Inputs &to, int worker) {
    Rounding rounding{};
    rounding.x = x;
    rounding.norm = nullptr;
    rounding.eps = 0;
    rounding.size = size;
    rounding.to = to.rounded.from(row);
    rounding.scratch = scratch_of(worker) + shape.hidden;
    products->round(rounding);
}

/* Rows [first, first + rows) of `inputs`; `to` is that of the first of them. */
void headway_encoder::multiply(const Weights &weights, const Inputs &inputs, int first, int rows, Ending ending,
                               float *to, Crew &crew) {
    Block whole{};
    whole.weights = &weights;
    whole.inputs = inputs.rounded.from(first);
    whole.rows = rows;
    whole.first = 0;
    whole.columns = PANEL;
    whole.ending = ending;
    whole.stride = columns_of(weights);
    whole.out = to;
    if (crew.alone()) {
        for (whole.panel = 0; whole.panel < weights.panels; whole.panel++) products->multiply(whole);
        return;
    }
    const Cut cut(weights, rows, pool->threads());
    crew.share(cut.count, [&](int piece) {
        const int column = piece / cut.row_pieces;
        const int64_t row = static_cast<int64_t>(piece % cut.row_pieces) * cut.rows_each;
        Block block = whole;
        block.inputs = whole.inputs.from(row);
        block.rows = static_cast<int>(std::min<int64_t>(cut.rows_each, rows - row));
        block.panel = column / cut.halves;
        block.first = column % cut.halves * HALF;
        block.columns = PANEL / cut.halves;
        block.out += row * block.stride;
        products->multiply(block);
    });
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
        made->rooms.reset(new Room[static_cast<size_t>(pool->pool.threads())]);
        made->stages.reset(new Stage[FIRST_STAGES + made->layers.size() * LAYER_STAGES]);
        return made.release();
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

void headway_encoder_close(headway_encoder *encoder) { delete encoder; }

int32_t headway_encoder_run(headway_encoder *encoder, const int32_t *tokens, const int32_t *lengths,
                            const int32_t *seconds, int32_t inputs, int32_t firsts, float *out) {
    if (inputs < 1) return 0;
    encoder->tokens = tokens;
    encoder->lengths = lengths;
    encoder->seconds = encoder->shape.second ? seconds : nullptr;
    encoder->firsts_only = firsts;
    encoder->out = out;
    if (!encoder->sound(inputs)) return -2;
    try {
        encoder->plan(inputs);
    } catch (const std::bad_alloc &) {
        return -1;
    }
    encoder->pool->run([](void *context, int worker) { static_cast<headway_encoder *>(context)->run(worker); }, encoder,
                       !encoder->together && encoder->parts.size() == 1);
    return 0;
}
