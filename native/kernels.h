/* What is compiled once per level: a table of functions, and what they are given. */
#ifndef HEADWAY_KERNELS_H
#define HEADWAY_KERNELS_H

#include <stdint.h>

#include "headway.h"

namespace headway {

/* A row's positions are summed in partitions of so many, each by itself, and these in order. So a row's bits depend on
 * no one's choice of who computes which partition. */
enum { PARTITION = 256 };
/* Positions whose keys and values are laid out in scratch memory at a time. */
enum { STRIP = 64 };

/* A head of state that is held in int8 has its scale behind it, a bf16. */
enum { SCALE_BYTES = 2 };
inline int64_t item_bytes(int format) { return format == HEADWAY_INT8 ? 1 : format == HEADWAY_BF16 ? 2 : 4; }
inline int64_t head_items(int format, int dim) { return dim + (format == HEADWAY_INT8 ? SCALE_BYTES : 0); }

/* Rows of one sequence that share a key head: `positions` consecutive ones, `group` query heads each. */
struct Tile {
    const float *queries; /* of the first position and head; the group's heads follow each other */
    int64_t query_stride; /* floats from one position to the next; of `out` too */
    float *out;
    const void *keys, *values; /* of the key head in block 0: [block_tokens, head_items] */
    int64_t block_items;       /* items from one block to the next */
    const int32_t *blocks;
    int64_t start; /* the first row's position; it sees that and all before */
    int positions, group, dim, block_tokens, state_format;
    int from, to;    /* partitions to sum */
    float *partials; /* NULL: all partitions are summed here, into `out`; else where theirs go, see partial_floats */
    float *scratch;  /* scratch_floats */
};

/* The query, key and value heads of a row, before attention. */
struct Heads {
    int heads, kv_heads, dim;
    float scale, eps;
    const float *norms; /* [heads + kv_heads, dim] or NULL */
    int format, state_format;
    int64_t plane; /* items from one head's state to the next */
};

struct Kernels {
    int width;
    /* How many rows a tile should have, where a position's heads are not more by themselves. */
    int (*tile_rows)(int state_format);
    /* Floats that a tile of so many rows needs. */
    int64_t (*scratch_floats)(int rows, int dim);
    /* Floats of one partition's results of a tile. */
    int64_t (*partial_floats)(int rows, int dim);
    void (*attend)(const Tile &tile);
    /* Sums the partials of a tile, all of them there, into `out`. */
    void (*finish)(const Tile &tile);
    /* Normalises and turns a row's heads; writes queries [heads, dim], and keys and values into the state of its slot.
     * cosines, sines: [dim], or NULL. scratch: two heads, each a multiple of the width. */
    void (*enter)(const Heads &heads, const void *row, const float *cosines, const float *sines, float *queries,
                  void *slot, float *scratch);
};

extern const Kernels kernels_generic;
#if defined(__x86_64__) || defined(_M_X64)
extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512bf16;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif

} // namespace headway
#endif
