/* Matrix products on packed weights: what is compiled once per kind of dot product, and what it is given. */
#ifndef HEADWAY_PRODUCTS_H
#define HEADWAY_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

namespace headway {

/* Weights lie in panels of so many outputs, each in halves that threads may read apart, and these in steps of STEP inputs,
 * [panel][half][step][output][input], so that an instruction which adds STEP products of 8-bit numbers into each of its
 * lanes reads outputs along its lanes, whatever its width. What is missing at the edges is zero. */
enum { PANEL = 64, STEP = 4, HALF = PANEL / 2 };
/* Inputs are padded to a multiple of it. */
enum { INPUTS = 64 };
/* The largest whole number of two digits, and for how many of a row's steps there is one that may have a second one. */
enum { FARTHEST = 127 * 256 + 127, STEPS_PER_FAR = 16 };
/* Weights of 4 bits have a scale and a least value for each GROUP of inputs of an output, as GGUF's Q4_1. A group of a panel
 * is [pair of steps][output][input], the pair's first step in the lower halves of the bytes; then the outputs' scales, and
 * their least values, in half precision. */
enum { GROUP = 32, PAIRS = GROUP / STEP / 2, GROUP_BYTES = PANEL * (GROUP / 2 + 4) };

/* What becomes of sums on their way out. */
enum Ending {
    PLAIN,
    GELU,  /* x * (1 + erf(x / sqrt(2))) / 2 */
    ADDED, /* out += */
    GATED, /* silu(gate) * up; a panel holds HALF gates and their HALF ups */
};

struct Weights {
    int64_t inputs, padded_inputs; /* of an output */
    int64_t outputs, panels, panel_bytes;
    bool gated, four_bits;
    const int8_t *panel_weights;  /* [panels, panel_bytes]; those of 8 bits are held as 128 more than they are */
    const float *scales, *biases; /* [panels * PANEL]; scales are 1 where groups have them */
};

/* A STEP of inputs some of which are far from zero: their high digits. */
struct Far {
    int32_t step;
    int8_t high[STEP];
};

/* What a row's whole numbers count: the row's scale, NaN where an input is not finite. */
struct RowScale {
    float scale;
    /* -128 times the sum of all low digits, and of all high ones: what is too much where weights are held as 128 more
     * than they are. */
    int32_t offset, far_offset;
    int32_t far_count;
};

/* Rows of inputs as whole multiples, of up to FARTHEST, of a scale of the row's own: low digits for all of them, from
 * -128 to 127, and high digits, worth 256, for the few that are beyond 127. */
struct Rounded {
    int8_t *whole; /* [rows, stride], low digits */
    int64_t stride, groups, most_far;
    RowScale *scales; /* [rows] */
    Far *far;         /* [rows, most_far], by step */
    float *sums;      /* [rows, groups] of the whole numbers, for weights of 4 bits */

    Rounded from(int64_t row) const {
        return {whole + row * stride, stride, groups, most_far, scales + row, far + row * most_far, sums + row * groups};
    }
};

/* Rows of inputs and the columns of a panel, to multiply. */
struct Block {
    const Weights *weights;
    Rounded inputs;
    int64_t panel;
    int rows, first, columns; /* columns of the panel: all of it, or one HALF */
    Ending ending;
    float *out; /* [rows, stride], of the first row and the output's column 0 */
    int64_t stride;
};

/* A row to be rounded: x [size], fp32 or bf16, normalised (RMS) where `norm` [size] is there. */
struct Rounding {
    const void *x;
    const float *norm;
    float eps;
    int64_t size;
    bool bf16, in_groups; /* in_groups: `sums` are needed */
    Rounded to;
    float *scratch; /* [to.stride] */
};

struct ProductKernels {
    void (*multiply)(const Block &block);
    void (*round)(const Rounding &rounding);
};

extern const ProductKernels products_generic;
#if defined(__x86_64__) || defined(_M_X64)
extern const ProductKernels products_avx2, products_avxvnni, products_avx512vnni;
#elif defined(__aarch64__)
extern const ProductKernels products_neon, products_dotprod;
#endif

} // namespace headway
#endif
