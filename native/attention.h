/* A step's attention, as others run it: headway.h has the interface for callers outside. */
#ifndef HEADWAY_ATTENTION_H
#define HEADWAY_ATTENTION_H

#include <atomic>
#include <memory>
#include <vector>

#include "headway.h"
#include "kernels.h"
#include "pool.h"

namespace headway {

/* Rows that enter at a time. */
const int ENTER_ROWS = 8;

struct Memory {
    std::unique_ptr<float[]> floats;
    int64_t size = 0;

    /* At least so many floats; what was there is lost. */
    float *get(int64_t count) {
        if (count > size) {
            floats.reset();
            size = 0;
            floats.reset(new float[static_cast<size_t>(count) + 16]);
            size = count;
        }
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(floats.get()) + 63) / 64 * 64);
    }
};

/* Rows of one sequence; every key head has them as a tile. `partials`: where its partitions' results go, in floats for
 * the first key head, if the sum is split; -1 if not. */
struct Rows {
    int64_t start, blocks, partials;
    int row, positions, partitions;
};

struct Piece {
    int rows, kv_head, from, to;
    int64_t cost;
    int split; /* which countdown says that all of a tile's pieces are done; -1: there is one piece */
};

/* `at`: items from the state of the layer's first head in block 0. */
struct Enter {
    int64_t position, at;
};

/* A layer's attention within a step. */
struct LayerAttention {
    int layer, format;
    const char *qkv;
    float *out;
};

} // namespace headway

struct headway_attention {
    headway_attention_shape shape;
    headway::Heads heads;
    const headway::Kernels *kernels;
    headway::Pool *pool;

    std::vector<headway::Enter> enters;
    std::vector<headway::Rows> tiles;
    std::vector<headway::Piece> pieces, dealt;
    std::vector<int32_t> blocks;
    std::unique_ptr<headway::Counter[]> countdowns;
    std::vector<int> countdown_from;
    headway::Memory queries, partials, scratch;
    int64_t scratch_floats = 0, cost = 0;

    /* Of the call that runs one layer by itself. */
    headway::LayerAttention alone;
    std::unique_ptr<headway::Stages> stages;

    /* A layer's head in block 0. */
    char *plane(int layer, int head) const {
        return static_cast<char *>(shape.state) + (static_cast<int64_t>(layer) * 2 * shape.kv_heads + head) *
                                                      heads.plane * headway::item_bytes(shape.state_format);
    }
    /* Items from one block to the next. */
    int64_t block_items() const { return static_cast<int64_t>(shape.layers) * 2 * shape.kv_heads * heads.plane; }

    /* Whether every position has a block, and every block and rotation that is named exists. */
    bool sound(const headway_span *spans, int span_count, const int32_t *tables, int64_t table_count) const;
    void plan(const headway_span *spans, int span_count, const int32_t *tables, int64_t table_count);
    void cut(int tile, int kv_head, int64_t most);
    /* Pieces in the order in which threads take them: each thread's part with as much of the large ones. */
    void deal();
    /* A thread's part of a layer; all is done when it returns. */
    template <typename While> void run(headway::Walk &walk, const headway::LayerAttention &call, While &&idle);
    void enter(const headway::LayerAttention &call, int first, int last, float *room);
    void attend(const headway::LayerAttention &call, const headway::Piece &piece, float *room);
};

template <typename While>
void headway_attention::run(headway::Walk &walk, const headway::LayerAttention &call, While &&idle) {
    float *room = scratch.get(0) + scratch_floats * walk.worker();
    const int rows = static_cast<int>(enters.size());
    const auto enter_rows = [&](int piece) {
        enter(call, piece * headway::ENTER_ROWS, std::min((piece + 1) * headway::ENTER_ROWS, rows), room);
    };
    walk.share((rows + headway::ENTER_ROWS - 1) / headway::ENTER_ROWS, enter_rows, idle);
    walk.share(static_cast<int>(pieces.size()),
               [&](int piece) { attend(call, pieces[static_cast<size_t>(piece)], room); }, idle);
}

#endif
